//! Pages of recurrent states.

use std::ops::Range;

use brasa_graph::device::DeviceError;
use brasa_graph::step::PageId;
use brasa_graph::{StateId, StateLayout};

use super::SharedKv;
use super::add_pages;
use crate::memory::Memory;

/// State pages. Each page is one allocation and holds all states as f32, as [`StateLayout`] places them.
#[derive(Debug, Default)]
pub(super) struct States {
    pub(super) layout: StateLayout,
    pub(super) pages: Vec<Memory>,
}

impl States {
    pub(super) fn new(layout: StateLayout) -> Self {
        Self { layout, pages: Vec::new() }
    }

    /// Grows to at least `pages` pages. New pages hold zeros.
    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), DeviceError> {
        add_pages(&mut self.pages, pages, self.layout.page_bytes(), "state pages")
    }

    /// Copies a page, which must exist, to `bytes`.
    pub(super) fn read(&self, page: PageId, bytes: &mut [u8]) {
        let page = &self.pages[page.index()];
        // SAFETY: threads write pages while `share` borrows the pool mutably, so not now.
        bytes.copy_from_slice(unsafe { page.get(0..page.len_bytes()) });
    }

    /// Overwrites a page, which must exist, with `bytes`.
    pub(super) fn write(&mut self, page: PageId, bytes: &[u8]) {
        self.pages[page.index()].all_mut().copy_from_slice(bytes);
    }
}

/// Some columns of a matrix of a state, on all state pages of a pool, while one thread alone works on them.
#[derive(Debug)]
pub(crate) struct StateColumns<'a> {
    pages: &'a [Memory],
    /// The elements of a page that hold the matrix.
    matrix: Range<usize>,
    /// Elements from one row of the matrix to the next.
    stride: usize,
    columns: Range<usize>,
}

impl<'a> SharedKv<'a> {
    /// Columns `columns` of matrix number `number` of state `state`, which consists of matrices of `rows` rows and `width` columns.
    ///
    /// # Safety
    ///
    /// While the result lives, no other view writes these columns of any page, and no other view reads them of a page to which the
    /// result is used to write.
    ///
    /// # Panics
    ///
    /// If the state has no such matrix or the matrix no such columns.
    pub(crate) unsafe fn state_columns(
        self,
        state: StateId,
        number: usize,
        [rows, width]: [usize; 2],
        columns: Range<usize>,
    ) -> StateColumns<'a> {
        let place = self.states.layout.place(state);
        let start = place.start + number * rows * width;
        let matrix = start..start + rows * width;
        assert!(
            matrix.end <= place.end && columns.end <= width,
            "columns {columns:?} of {width}, matrix {number}"
        );
        StateColumns { pages: &self.states.pages, matrix, stride: width, columns }
    }
}

impl StateColumns<'_> {
    /// The columns of row `row` of the matrix in `page`.
    #[inline(always)]
    pub(crate) fn read(&self, page: u32, row: usize) -> &[f32] {
        // SAFETY: nothing else writes the columns while the view lives, by the contract of `state_columns`, and `write` borrows it
        // mutably.
        unsafe { self.pages[page as usize].get(self.place(row)) }
    }

    /// The columns of row `row` of the matrix in `page`, for writing.
    #[inline(always)]
    pub(crate) fn write(&mut self, page: u32, row: usize) -> &mut [f32] {
        // SAFETY: nothing else reads or writes the columns of this page while the view lives, by the contract of `state_columns`,
        // and the view is borrowed mutably.
        unsafe { self.pages[page as usize].get_mut(self.place(row)) }
    }

    #[inline(always)]
    fn place(&self, row: usize) -> Range<usize> {
        let start = self.matrix.start + row * self.stride;
        assert!(start < self.matrix.end, "row {row} of a matrix of a state");
        start + self.columns.start..start + self.columns.end
    }
}
