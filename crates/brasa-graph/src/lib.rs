//! The typed graph of a model, and the contract that devices implement.
//!
//! A model is described once, as a [`Graph`] of documented operations over typed values. The same graph is
//! fused into a schedule, compiled and replayed by a [`Backend`](device::Backend), and run by the slow, obviously right reference interpreter
//! that every device is tested against.
//!
//! This crate defines operations and steps. It contains nothing about model families, configuration files, processors or text.
//!
//! | module | what |
//! |---|---|
//! | [`op`] | every operation: formula, shapes, source, reference |
//! | [`Builder`], [`Graph`] | a model's computation, every shape checked |
//! | [`mod@rewrite`], [`pass`] | graphs made from graphs |
//! | [`derivative`] | gradients and directional derivatives, as graphs |
//! | [`fuse`], [`Schedule`] | groups of nodes that run as one |
//! | [`mod@print`] | listings of both |
//! | [`mod@reference`] | the interpreter, and the device made of it |
//! | [`device`], [`step`], [`output`], [`chain`], [`StepRules`] | what devices implement and are given |
//! | [`page`] | pages of keys and values as bytes, in one layout for all devices |
//! | [`shift`] | moving cached keys to other positions |
//! | [`sampling`] | from logits to a token |
//! | [`testing`] | a device against the reference |
//!
//! ```
//! use brasa_graph::op::Unary;
//! use brasa_graph::{Builder, Input, print, testing};
//!
//! let mut g = Builder::new();
//! let ids = g.input(Input::TokenIds);
//! let table = g.weight(Ok(testing::weight("embed", &[3, 2], &[0.0, 0.1, 1.0, 1.1, 2.0, 2.1])));
//! let h = g.embed(ids, table);
//! let y = g.unary(h, Unary::Silu);
//! let graph = g.finish(&[y])?;
//! assert!(print::graph(&graph).contains("%3 f32[rows, 2] = silu(%2)"));
//! # Ok::<(), brasa_graph::GraphError>(())
//! ```

mod builder;
pub mod derivative;
mod draft;
mod error;
pub mod fuse;
mod graph;
pub mod op;
mod origin;
pub mod output;
pub mod pass;
pub mod rewrite;
mod value;
mod weight;
mod weight_map;

pub mod chain;
pub mod device;
pub mod learn;
pub mod page;
pub mod print;
pub mod reference;
pub mod sampling;
mod schedule;
pub mod shift;
pub mod state;
pub mod step;
mod step_rules;
pub mod testing;

pub use builder::Builder;
pub use draft::{DraftTree, MAX_TREE_ROWS, TreeError};
pub use error::GraphError;
pub use graph::{Graph, Node, NodeId, View};
pub use op::Op;
pub use origin::{Origin, Piece};
pub use rewrite::{Change, rewrite};
pub use schedule::{Fused, Item, Schedule};
pub use state::{StateId, StateLayout, StatePages};
pub use step_rules::StepRules;
pub use value::{DType, Dim, Given, GivenId, Input, Shape, Sizes, Symbol, Value, ValueId, ValueKind};
pub use weight::{
    CacheGroup, CacheId, CacheKind, CacheSpec, GroupId, MemoryId, RowStride, ValueWidth, Weight, WeightId,
    WeightPart,
};
pub use weight_map::WeightMap;
