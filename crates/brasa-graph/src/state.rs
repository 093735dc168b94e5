//! Recurrent states: what a layer keeps of a text in a fixed number of elements.
//!
//! A layer with a recurrence, such as a short convolution or a gated delta rule, does not keep a key and a value of
//! each position. Such a layer keeps one *state*, and each row replaces it. A state cannot be cut back to fewer rows,
//! so a step never overwrites the states that it begins with. A step reads the states before its rows from one **state
//! page** and writes the states after chosen rows to other pages ([`StatePages`]). So a step that runs twice has the
//! effect of one run, and a text can go on from any row whose states were written.
//!
//! A state page holds all states of the graph, one after the other, as f32. All devices have the same layout of a state
//! page, so a page that was read from one device can be written to another ([`StateLayout`]).

use std::ops::Range;

use crate::device::{DeviceError, KvPool};
use crate::step::{PageId, Segment, Step};

/// Number of a recurrent state in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// The state pages that one segment of a step reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePages {
    /// The page with the states before the segment's first row; `None` at the start of a text, with all states zero.
    pub from: Option<PageId>,
    /// Rows whose states are kept, each with the page that gets the states after this row. Rows count from the
    /// segment's first and ascend.
    ///
    /// All pages differ from each other and from [`from`](Self::from). In a draft tree, a row must be listed if it has
    /// a child other than the next row, because that child goes on from the listed page.
    pub to: Vec<(u32, PageId)>,
    /// Pages that the later steps of a [chain](mod@crate::chain) write in turn. With *n* spares, a device may run *n*
    /// steps ahead of the caller's answers: the states before those steps still exist.
    pub spares: Vec<PageId>,
}

impl StatePages {
    /// The page that gets the states after `row`, counted from the segment's first row; `None` if these states are not
    /// kept.
    pub fn page_after(&self, row: usize) -> Option<PageId> {
        self.to.iter().find(|&&(at, _)| at as usize == row).map(|&(_, page)| page)
    }

    /// Advances the pages of one step of a chain to those of the next step, which has one row.
    ///
    /// The next step goes on from the last page of [`to`](Self::to) and writes the first spare page. The page that it
    /// goes on from becomes the last spare. Without spares, the next step writes no page. If `to` is empty, nothing
    /// changes.
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

    /// The page with the states after `steps` further steps of a chain. `self` holds the pages of the chain's first
    /// step. `None` if the first step writes no page.
    pub fn page_after_steps(&self, steps: usize) -> Option<PageId> {
        let (_, first) = self.to.last()?;
        Some(match steps % (self.spares.len() + 1) {
            0 => *first,
            turn => self.spares[turn - 1],
        })
    }
}

/// The place of each recurrent state of a graph within a state page, in f32 elements.
///
/// Each state begins at a multiple of [`ALIGNMENT_ELEMENTS`](Self::ALIGNMENT_ELEMENTS). Elements between states are
/// zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// The elements of each state within a page.
    places: Vec<Range<usize>>,
}

impl StateLayout {
    /// Alignment of each state's first element: 16 f32 elements, a cache line of 64 bytes.
    pub const ALIGNMENT_ELEMENTS: usize = 16;

    /// The layout of states with the sizes `elements`, in the order of [`StateId`].
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

    /// The range of a page's elements that holds state `id`.
    ///
    /// # Panics
    ///
    /// If there is no such state.
    pub fn place(&self, id: StateId) -> Range<usize> {
        self.places[id.0 as usize].clone()
    }

    /// Number of f32 elements of a page, rounded up to [`ALIGNMENT_ELEMENTS`](Self::ALIGNMENT_ELEMENTS).
    pub fn page_elements(&self) -> usize {
        let end = self.places.last().map_or(0, |last| last.end);
        end.checked_next_multiple_of(Self::ALIGNMENT_ELEMENTS).unwrap_or(usize::MAX)
    }

    /// Bytes of a page: 4 for each element.
    pub fn page_bytes(&self) -> usize {
        self.page_elements().saturating_mul(4)
    }
}

/// Checks that `page` exists in `pool`, and that a state page has `bytes` bytes.
///
/// # Errors
///
/// [`DeviceError::UnknownStatePage`], [`DeviceError::StatePageBytes`].
pub fn check_state_page(pool: &dyn KvPool, page: PageId, bytes: usize) -> Result<(), DeviceError> {
    let (page, pages, expected) = (page.index(), pool.state_pages(), pool.spec().states.page_bytes());
    match () {
        () if page >= pages => Err(DeviceError::UnknownStatePage { page, pages }),
        () if bytes != expected => Err(DeviceError::StatePageBytes { found: bytes, expected }),
        () => Ok(()),
    }
}

/// Checks the state pages of segment number `number` of a step: all exist, none is used twice, and the rows fit.
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
    let capacity = pool.state_pages();
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

/// Checks that segments number `one` and `other` share no state page that either of them writes.
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
