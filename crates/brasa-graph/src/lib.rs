//! The typed graph of a model, and the contract that devices implement.
//!
//! A model is described once, as a [`Graph`] of documented operations over typed values. The same graph is
//! fused into a schedule, laid out into one arena by the memory plan, compiled and replayed
//! by a [`Backend`](device::Backend), and run by the slow, obviously right reference interpreter
//! that every device is tested against.
//!
//! This crate knows operations and steps. It does not know model families, files' configurations, processors
//! or text.

mod builder;
mod error;
pub mod fuse;
mod graph;
pub mod op;
mod value;
mod weight;

pub mod device;
pub mod plan;
pub mod print;
pub mod reference;
pub mod sampling;
mod schedule;
pub mod step;
mod step_rules;
pub mod testing;

pub use builder::Builder;
pub use error::GraphError;
pub use graph::{Graph, Node, NodeId, View};
pub use op::Op;
pub use schedule::{Fused, Item, Schedule};
pub use step_rules::StepRules;
pub use value::{DType, Dim, Input, Shape, Sizes, Symbol, Value, ValueId, ValueKind};
pub use weight::{CacheGroup, CacheId, CacheSpec, GroupId, Weight, WeightId, WeightPart};
