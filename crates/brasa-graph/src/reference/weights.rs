//! Weights of the reference device: arrays of f32.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

use crate::device::{DeviceError, UploadProgress, WeightSet};
use crate::{Graph, Weight, WeightMap};

use super::{Array, decode_weight};

/// A weight's elements, which may be replaced between two steps.
pub(super) type Slot = RwLock<Arc<Array>>;

/// Weights decoded to f32, by the identity of the weight.
#[derive(Debug, Default)]
pub(super) struct ReferenceWeights {
    slots: WeightMap<Slot>,
}

impl ReferenceWeights {
    /// The slots of the graph's weights, in order of their ids.
    pub(super) fn slots(&self, graph: &Graph) -> Result<Vec<Arc<Slot>>, DeviceError> {
        graph.weights().iter().map(|weight| self.slot(weight)).collect()
    }

    fn slot(&self, weight: &Arc<Weight>) -> Result<Arc<Slot>, DeviceError> {
        self.slots.get(weight).ok_or_else(|| DeviceError::not_added("reference", weight))
    }
}

/// The present elements of a slot.
pub(super) fn elements(slot: &Slot) -> Arc<Array> {
    Arc::clone(&slot.read().unwrap_or_else(PoisonError::into_inner))
}

impl WeightSet for ReferenceWeights {
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        let missing = graph.weights().iter().filter(|weight| self.slots.get(weight).is_none());
        let missing: Vec<&Arc<Weight>> = missing.collect();
        let total_bytes = missing.iter().map(|weight| weight.stored_bytes()).sum();
        let mut done_bytes = 0;
        for weight in missing {
            self.slots.entry(weight, || decode_weight(weight).map(|array| RwLock::new(Arc::new(array))))?;
            done_bytes += weight.stored_bytes();
            if progress(UploadProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled);
            }
        }
        Ok(())
    }

    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError> {
        Ok(elements(&*self.slot(weight)?).floats().to_vec())
    }

    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError> {
        let slot = self.slot(weight)?;
        let written = weight.with_values(values).map_err(|error| DeviceError::Unsupported {
            device: "reference".into(),
            what: error.to_string(),
        })?;
        let array = Arc::new(decode_weight(&written)?);
        *slot.write().unwrap_or_else(PoisonError::into_inner) = array;
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.slots.values().iter().map(|slot| elements(slot).data.len() as u64 * 4).sum()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
