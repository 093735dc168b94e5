//! Derivatives: every rule against dual numbers, against differences, and against each other.

mod checks;
mod decoder;
mod graphs;
mod rules;
mod second;
