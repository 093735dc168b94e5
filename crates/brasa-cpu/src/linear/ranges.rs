//! Ranges cut into parts.

use std::ops::Range;

/// `range` in parts of `size`, the last one possibly shorter.
pub(super) fn parts(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(size).map(move |start| start..range.end.min(start + size))
}

/// `range` in groups; `at_once` gives the size of the next group from how many are left.
pub(super) fn groups(
    range: Range<usize>,
    at_once: impl Fn(usize) -> usize,
) -> impl Iterator<Item = Range<usize>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let left = range.end - next;
        let group = next..next + at_once(left);
        next = group.end;
        (left > 0).then_some(group)
    })
}
