//! Where buffers lie in the arena.
//!
//! A compiled program has buffers that its graph does not know (rotation tables, intermediate results of fused
//! operations) and none for values that disappear, so it is laid out by its own operations' lifetimes.

use crate::arena::ALIGNMENT;

/// A buffer: how long it is needed, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// First and last operation that need it.
    pub first: usize,
    pub last: usize,
    pub elements: usize,
}

impl Lifetime {
    fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// An offset for each buffer, and the elements of the whole. Largest first, each into the lowest gap between
/// those placed before that are needed at the same time.
pub(super) fn lay_out(buffers: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&buffer| (std::cmp::Reverse(buffers[buffer].elements), buffer));
    let mut offsets = vec![0_usize; buffers.len()];
    // In order of offsets.
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0_usize;
    for buffer in order {
        let mut start = 0_usize;
        let needed = aligned(buffers[buffer].elements);
        for &other in placed.iter().filter(|&&other| buffers[other].meets(&buffers[buffer])) {
            if offsets[other] >= start.saturating_add(needed) {
                break;
            }
            start = start.max(offsets[other].saturating_add(aligned(buffers[other].elements)));
        }
        offsets[buffer] = start;
        total = total.max(start.saturating_add(needed));
        let at = placed.partition_point(|&other| offsets[other] <= start);
        placed.insert(at, buffer);
    }
    (offsets, total)
}

fn aligned(elements: usize) -> usize {
    elements.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_meet_lie_apart() {
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for _ in 0..50 {
            let buffers: Vec<Lifetime> = (0..60)
                .map(|_| {
                    let first = random(40) as usize;
                    Lifetime { first, last: first + random(6) as usize, elements: random(300) as usize }
                })
                .collect();
            let (offsets, total) = lay_out(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                assert!(offsets[i] + a.elements <= total && offsets[i].is_multiple_of(ALIGNMENT));
                for (j, b) in buffers.iter().enumerate().take(i) {
                    let apart =
                        offsets[i] + a.elements <= offsets[j] || offsets[j] + b.elements <= offsets[i];
                    assert!(apart || !a.meets(b) || a.elements == 0 || b.elements == 0);
                }
            }
            let at_once = |op: usize| -> usize {
                buffers.iter().filter(|b| b.first <= op && op <= b.last).map(|b| b.elements).sum()
            };
            let least = (0..50).map(at_once).max().unwrap_or(0);
            assert!(total <= least * 2, "{total} for {least}");
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let huge = Lifetime { first: 0, last: 1, elements: usize::MAX / 2 };
        assert_eq!(lay_out(&[huge; 4]).1, usize::MAX);
    }
}
