//! Changes passed through attention to the rows of a step.
//!
//! A thread takes one KV head of one segment and all query heads that read it, so no sum is shared. Scores and probabilities
//! of a block of queries are computed again from queries and keys, and everything that they are needed for follows while
//! they are in a cache: five products of matrices in all, of f32 or rounded.

mod geometry;
mod gradient;
mod scratch;
mod second;
mod sinks;
mod softmax;
mod tangent;

pub(crate) use geometry::Geometry;
pub(crate) use gradient::AttentionGradientOp;
pub(crate) use scratch::GradientScratch;
pub(crate) use second::AttentionGradientTangentOp;
pub(crate) use sinks::SinkChanges;
pub(crate) use tangent::AttentionTangentOp;
