//! Limits of a device that are known before anything is uploaded.

use super::error::DeviceError;
use super::pool::KvType;
use crate::{Graph, Op};

/// Limits of a device. The device refuses graphs and pools beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Element types of keys and values that the device's pools can store.
    pub kv_types: &'static [KvType],
    /// Most elements of an attention head; `None` for no limit.
    pub widest_head: Option<usize>,
    /// Most experts that a router chooses from; `None` for no limit.
    pub most_experts: Option<usize>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { kv_types: KvType::ALL, widest_head: None, most_experts: None }
    }
}

impl Capabilities {
    /// Checks `graph` against these limits, with keys and values of type `dtype`.
    ///
    /// The check needs no uploaded weights. [`Backend::compile`](super::Backend::compile) and
    /// [`Backend::kv_pool`](super::Backend::kv_pool) refuse with the same words, but later; they may also refuse for reasons that are
    /// not limits.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], naming `device` and the limit.
    pub fn check(&self, device: &str, graph: &Graph, dtype: KvType) -> Result<(), DeviceError> {
        let refuse = |what: String| Err(DeviceError::Unsupported { device: device.into(), what });
        if !self.kv_types.contains(&dtype) && !graph.cache_groups().is_empty() {
            return refuse(format!("keys and values of type {dtype:?}"));
        }
        for node in graph.nodes() {
            let width = || node.inputs.first().and_then(|&input| graph.value(input).shape.width());
            match (&node.op, width()) {
                (Op::Attention(_), Some(width)) => self.check_head(width).or_else(refuse)?,
                (Op::RouterTopK(_), Some(experts)) => self.check_experts(experts).or_else(refuse)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the number of elements of an attention head against [`widest_head`](Self::widest_head).
    ///
    /// # Errors
    ///
    /// The number and the limit, as text for [`DeviceError::Unsupported`].
    pub fn check_head(&self, elements: usize) -> Result<(), String> {
        match self.widest_head {
            Some(most) if elements > most => Err(format!("heads of {elements}, at most {most}")),
            _ => Ok(()),
        }
    }

    /// Checks the number of experts that a router chooses from against [`most_experts`](Self::most_experts).
    ///
    /// # Errors
    ///
    /// The number and the limit, as text for [`DeviceError::Unsupported`].
    pub fn check_experts(&self, experts: usize) -> Result<(), String> {
        match self.most_experts {
            Some(most) if experts > most => Err(format!("{experts} experts, at most {most}")),
            _ => Ok(()),
        }
    }
}
