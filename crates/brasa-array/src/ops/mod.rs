//! Operations on arrays, by kind.

mod elementwise;
mod operators;
mod product;
mod reduce;
mod scan;
mod shape;
