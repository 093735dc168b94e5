//! Tests of operations, schedules, steps and sampling.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention_golden;
mod capabilities;
mod chain;
mod derivative;
mod inference;
mod low_rank;
mod memory;
mod mixtures_golden;
mod mock;
mod numbers;
mod operations;
mod operations_golden;
mod print;
mod properties;
mod recurrences_golden;
mod reference_backend;
mod rewrite;
mod sampling;
mod sampling_golden;
mod schedule;
mod shift;
mod small_model;
mod weight_parts;
