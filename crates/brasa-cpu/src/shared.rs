//! A slice that the threads of a team write in disjoint parts.
//!
//! Threads that walk one program share its arena. Between two barriers each thread writes its own part and reads what was
//! finished before. The borrow checker cannot see that, so callers promise it.
#![expect(unsafe_code, reason = "disjoint writes of several threads into one slice")]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that several threads hold at once.
#[derive(Debug)]
pub struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: it is a `&mut [T]` whose accesses promise to be disjoint between threads.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: it is a `&mut [T]` whose accesses promise to be disjoint between threads; it hands out `&T` as well, hence `Sync`.
unsafe impl<T: Send + Sync> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares `slice` for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of `range`, for reading.
    ///
    /// # Safety
    ///
    /// No thread writes any of the elements while the result lives.
    ///
    /// # Panics
    ///
    /// If `range` reaches outside.
    pub unsafe fn get(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: in bounds by the check, not written meanwhile by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// The elements of `range`, for writing.
    ///
    /// # Safety
    ///
    /// No other view reads or writes any of the elements while the result lives.
    ///
    /// # Panics
    ///
    /// If `range` reaches outside.
    pub unsafe fn get_mut(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: in bounds by the check, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} of a shared slice of {} elements",
            self.len
        );
    }
}
