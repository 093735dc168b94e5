//! Reads requests: checks the fields, and makes a prompt, a grammar and generation options of them.

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
