//! Operations: one documented struct each, with its formula, shapes and source.
//!
//! Letters: R rows of the step, D width, H heads, G KV heads, E head width, N outputs, K inputs, X experts.

mod attention;
mod attention_gradient;
mod cross_entropy;
mod elementwise;
mod embed;
mod expert;
mod expert_gradient;
mod gated_unit;
mod gating;
mod head_linear;
mod linear;
mod linear_cross_entropy;
mod memory_access;
mod narrow;
mod norm;
mod norm_gradient;
mod pick;
mod position_scale;
mod reduce;
mod rope;
mod sequence;
mod sequence_gradient;
mod short_conv;
mod state_scan;
mod unary_gradient;
mod view;

pub use attention::{Attention, CacheWrite, KvSource, Mask, MemoryWrite, alibi_slope};
pub use attention_gradient::{AttentionGradient, AttentionGradientTangent, AttentionTangent};
pub use cross_entropy::CrossEntropy;
pub use elementwise::{Binary, Unary, Where};
pub use embed::{Embed, Gather, SelectRows};
pub use expert::{ExpertLinear, RouterTopK};
pub use expert_gradient::{ExpertLinearGradient, ExpertLinearTransposed};
pub use gated_unit::{ClampedUnit, GatedUnit};
pub use gating::{Gating, GroupScore, Groups, Scores};
pub use head_linear::HeadLinear;
pub use linear::{Linear, LinearGradient, LinearTransposed, Matmul};
pub use linear_cross_entropy::{Head, LinearCrossEntropy, LinearCrossEntropyGradient};
pub use memory_access::{AccessKind, MemoryAccess, SequenceMemory};
pub use narrow::Narrow;
pub use norm::{LayerNorm, RmsNorm};
pub use norm_gradient::{NormGradient, NormKind};
pub use pick::{Pick, Place};
pub use position_scale::PositionScale;
pub use reduce::{Argmax, Reduce, ReduceFn, Softmax};
pub use rope::{Rope, RopeLayout};
pub use sequence::{IndexAdd, MeanPool, Unfold};
pub use sequence_gradient::{Fold, MeanPoolTransposed};
pub use short_conv::ShortConv;
pub use state_scan::{HeadSharing, ScanRule, ScanSizes, StateScan};
pub use unary_gradient::UnaryGradient;
pub use view::{Broadcast, Cast, Concat, Reshape, Slice, Transpose};

use std::ops::Range;

use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheId, CacheSpec, DType, Node, Shape, Value, ValueId};

/// Element type and shape of a result.
pub type Type = (DType, Shape);

/// The interface of every operation: name, shapes, reference and derivatives.
pub(crate) trait Operation {
    /// Name of the operation in printed graphs.
    fn name(&self) -> &'static str;

    /// Parameters of the operation in printed graphs: `eps=1e-5`.
    fn attributes(&self) -> String {
        String::new()
    }

    /// The types of the results, or the reason why the operands do not fit.
    fn infer(&self, operands: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String>;

    /// Computes the results in the simplest way. Fails if operands hold values that are not allowed, such as a number outside its
    /// table.
    fn reference<T: Number>(&self, operands: &[&Array<T>], env: &mut Env<T>) -> Result<Vec<Array<T>>, String>
    where
        Self: Sized;

    /// Builds the derivative of each result along `tangents`, one for each operand. `at` is the operation as applied. At
    /// least one tangent is given.
    fn jvp(&self, _g: &mut Rules, _at: &Node, _tangents: &[Option<ValueId>]) -> Terms {
        Err(NO_DERIVATIVE.into())
    }

    /// Builds the terms that the operation adds to its operands' cotangents. `cotangents` has one entry for each result, of which
    /// at least one is given. Only terms of operands that are `wanted` are used; at least one is. `at` is the operation as
    /// applied.
    fn vjp(&self, _g: &mut Rules, _at: &Node, _cotangents: &[Option<ValueId>], _wanted: &[bool]) -> Terms {
        Err(NO_DERIVATIVE.into())
    }

    /// The cache or the recurrent state that the operation uses; `None` if it uses neither. The order of nodes, the
    /// checks of steps and context shifts rely on this answer alone.
    fn memory_access(&self) -> Option<MemoryAccess> {
        None
    }

    /// Number of elements that the operation's recurrent state must have, given operands that it accepts; `None` for an
    /// operation without recurrence.
    fn state_elements(&self, _operands: &[&Value]) -> Option<usize> {
        None
    }

    /// The elements of each row of the operand that the result is a view of; `None` if the result is no such view.
    fn part(&self) -> Option<Range<usize>> {
        None
    }
}

/// The reason why an operation cannot be differentiated.
pub(crate) const NO_DERIVATIVE: &str = "no derivative is defined";

macro_rules! operations {
    ($($variant:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($variant)),* }

        $(impl From<$variant> for Op {
            fn from(op: $variant) -> Self { Self::$variant(op) }
        })*

        impl Op {
            fn operation(&self) -> &dyn Operation {
                match self { $(Self::$variant(op) => op),* }
            }

            /// Computes the results in the simplest way.
            ///
            /// # Errors
            ///
            /// An operand's value that makes no sense, such as a number outside its table.
            pub(crate) fn reference<T: Number>(
                &self,
                operands: &[&Array<T>],
                env: &mut Env<T>,
            ) -> Result<Vec<Array<T>>, String> {
                match self { $(Self::$variant(op) => op.reference(operands, env)),* }
            }
        }
    };
}

operations! {
    Embed, Gather, SelectRows, Linear, LinearTransposed, ExpertLinear, RouterTopK, Matmul, RmsNorm, LayerNorm, Unary, Binary,
    Where, Rope, CacheWrite, MemoryWrite, Attention, Softmax, Reduce, Argmax, CrossEntropy, Concat, Slice, Reshape, Transpose,
    Broadcast, Cast, IndexAdd, MeanPool, Unfold, LinearGradient, ExpertLinearTransposed, ExpertLinearGradient, HeadLinear, UnaryGradient,
    NormGradient, AttentionTangent, AttentionGradient, Pick, Place, Narrow, Fold, MeanPoolTransposed,
    LinearCrossEntropy, LinearCrossEntropyGradient, AttentionGradientTangent, ShortConv, StateScan, ClampedUnit, PositionScale,
}

impl Op {
    /// Name of the operation in printed graphs.
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// Parameters of the operation in printed graphs: `eps=1e-5`.
    pub fn attributes(&self) -> String {
        self.operation().attributes()
    }

    /// The types of its results.
    ///
    /// # Errors
    ///
    /// Operands that the operation cannot take.
    pub fn infer(&self, operands: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        self.operation().infer(operands, caches)
    }

    /// The derivatives of the results along a direction.
    pub(crate) fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        self.operation().jvp(g, at, tangents)
    }

    /// The terms that the operation adds to its operands' cotangents, given the cotangents of its results.
    pub(crate) fn vjp(
        &self,
        g: &mut Rules,
        at: &Node,
        cotangents: &[Option<ValueId>],
        wanted: &[bool],
    ) -> Terms {
        self.operation().vjp(g, at, cotangents, wanted)
    }

    /// The cache, memory or recurrent state that the operation uses; `None` if it uses none of them.
    pub fn memory_access(&self) -> Option<MemoryAccess> {
        self.operation().memory_access()
    }

    /// Number of elements that the operation's recurrent state must have, given operands that it accepts.
    pub(crate) fn state_elements(&self, operands: &[&Value]) -> Option<usize> {
        self.operation().state_elements(operands)
    }

    /// The elements of each row of the operand that the result is a view of.
    pub(crate) fn part(&self) -> Option<Range<usize>> {
        self.operation().part()
    }

    /// True if the result shares the operand's memory.
    pub fn is_view(&self) -> bool {
        matches!(self, Self::Slice(_) | Self::Reshape(_))
    }
}

/// The operands as an array of exactly `N`; fails for another number.
fn operands<'a, const N: usize>(given: &[&'a Value]) -> Result<[&'a Value; N], String> {
    given.try_into().map_err(|_| format!("{} operands, expected {N}", given.len()))
}

/// The dimensions of a value whose dimensions are all constant, such as a weight.
fn constant_dims(value: &Value) -> Result<Vec<usize>, String> {
    value
        .shape
        .0
        .iter()
        .map(|dim| dim.constant())
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{value} is not constant"))
}

/// Fails with `what` if `condition` is false.
fn require(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}

/// The innermost dimension of a value, which must be constant.
fn width(value: &Value) -> Result<usize, String> {
    value.shape.width().ok_or_else(|| format!("{value} has no constant width"))
}

/// `shape` with another innermost dimension.
fn with_width(shape: &Shape, width: usize) -> Shape {
    let mut dims = shape.0.clone();
    match dims.last_mut() {
        Some(last) => *last = width.into(),
        None => dims.push(width.into()),
    }
    Shape(dims)
}

/// Fails unless all operands hold floats.
fn require_floats(given: &[&Value]) -> Result<(), String> {
    require(given.iter().all(|value| value.dtype != DType::U32), || "floats expected".into())
}

/// The geometry of cache `id`; fails if there is no such cache.
fn cache_spec(caches: &[CacheSpec], id: CacheId) -> Result<CacheSpec, String> {
    caches.get(id.0 as usize).copied().ok_or_else(|| format!("no cache {} among {}", id.0, caches.len()))
}

/// `number` as an index below `len`; fails if it is not below.
fn index(number: u32, len: usize) -> Result<usize, String> {
    let index = number as usize;
    require(index < len, || format!("number {number}, expected below {len}"))?;
    Ok(index)
}
