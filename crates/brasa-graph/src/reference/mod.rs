//! The reference interpreter: runs every graph in the simplest way.
//!
//! Every device and every fusion is tested against it, so its one aim is to be obviously right. Each operation's reference lives
//! beside its struct in [`op`](crate::op) and reads like its formula; arrays are dense and row-major; views copy; nothing is
//! fused, planned or threaded. Every sum is taken in an order that depends only on its length, so a row's result never depends on
//! what else a step holds.
//!
//! Operations are written once for every kind of [`Number`]: `f32` as devices compute, `f64` where rounding would hide a
//! mistake, and [`Dual`] for exact derivatives.
//!
//! [`ReferenceBackend`] implements the device contract with the interpreter, with paged KV and checked steps, so that models and
//! engines can be tested against it: slow, but with the same answers on every machine.

mod apply;
mod array;
mod backend;
mod dual;
mod env;
mod erf;
mod interpreter;
mod kv;
mod kv_codec;
mod number;
mod step_kv;
pub(crate) mod sums;
mod weights;

pub use apply::apply;
pub use array::{Array, Data};
pub use backend::ReferenceBackend;
pub use dual::Dual;
pub use env::SegmentRows;
pub(crate) use env::{Env, Kv};
pub use interpreter::{decode_weight, evaluate, evaluate_in};
pub use kv::ReferencePool;
pub use number::Number;
