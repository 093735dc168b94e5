//! The memory that a program's values live in, and how threads share it.
//!
//! All threads of a team run the same operation at the same time, each writing its own region of the operation's
//! results. A [`Region`] is a box: some columns of some rows. Threads ask an [`ArenaAccess`] for views of regions;
//! a build with debug assertions remembers every view of an operation and panics where two collide, so that the
//! tests of every operation are also tests of its split among threads.
#![expect(unsafe_code, reason = "hands regions of one allocation to several threads")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::memory::{ALIGNMENT_BYTES, Memory};
use crate::shared::SharedSlice;

#[cfg(debug_assertions)]
use claims::Claims;

/// Bytes of every element of the arena; 16-bit values are kept as the f32 that they round to.
pub(crate) const ELEMENT_BYTES: usize = 4;
/// Values begin on cache lines.
pub(crate) const ALIGNMENT: usize = ALIGNMENT_BYTES / ELEMENT_BYTES;

/// `width` elements of each of `rows` rows, `stride` apart, the first beginning at `offset`. In elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub offset: usize,
    pub stride: usize,
    pub width: usize,
    pub rows: usize,
}

impl Region {
    /// Some of its rows.
    pub(crate) fn of_rows(self, rows: Range<usize>) -> Self {
        debug_assert!(rows.end <= self.rows, "rows {rows:?} of {self:?}");
        Self { offset: self.offset + rows.start * self.stride, rows: rows.len(), ..self }
    }

    /// Some of its columns.
    pub(crate) fn of_columns(self, columns: Range<usize>) -> Self {
        debug_assert!(columns.end <= self.width, "columns {columns:?} of {self:?}");
        Self { offset: self.offset + columns.start, width: columns.len(), ..self }
    }

    /// One past its last element.
    fn end(&self) -> usize {
        if self.rows == 0 || self.width == 0 {
            self.offset
        } else {
            self.offset + (self.rows - 1) * self.stride + self.width
        }
    }

    #[cfg(any(debug_assertions, test))]
    fn overlaps(&self, other: &Self) -> bool {
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

/// One allocation that holds every temporary of a program.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: Memory,
    #[cfg(debug_assertions)]
    claims: Claims,
}

impl Arena {
    /// Room for `elements` elements, zeroed; `None` where they cannot be had.
    pub(crate) fn new(elements: usize) -> Option<Self> {
        Some(Self {
            memory: Memory::zeroed(elements.checked_mul(ELEMENT_BYTES)?)?,
            #[cfg(debug_assertions)]
            claims: Claims::default(),
        })
    }

    /// Bytes held.
    pub(crate) fn size_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// The elements of `range`, exclusively.
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

/// f32 or u32.
pub(crate) trait Element: bytemuck::Pod {}
impl Element for f32 {}
impl Element for u32 {}

/// An arena during a run; nobody else holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'a> {
    elements: SharedSlice<'a, f32>,
    #[cfg(debug_assertions)]
    claims: &'a Claims,
}

impl<'a> Shared<'a> {
    /// What thread `thread` sees of operation number `operation` of the run.
    ///
    /// # Safety
    ///
    /// Between a thread's last use of an access and any thread's first use of an access of a later operation lies a
    /// barrier, and the threads of one operation write disjoint regions, which no one reads meanwhile.
    pub(crate) unsafe fn access(self, thread: usize, operation: u64) -> ArenaAccess<'a> {
        #[cfg(not(debug_assertions))]
        let _ = (thread, operation);
        ArenaAccess {
            shared: self,
            #[cfg(debug_assertions)]
            thread,
            #[cfg(debug_assertions)]
            operation,
        }
    }
}

/// One thread's access to the arena during one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaAccess<'a> {
    shared: Shared<'a>,
    #[cfg(debug_assertions)]
    thread: usize,
    #[cfg(debug_assertions)]
    operation: u64,
}

impl<'a> ArenaAccess<'a> {
    /// A region for reading.
    pub(crate) fn read<T: Element>(&self, region: Region) -> Rows<'a, T> {
        self.check(region);
        Rows {
            elements: self.shared.elements,
            region,
            element: PhantomData,
            #[cfg(debug_assertions)]
            _claim: std::sync::Arc::new(self.claim(region, false)),
        }
    }

    /// A region for writing, which may be read through the result as well.
    pub(crate) fn write<T: Element>(&self, region: Region) -> RowsMut<'a, T> {
        self.check(region);
        RowsMut {
            elements: self.shared.elements,
            region,
            element: PhantomData,
            #[cfg(debug_assertions)]
            _claim: self.claim(region, true),
        }
    }

    /// The arena's elements, for code that writes regions by its own unsafe means.
    pub(crate) fn elements(&self) -> SharedSlice<'a, f32> {
        self.shared.elements
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
        self.shared.claims.claim(region, writes, self.thread, self.operation)
    }
}

/// Rows for reading.
#[derive(Clone, Debug)]
pub(crate) struct Rows<'a, T> {
    elements: SharedSlice<'a, f32>,
    region: Region,
    element: PhantomData<T>,
    #[cfg(debug_assertions)]
    _claim: std::sync::Arc<claims::Claim<'a>>,
}

/// Rows for writing.
#[derive(Debug)]
pub(crate) struct RowsMut<'a, T> {
    elements: SharedSlice<'a, f32>,
    region: Region,
    element: PhantomData<T>,
    #[cfg(debug_assertions)]
    _claim: claims::Claim<'a>,
}

impl<T: Element> Rows<'_, T> {
    /// Where they are.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// Row `row`.
    pub(crate) fn row(&self, row: usize) -> &[T] {
        assert!(row < self.region.rows, "row {row} of {:?}", self.region);
        let start = self.region.offset + row * self.region.stride;
        // SAFETY: nobody writes the region during this operation, as `Shared::access` was promised.
        bytemuck::cast_slice(unsafe { self.elements.get(start..start + self.region.width) })
    }

    /// From the first element to the last, whatever lies between rows included.
    ///
    /// # Safety
    ///
    /// Nobody writes what lies between the rows either.
    pub(crate) unsafe fn spanning(&self) -> &[T] {
        // SAFETY: as in `row`, and by the caller's promise.
        bytemuck::cast_slice(unsafe { self.elements.get(self.region.offset..self.region.end()) })
    }
}

impl<'a, T: Element> RowsMut<'a, T> {
    /// Where they are.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// Row `row`.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.region.rows, "row {row} of {:?}", self.region);
        let start = self.region.offset + row * self.region.stride;
        // SAFETY: only this thread uses the region during this operation, as `Shared::access` was promised, and the
        // borrow of `self` keeps this thread from using it twice.
        bytemuck::cast_slice_mut(unsafe { self.elements.get_mut(start..start + self.region.width) })
    }

    /// The arena's elements, for code that writes the region by its own unsafe means.
    pub(crate) fn elements(&self) -> SharedSlice<'a, f32> {
        self.elements
    }
}

/// The memory of debug builds for who used which region.
#[cfg(debug_assertions)]
mod claims {
    use std::sync::{Mutex, PoisonError};

    use super::Region;

    #[derive(Debug, Default)]
    pub(super) struct Claims {
        current: Mutex<(u64, Vec<Entry>)>,
    }

    #[derive(Debug)]
    struct Entry {
        region: Region,
        writes: bool,
        thread: usize,
        live: bool,
    }

    /// A view's right to a region; ends when dropped, but other threads are kept off until the next operation.
    #[derive(Debug)]
    pub(super) struct Claim<'a> {
        claims: &'a Claims,
        operation: u64,
        index: usize,
    }

    impl Claims {
        pub(super) fn claim(&self, region: Region, writes: bool, thread: usize, operation: u64) -> Claim<'_> {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.0 != operation {
                *current = (operation, std::mem::take(&mut current.1));
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
            Claim { claims: self, operation, index }
        }
    }

    impl Drop for Claim<'_> {
        fn drop(&mut self) {
            let mut current = self.claims.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.0 == self.operation
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
        // SAFETY: one thread; views of one access are dropped before they collide.
        let access = unsafe { shared.access(0, 1) };
        let mut all = access.write::<f32>(region(0, 8, 8, 4));
        for row in 0..4 {
            all.row(row).fill(row as f32);
        }
        drop(all);
        let columns = access.read::<f32>(region(0, 8, 8, 4).of_columns(2..4).of_rows(1..3));
        assert_eq!(columns.row(1), [2.0, 2.0]);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn colliding_threads_are_caught() {
        let mut arena = Arena::new(64).unwrap();
        let shared = arena.share();
        let caught = std::panic::catch_unwind(|| {
            // SAFETY: the views are never used.
            let (one, other) = unsafe { (shared.access(0, 1), shared.access(1, 1)) };
            drop(one.write::<f32>(region(0, 8, 8, 2)));
            drop(other.read::<f32>(region(8, 8, 8, 1)));
        });
        assert!(caught.is_err());
    }
}
