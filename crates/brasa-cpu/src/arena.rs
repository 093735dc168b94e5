//! The memory that a program's values live in, and how threads share it.
//!
//! All threads of a team run the same operation at the same time, and each writes its own region of the results.
//! A [`Region`] is a box: some columns of some rows. An [`ArenaAccess`] gives a thread views of regions. To make a
//! view is unsafe, because the arena cannot see what other threads do; operations get their views from a
//! [`Context`](crate::context::Context), which knows how results are shared out.
//!
//! A build with debug assertions remembers every view of an operation and panics if two collide. The tests of every
//! operation are therefore tests of its split among threads too.
#![expect(unsafe_code, reason = "hands regions of one allocation to several threads")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::memory::Memory;
use crate::shared::SharedSlice;

#[cfg(debug_assertions)]
use claims::Claims;

/// Bytes of every element of the arena; 16-bit values are kept as the f32 that they round to.
pub(crate) const ELEMENT_BYTES: usize = 4;

/// A box of an arena: `width` elements of each of `rows` rows. All fields count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// First element of the first row.
    pub offset: usize,
    /// Elements from the start of one row to the start of the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
    /// Number of rows.
    pub rows: usize,
}

impl Region {
    /// The part of the region in some of its rows.
    pub(crate) fn of_rows(self, rows: Range<usize>) -> Self {
        debug_assert!(rows.end <= self.rows, "rows {rows:?} of {self:?}");
        Self { offset: self.offset + rows.start * self.stride, rows: rows.len(), ..self }
    }

    /// The part of the region in some of its columns.
    pub(crate) fn of_columns(self, columns: Range<usize>) -> Self {
        debug_assert!(columns.end <= self.width, "columns {columns:?} of {self:?}");
        Self { offset: self.offset + columns.start, width: columns.len(), ..self }
    }

    /// One past the last element of the last row.
    pub(crate) fn end(&self) -> usize {
        if self.rows == 0 || self.width == 0 {
            self.offset
        } else {
            self.offset + (self.rows - 1) * self.stride + self.width
        }
    }

    /// True if no element of `other` lies before the first or after the last element of the region.
    pub(crate) fn encloses(&self, other: &Self) -> bool {
        other.rows == 0 || other.width == 0 || self.offset <= other.offset && other.end() <= self.end()
    }

    /// True if some element belongs to both regions.
    ///
    /// Regions of different strides count as overlapping if their spans do.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if self.end() <= other.offset || other.end() <= self.offset {
            return false;
        }
        let step = self.stride;
        if step == 0 || step != other.stride || self.width > step || other.width > step {
            return self.end() > self.offset && other.end() > other.offset;
        }
        // Same stride: compare columns, modulo the stride, then rows.
        (0..self.rows).any(|row| {
            let start = self.offset + row * step;
            let end = start + self.width;
            // The other's rows that could touch start..end.
            let first = start.saturating_sub(other.offset + other.width - 1).div_ceil(step);
            first < other.rows && other.offset + first * step < end
        })
    }
}

/// One allocation that holds every temporary value of a program.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: Memory,
    #[cfg(debug_assertions)]
    claims: Claims,
}

impl Arena {
    /// Allocates `elements` zeroed elements; `None` if the memory cannot be had.
    pub(crate) fn new(elements: usize) -> Option<Self> {
        Some(Self {
            memory: Memory::zeroed(elements.checked_mul(ELEMENT_BYTES)?)?,
            #[cfg(debug_assertions)]
            claims: Claims::default(),
        })
    }

    /// Bytes of the allocation.
    pub(crate) fn size_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// The elements of `range` while no thread runs.
    pub(crate) fn elements_mut<T: Element>(&mut self, range: Range<usize>) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory.all_mut::<f32>()[range])
    }

    /// Shares the arena with the threads of one run.
    pub(crate) fn share(&mut self) -> Shared<'_> {
        Shared {
            elements: SharedSlice::new(self.memory.all_mut()),
            #[cfg(debug_assertions)]
            claims: &self.claims,
        }
    }
}

/// An element type of the arena: f32 or u32.
pub(crate) trait Element: bytemuck::Pod {}
impl Element for f32 {}
impl Element for u32 {}

/// An arena while the threads of one run share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'a> {
    elements: SharedSlice<'a, f32>,
    #[cfg(debug_assertions)]
    claims: &'a Claims,
}

impl<'a> Shared<'a> {
    /// The access of thread `thread` during phase `phase` of the run. A phase lies between two barriers.
    pub(crate) fn access(self, thread: usize, phase: u64) -> ArenaAccess<'a> {
        #[cfg(not(debug_assertions))]
        let _ = (thread, phase);
        ArenaAccess {
            shared: self,
            #[cfg(debug_assertions)]
            thread,
            #[cfg(debug_assertions)]
            phase,
        }
    }
}

/// One thread's access to the arena during one phase of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaAccess<'a> {
    shared: Shared<'a>,
    #[cfg(debug_assertions)]
    thread: usize,
    #[cfg(debug_assertions)]
    phase: u64,
}

impl<'a> ArenaAccess<'a> {
    /// A view of a region for reading.
    ///
    /// # Safety
    ///
    /// While the view or a slice from it lives, no view for writing of any thread overlaps the region.
    ///
    /// # Panics
    ///
    /// If the region reaches outside the arena or its rows overlap.
    pub(crate) unsafe fn read<T: Element>(&self, region: Region) -> Rows<'a, T> {
        self.check(region);
        Rows {
            elements: self.shared.elements,
            region,
            element: PhantomData,
            #[cfg(debug_assertions)]
            _claim: std::sync::Arc::new(self.claim(region, false)),
        }
    }

    /// A view of a region for writing and reading.
    ///
    /// # Safety
    ///
    /// While the view or a slice from it lives, no other view of any thread overlaps the region. Other threads view it in a later
    /// phase only.
    ///
    /// # Panics
    ///
    /// If the region reaches outside the arena or its rows overlap.
    pub(crate) unsafe fn write<T: Element>(&self, region: Region) -> RowsMut<'a, T> {
        self.check(region);
        RowsMut {
            elements: self.shared.elements,
            region,
            element: PhantomData,
            #[cfg(debug_assertions)]
            _claim: self.claim(region, true),
        }
    }

    fn check(&self, region: Region) {
        assert!(
            region.end() <= self.shared.elements.len() && (region.rows <= 1 || region.stride >= region.width),
            "{region:?} of an arena of {} elements",
            self.shared.elements.len()
        );
    }

    #[cfg(debug_assertions)]
    fn claim(&self, region: Region, writes: bool) -> claims::Claim<'a> {
        self.shared.claims.claim(region, writes, self.thread, self.phase)
    }
}

/// The rows of a region, for reading.
#[derive(Clone, Debug)]
pub(crate) struct Rows<'a, T> {
    elements: SharedSlice<'a, f32>,
    region: Region,
    element: PhantomData<T>,
    #[cfg(debug_assertions)]
    _claim: std::sync::Arc<claims::Claim<'a>>,
}

/// The rows of a region, for writing and reading.
#[derive(Debug)]
pub(crate) struct RowsMut<'a, T> {
    elements: SharedSlice<'a, f32>,
    region: Region,
    element: PhantomData<T>,
    #[cfg(debug_assertions)]
    _claim: claims::Claim<'a>,
}

impl<T: Element> Rows<'_, T> {
    /// The region that the rows belong to.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// Row `row` of the region.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub(crate) fn row(&self, row: usize) -> &[T] {
        assert!(row < self.region.rows, "row {row} of {:?}", self.region);
        let start = self.region.offset + row * self.region.stride;
        // SAFETY: nothing writes the region while the view lives, by the contract of `ArenaAccess::read`.
        bytemuck::cast_slice(unsafe { self.elements.get(start..start + self.region.width) })
    }

    /// All elements from the first to the last, with those between the rows.
    ///
    /// # Safety
    ///
    /// While the result lives, no view for writing overlaps the elements between the rows.
    pub(crate) unsafe fn spanning(&self) -> &[T] {
        // SAFETY: nothing writes the rows by the contract of `ArenaAccess::read`, nor the gaps by the caller's promise.
        bytemuck::cast_slice(unsafe { self.elements.get(self.region.offset..self.region.end()) })
    }
}

impl<'a, T: Element> RowsMut<'a, T> {
    /// Row `row` of the region, for writing.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.region.rows, "row {row} of {:?}", self.region);
        let start = self.region.offset + row * self.region.stride;
        // SAFETY: no other view overlaps the region, by the contract of `ArenaAccess::write`; the borrow of `self` keeps
        // two slices of this view apart.
        bytemuck::cast_slice_mut(unsafe { self.elements.get_mut(start..start + self.region.width) })
    }

    /// All elements of the arena, for kernels that write the region through pointers.
    pub(crate) fn elements(&self) -> SharedSlice<'a, f32> {
        self.elements
    }
}

/// Debug builds remember which thread viewed which region in the current phase.
#[cfg(debug_assertions)]
mod claims {
    use std::sync::{Mutex, PoisonError};

    use super::Region;

    #[derive(Debug, Default)]
    pub(super) struct Claims {
        /// The current phase and the views that it has had.
        current: Mutex<(u64, Vec<Entry>)>,
    }

    #[derive(Debug)]
    struct Entry {
        region: Region,
        writes: bool,
        thread: usize,
        live: bool,
    }

    /// The claim of a view to a region. Dropping it ends the claim for this thread; other threads stay excluded until the
    /// next phase.
    #[derive(Debug)]
    pub(super) struct Claim<'a> {
        claims: &'a Claims,
        phase: u64,
        index: usize,
    }

    impl Claims {
        pub(super) fn claim(&self, region: Region, writes: bool, thread: usize, phase: u64) -> Claim<'_> {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.0 != phase {
                *current = (phase, std::mem::take(&mut current.1));
                current.1.clear();
            }
            // A thread's finished claims on the same region say nothing new.
            let known = current
                .1
                .iter()
                .position(|entry| !entry.live && (entry.region, entry.thread) == (region, thread));
            for (index, entry) in current.1.iter().enumerate() {
                let collides = Some(index) != known
                    && (entry.writes || writes)
                    && (entry.thread != thread || entry.live)
                    && entry.region.overlaps(&region);
                assert!(
                    !collides,
                    "thread {thread} {} {region:?}, which thread {} {}",
                    if writes { "writes" } else { "reads" },
                    entry.thread,
                    if entry.writes { "writes" } else { "reads" },
                );
            }
            let index = known.unwrap_or(current.1.len());
            if let Some(known) = known {
                let entry = &mut current.1[known];
                entry.live = true;
                entry.writes |= writes;
            } else {
                current.1.push(Entry { region, writes, thread, live: true });
            }
            Claim { claims: self, phase, index }
        }
    }

    impl Drop for Claim<'_> {
        fn drop(&mut self) {
            let mut current = self.claims.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.0 == self.phase
                && let Some(entry) = current.1.get_mut(self.index)
            {
                entry.live = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: usize, stride: usize, width: usize, rows: usize) -> Region {
        Region { offset, stride, width, rows }
    }

    #[test]
    fn boxes_overlap_where_they_share_an_element() {
        let left = region(0, 10, 4, 5);
        assert!(!left.overlaps(&region(4, 10, 6, 5)));
        assert!(left.overlaps(&region(3, 10, 6, 5)));
        assert!(!left.overlaps(&region(50, 10, 4, 1)));
        assert!(left.overlaps(&region(20, 10, 4, 1)));
        assert!(left.overlaps(&region(2, 1, 1, 1)));
        assert!(!left.overlaps(&region(8, 10, 3, 1).of_columns(0..2)));
        assert!(left.overlaps(&region(8, 10, 3, 1)));
    }

    #[test]
    fn rows_are_views() {
        let mut arena = Arena::new(64).unwrap();
        let shared = arena.share();
        let access = shared.access(0, 1);
        // SAFETY: the only view.
        let mut all = unsafe { access.write::<f32>(region(0, 8, 8, 4)) };
        for row in 0..4 {
            all.row(row).fill(row as f32);
        }
        drop(all);
        // SAFETY: nothing writes any more.
        let columns = unsafe { access.read::<f32>(region(0, 8, 8, 4).of_columns(2..4).of_rows(1..3)) };
        assert_eq!(columns.row(1), [2.0, 2.0]);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn colliding_threads_are_caught() {
        let mut arena = Arena::new(64).unwrap();
        let shared = arena.share();
        let caught = std::panic::catch_unwind(|| {
            let (one, other) = (shared.access(0, 1), shared.access(1, 1));
            // SAFETY: the views are never used.
            unsafe {
                drop(one.write::<f32>(region(0, 8, 8, 2)));
                drop(other.read::<f32>(region(8, 8, 8, 1)));
            }
        });
        assert!(caught.is_err());
    }
}
