//! Failed steps, and the parts at fault.

use std::fmt;

use brasa_graph::device::DeviceError;

use super::SequenceChain;
use crate::EngineError;

/// A failed step. The sequences of its parts are unchanged, except those that
/// [`Executor::run_reading`](crate::Executor::run_reading) had already computed.
#[derive(Clone, Debug, PartialEq)]
pub struct StepError {
    /// The reason of the failure.
    pub error: EngineError,
    /// Numbers of the parts at fault, or of those that may be.
    pub parts: Vec<usize>,
    /// True if each of `parts` is at fault. False if one of them is and the device did not say which.
    pub is_certain: bool,
}

impl StepError {
    /// The error of part number `part` alone.
    pub(crate) fn of(part: usize, error: impl Into<EngineError>) -> Self {
        Self { error: error.into(), parts: vec![part], is_certain: true }
    }

    /// An error for parts that make no sense; `what` describes the mistake.
    pub(super) fn senseless(parts: Vec<usize>, what: String) -> Self {
        Self { error: EngineError::Options(what), parts, is_certain: true }
    }

    /// The device's error for a step of `parts`.
    pub(crate) fn among(parts: Vec<usize>, error: DeviceError) -> Self {
        let is_certain = parts.len() == 1;
        Self { error: error.into(), parts, is_certain }
    }

    /// The error with other part numbers: part *i* becomes part `numbers[i]`.
    pub(super) fn renumbered(mut self, numbers: &[usize]) -> Self {
        self.parts.iter_mut().for_each(|part| *part = numbers[*part]);
        self
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for StepError {}

impl From<StepError> for EngineError {
    fn from(failed: StepError) -> Self {
        failed.error
    }
}

/// Refuses chains that compute no rows, more rows than their sequence lacks tokens, or draw no token.
pub(super) fn check(parts: &[SequenceChain<'_>]) -> Result<(), StepError> {
    for (number, part) in parts.iter().enumerate() {
        let pending = part.tokens.len().checked_sub(part.sequence.tokens.len());
        let pending = pending.filter(|&pending| part.rows > 0 && part.rows <= pending);
        if pending.is_none() || part.limit == 0 {
            let what = format!(
                "part {number} of a chain computes {} rows and draws {} tokens, behind {} of {} tokens",
                part.rows,
                part.limit,
                part.sequence.tokens.len(),
                part.tokens.len()
            );
            return Err(StepError::senseless(vec![number], what));
        }
    }
    Ok(())
}
