//! The pages of the mock device: those of the reference, with copies that fail on request.

use std::any::Any;

use crate::GroupId;
use crate::device::{DeviceError, KvPool, KvPoolSpec, LostPart};
use crate::step::PageId;

use super::mock::Successes;

/// A pool of the reference device.
pub(super) struct MockPool {
    pool: Box<dyn KvPool>,
    /// Number of copies of pages until one fails.
    copies: Successes,
}

impl MockPool {
    /// Wraps an empty pool of the reference device.
    pub(super) fn new(pool: Box<dyn KvPool>, copies: Successes) -> Self {
        Self { pool, copies }
    }
}

impl KvPool for MockPool {
    fn spec(&self) -> &KvPoolSpec {
        self.pool.spec()
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.pool.capacity(group)
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        self.pool.reserve(group, pages)
    }

    fn page_bytes(&self, group: GroupId) -> u64 {
        self.pool.page_bytes(group)
    }

    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        positions: usize,
    ) -> Result<(), DeviceError> {
        if self.copies.take() {
            self.pool.copy_page(group, from, to, positions)
        } else {
            Err(DeviceError::Lost {
                device: "mock".into(),
                part: LostPart::Program,
                reason: "it was told to fail to copy a page".into(),
            })
        }
    }

    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.pool.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.pool.write_page(group, page, bytes)
    }

    fn state_pages(&self) -> usize {
        self.pool.state_pages()
    }

    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        self.pool.reserve_state_pages(pages)
    }

    fn state_page_bytes(&self) -> u64 {
        self.pool.state_page_bytes()
    }

    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.pool.read_state_page(page, bytes)
    }

    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.pool.write_state_page(page, bytes)
    }

    /// The wrapped pool of the reference device, on which its programs run.
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self.pool.as_any_mut()
    }
}
