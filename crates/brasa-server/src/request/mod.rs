//! Reading of requests: bodies within bounds, fields that are checked, and the prompt, grammar and options that they make.

pub(crate) mod adapters;
pub(crate) mod body;
pub(crate) mod constraint;
pub(crate) mod conversation;
pub(crate) mod custom;
pub(crate) mod defaults;
pub(crate) mod fields;
pub(crate) mod fill;
pub(crate) mod json;
pub(crate) mod known;
pub(crate) mod prompt;
pub(crate) mod sampling;
pub(crate) mod token_limits;
