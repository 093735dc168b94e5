//! Answers: the running generations of a request, read as choices, and their cost.

pub(crate) mod choices;
pub(crate) mod generate;
pub(crate) mod logprobs;
pub(crate) mod usage;
