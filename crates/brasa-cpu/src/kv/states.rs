//! Pages of recurrent states.

use brasa_graph::StateLayout;
use brasa_graph::device::DeviceError;
use brasa_graph::step::PageId;

use crate::memory::Memory;

/// State pages, each one allocation of all states as f32 ([`StateLayout`]).
#[derive(Debug, Default)]
pub(super) struct States {
    pub(super) layout: StateLayout,
    pub(super) pages: Vec<Memory>,
}

impl States {
    pub(super) fn new(layout: StateLayout) -> Self {
        Self { layout, pages: Vec::new() }
    }

    /// Grows to at least `pages` pages of zeros.
    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), DeviceError> {
        let (before, page_bytes) = (self.pages.len(), self.layout.page_bytes());
        let more = pages.saturating_sub(before);
        let refused = || DeviceError::OutOfMemory {
            bytes: (more as u64).saturating_mul(page_bytes as u64),
            what: format!("{more} state pages"),
        };
        self.pages.try_reserve(more).map_err(|_| refused())?;
        for _ in 0..more {
            let Some(page) = Memory::zeroed(page_bytes) else {
                self.pages.truncate(before);
                return Err(refused());
            };
            self.pages.push(page);
        }
        Ok(())
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
