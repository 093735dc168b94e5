//! Weights and pools that no device accepts.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::{DeviceError, KvPool, KvPoolSpec, UploadProgress, WeightSet};
use crate::step::PageId;
use crate::{Graph, GroupId, Weight};

/// A set of weights of a type that no device accepts.
pub(super) struct ForeignWeights(pub Arc<dyn WeightSet>);

impl WeightSet for ForeignWeights {
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        self.0.add(graph, progress)
    }

    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError> {
        self.0.read(weight)
    }

    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError> {
        self.0.write(weight, values)
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A pool of a type that no device accepts.
pub(super) struct ForeignPool(pub Box<dyn KvPool>);

impl KvPool for ForeignPool {
    fn spec(&self) -> &KvPoolSpec {
        self.0.spec()
    }

    fn capacity(&self, group: GroupId) -> usize {
        self.0.capacity(group)
    }

    fn reserve(&mut self, group: GroupId, pages: usize) -> Result<(), DeviceError> {
        self.0.reserve(group, pages)
    }

    fn page_bytes(&self, group: GroupId) -> u64 {
        self.0.page_bytes(group)
    }

    fn copy_page(
        &mut self,
        group: GroupId,
        from: PageId,
        to: PageId,
        positions: usize,
    ) -> Result<(), DeviceError> {
        self.0.copy_page(group, from, to, positions)
    }

    fn read_page(&self, group: GroupId, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: GroupId, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_page(group, page, bytes)
    }

    fn state_pages(&self) -> usize {
        self.0.state_pages()
    }

    fn reserve_state_pages(&mut self, pages: usize) -> Result<(), DeviceError> {
        self.0.reserve_state_pages(pages)
    }

    fn state_page_bytes(&self) -> u64 {
        self.0.state_page_bytes()
    }

    fn read_state_page(&self, page: PageId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_state_page(page, bytes)
    }

    fn write_state_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_state_page(page, bytes)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
