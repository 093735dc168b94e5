//! What a request gets: its running generations, read as choices, and what they cost.

pub(crate) mod choices;
pub(crate) mod generate;
pub(crate) mod logprobs;
pub(crate) mod usage;
