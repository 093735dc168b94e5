//! Answers: running generations, read as choices, and their costs.

pub(crate) mod choices;
pub(crate) mod generate;
pub(crate) mod logprobs;
pub(crate) mod usage;
