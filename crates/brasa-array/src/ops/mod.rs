//! Operations on arrays, by kind.

mod elementwise;
mod operators;
mod reduce;
mod shape;
