//! The host memory of a training run.

use crate::optimizer::{Form, Rule};

/// Bytes of host memory that a run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes of the learned values, in f32.
    pub values_bytes: u64,
    /// Bytes of the gradients.
    pub gradients_bytes: u64,
    /// Bytes of the optimizer's moments.
    pub moments_bytes: u64,
}

impl MemoryPlan {
    /// The memory for arrays of these forms, with the moments of `rule`.
    pub(crate) fn new(forms: impl Iterator<Item = Form>, rule: &Rule) -> Self {
        let mut plan = Self { values_bytes: 0, gradients_bytes: 0, moments_bytes: 0 };
        for form in forms {
            let bytes = 4 * form.count() as u64;
            plan.values_bytes += bytes;
            plan.gradients_bytes += bytes;
            plan.moments_bytes += rule.moment_bytes(form);
        }
        plan
    }

    /// Bytes of all parts together.
    pub fn total_bytes(&self) -> u64 {
        self.values_bytes + self.gradients_bytes + self.moments_bytes
    }
}
