//! Recurrent states: what a layer keeps of a text in a fixed number of elements.
//!
//! A layer with a recurrence, such as a short convolution or a gated delta rule, keeps no keys and values of each position. It
//! keeps a *state*, which each row replaces. A state cannot be cut back to fewer rows, so a step never changes one: it reads the
//! states before its rows from one **state page** and writes the states after chosen rows to other pages ([`StatePages`]). A step
//! that runs twice has the same effect as one that runs once, and a text goes on from any row whose states were written.
//!
//! A state page holds all states of the graph, one after the other, as f32. Its layout is the same on all devices, so that a page
//! that was read from one device can be written to another ([`StateLayout`]).

use std::ops::Range;

use crate::device::{DeviceError, KvPool};
use crate::step::{PageId, Segment, Step};

/// Number of a recurrent state in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// The state pages that one segment of a step reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePages {
    /// The page with the states before the segment's first row; `None` for the begin of a text, whose states are zeros.
    pub from: Option<PageId>,
    /// Rows, counted from the segment's first and in ascending order, and the page that gets the states after each of them.
    ///
    /// All pages differ from each other and from [`from`](Self::from). In a draft tree, a row that other rows follow later than
    /// the next one must be listed, since they go on from its page.
    pub to: Vec<(u32, PageId)>,
    /// Pages for the later steps of a [chain](mod@crate::chain), which are used in turn. A device may run ahead of the caller's
    /// answers by as many steps as there are pages, since the states before those steps are then still there.
    pub spares: Vec<PageId>,
}

impl StatePages {
    /// The page that gets the states after `row`.
    pub fn page_after(&self, row: usize) -> Option<PageId> {
        self.to.iter().find(|&&(at, _)| at as usize == row).map(|&(_, page)| page)
    }

    /// Makes these the pages of a step of one row that follows, in a chain: it goes on from the last page written and writes the
    /// next spare page. Without pages to write to, nothing changes.
    pub fn go_on(&mut self) {
        let Some((_, last)) = self.to.pop() else { return };
        self.to.clear();
        self.from = Some(last);
        if !self.spares.is_empty() {
            let next = self.spares.remove(0);
            self.to.push((0, next));
            self.spares.push(last);
        }
    }

    /// The page with the states after `steps` further steps of a chain, whose first step these are the pages of; `None` if no page
    /// is written.
    pub fn page_after_steps(&self, steps: usize) -> Option<PageId> {
        let (_, first) = self.to.last()?;
        Some(match steps % (self.spares.len() + 1) {
            0 => *first,
            turn => self.spares[turn - 1],
        })
    }
}

/// Places of a graph's states within a page.
///
/// Each state begins at a multiple of [`ALIGNMENT_ELEMENTS`](Self::ALIGNMENT_ELEMENTS). The elements between are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// The elements of each state within a page.
    places: Vec<Range<usize>>,
}

impl StateLayout {
    /// Elements to a multiple of which each state is aligned: one cache line.
    pub const ALIGNMENT_ELEMENTS: usize = 16;

    /// The layout of states with these numbers of elements.
    pub fn new(elements: &[usize]) -> Self {
        let mut end = 0_usize;
        let place = |&elements: &usize| {
            let start = end;
            end = start.saturating_add(elements);
            let place = start..end;
            end = end.checked_next_multiple_of(Self::ALIGNMENT_ELEMENTS).unwrap_or(usize::MAX);
            place
        };
        Self { places: elements.iter().map(place).collect() }
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.places.len()
    }

    /// True if there are no states; pages then have no bytes.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The elements of a page that hold state `id`.
    ///
    /// # Panics
    ///
    /// If there is no such state.
    pub fn place(&self, id: StateId) -> Range<usize> {
        self.places[id.0 as usize].clone()
    }

    /// Elements of a page.
    pub fn page_elements(&self) -> usize {
        let end = self.places.last().map_or(0, |last| last.end);
        end.checked_next_multiple_of(Self::ALIGNMENT_ELEMENTS).unwrap_or(usize::MAX)
    }

    /// Bytes of a page: 4 for each element.
    pub fn page_bytes(&self) -> usize {
        self.page_elements().saturating_mul(4)
    }
}

/// Checks that `page` is a state page of `pool` and has `bytes` bytes.
///
/// # Errors
///
/// [`DeviceError::UnknownState`], [`DeviceError::StateBytes`].
pub fn check_state_page(pool: &dyn KvPool, page: PageId, bytes: usize) -> Result<(), DeviceError> {
    let (page, pages, expected) = (page.index(), pool.state_capacity(), pool.spec().states.page_bytes());
    match () {
        () if page >= pages => Err(DeviceError::UnknownState { page, pages }),
        () if bytes != expected => Err(DeviceError::StateBytes { found: bytes, expected }),
        () => Ok(()),
    }
}

/// Checks the state pages of segment `number` of a step.
pub(crate) fn check_states(
    number: usize,
    segment: &Segment,
    layout: &StateLayout,
    pool: &dyn KvPool,
) -> Result<(), DeviceError> {
    let bad = |what: String| Err(DeviceError::BadStep { what: format!("segment {number} {what}") });
    let StatePages { from, to, .. } = &segment.states;
    if layout.is_empty() {
        let none = from.is_none() && to.is_empty();
        return if none { Ok(()) } else { bad("has state pages, but the graph has no states".into()) };
    }
    if from.is_some() != (segment.first_index > 0) {
        let what =
            if from.is_some() { "goes on from a state page" } else { "has no state page to go on from" };
        return bad(format!("{what} at index {}", segment.first_index));
    }
    let capacity = pool.state_capacity();
    let pages = || from.iter().copied().chain(to.iter().map(|&(_, page)| page));
    if let Some(page) = pages().find(|page| page.index() >= capacity) {
        return bad(format!("has state page {} of {capacity}", page.index()));
    }
    for (place, &(row, page)) in to.iter().enumerate() {
        if row as usize >= segment.rows || place.checked_sub(1).is_some_and(|before| to[before].0 >= row) {
            return bad(format!("keeps the states after row {row} of {}, out of order", segment.rows));
        }
        if pages().filter(|&other| other == page).count() > 1 {
            return bad(format!("uses state page {} twice", page.index()));
        }
    }
    let Some(tree) = &segment.tree else { return Ok(()) };
    let follows = |row: usize| match tree.parent(row) {
        None => true,
        Some(parent) => parent as usize + 1 == row || segment.states.page_after(parent as usize).is_some(),
    };
    match (0..tree.rows()).find(|&row| !follows(row)) {
        Some(row) => bad(format!("has row {row} of a draft tree after a row whose states it does not keep")),
        None => Ok(()),
    }
}

/// Checks that two segments of a step do not use a state page that one of them writes.
pub(crate) fn check_states_apart(step: &Step, one: usize, other: usize) -> Result<(), DeviceError> {
    let (a, b) = (&step.segments[one].states, &step.segments[other].states);
    let writes = |pages: &StatePages, page| pages.to.iter().any(|&(_, written)| written == page);
    let shared = a.to.iter().map(|&(_, page)| page).find(|&page| b.from == Some(page) || writes(b, page));
    match shared.or_else(|| a.from.filter(|&page| writes(b, page))) {
        Some(page) => Err(DeviceError::BadStep {
            what: format!("segments {one} and {other} use state page {}, which one writes", page.index()),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_each_other_in_whole_cache_lines() {
        let layout = StateLayout::new(&[3, 16, 33]);
        let places: Vec<_> = (0..3).map(|state| layout.place(StateId(state))).collect();
        assert_eq!(places, [0..3, 16..32, 32..65]);
        assert_eq!((layout.page_elements(), layout.page_bytes()), (80, 320));
        let none = StateLayout::new(&[]);
        assert!(none.is_empty() && none.page_bytes() == 0);
        // Sizes that no memory holds are still sizes, which an allocation refuses.
        assert_eq!(StateLayout::new(&[usize::MAX, 1]).page_bytes(), usize::MAX);
    }
}
