//! Weights on a device.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::error::DeviceError;
use crate::{Graph, Weight};

/// How far an upload has come.
#[derive(Clone, Copy, Debug)]
pub struct UploadProgress {
    /// Stored bytes that are ready.
    pub done_bytes: u64,
    /// Stored bytes in all.
    pub total_bytes: u64,
}

/// Weights on one device, uploaded and repacked once and shared by programs.
///
/// Weights are told apart by identity: graphs that share a weight by [`Arc`] share its upload.
pub trait WeightSet: Send + Sync {
    /// Uploads and repacks the weights of `graph` that are not there yet.
    ///
    /// `progress` is called as weights become ready, and may cancel. It counts the bytes of this call only.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Cancelled`], [`DeviceError::Unsupported`]; weights that were already uploaded
    /// stay.
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError>;

    /// The elements of a weight, `[rows, row_len]`, decoded exactly to f32.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for a weight that was not added, [`DeviceError::OutOfMemory`].
    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError>;

    /// Writes a weight's elements, `[rows, row_len]`, rounded to its stored formats. Programs see them from their next step on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] for a weight that was not added or is quantised, and for another number of elements;
    /// [`DeviceError::OutOfMemory`]. The weight is unchanged then.
    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError>;

    /// Bytes of the set's weights on the device.
    fn size_bytes(&self) -> u64;

    /// Converts the set to its own type, for the device that made it.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}
