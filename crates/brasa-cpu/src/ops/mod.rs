//! The operations of a program.
//!
//! Each is a struct with resolved operands that implements [`Operation`]. A new one is its struct and its line in the list
//! below.

pub(crate) mod arrange;
pub(crate) mod attention_gradient;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod finish;
mod gating;
pub(crate) mod head_linear;
pub(crate) mod heads;
pub(crate) mod linear;
pub(crate) mod linear_gradient;
pub(crate) mod lookup;
pub(crate) mod low_rank;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod operation;
mod pieces;
pub(crate) mod position_scale;
pub(crate) mod prepare;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod scratch;
pub(crate) mod sequence;
pub(crate) mod short_conv;
pub(crate) mod slopes;
pub(crate) mod state_scan;

use std::ops::Deref;

use crate::attention::Attention;
use operation::Operation;

macro_rules! operations {
    ($($name:ident($op:ty),)*) => {
        /// Any operation.
        #[allow(
            clippy::large_enum_variant,
            reason = "a few hundred of them, walked in order: no detour through a pointer"
        )]
        #[derive(Debug)]
        pub(crate) enum CompiledOp {
            $($name($op),)*
        }

        impl Deref for CompiledOp {
            type Target = dyn Operation;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(op) => op,)*
                }
            }
        }

        $(impl From<$op> for CompiledOp {
            fn from(op: $op) -> Self {
                Self::$name(op)
            }
        })*
    };
}

operations! {
    Argmax(reduce::ArgmaxOp),
    Attention(Attention),
    AttentionGradient(attention_gradient::AttentionGradientOp),
    AttentionGradientTangent(attention_gradient::AttentionGradientTangentOp),
    AttentionTangent(attention_gradient::AttentionTangentOp),
    Binary(elementwise::BinaryOp),
    Broadcast(arrange::BroadcastOp),
    CacheWrite(heads::CacheWriteOp),
    Cast(arrange::CastOp),
    Concat(arrange::ConcatOp),
    Copy(arrange::CopyOp),
    CrossEntropy(reduce::CrossEntropyOp),
    Embed(lookup::EmbedOp),
    ExpertLinear(experts::ExpertLinearOp),
    ExpertLinearGradient(linear_gradient::ExpertLinearGradientOp),
    ExpertLinearTransposed(linear_gradient::ExpertLinearTransposedOp),
    Fold(sequence::FoldOp),
    GateUp(linear::GateUpOp),
    GatedUnit(elementwise::GatedUnitOp),
    Gather(lookup::GatherOp),
    HeadLinear(head_linear::HeadLinearOp),
    Heads(heads::HeadsOp),
    IndexAdd(sequence::IndexAddOp),
    Linear(linear::LinearOp),
    LinearCrossEntropy(cross_entropy::LinearCrossEntropyOp),
    LinearGradient(linear_gradient::LinearGradientOp),
    LinearTransposed(matmul::LinearTransposedOp),
    LowRankRows(low_rank::LowRankRowsOp),
    Matmul(matmul::MatmulOp),
    MeanPool(sequence::MeanPoolOp),
    MeanPoolTransposed(sequence::MeanPoolTransposedOp),
    Mixture(experts::MixtureOp),
    Narrow(arrange::NarrowOp),
    Norm(norm::NormOp),
    NormGradient(slopes::NormGradientOp),
    Pick(lookup::PickOp),
    Place(lookup::PlaceOp),
    PositionScale(position_scale::PositionScaleOp),
    Reduce(reduce::ReduceOp),
    Rope(rope::RopeOp),
    RopeTable(rope::RopeTable),
    Router(experts::RouterOp),
    SelectRows(lookup::SelectRowsOp),
    ShortConv(short_conv::ShortConvOp),
    Softmax(reduce::SoftmaxOp),
    StateScan(state_scan::StateScanOp),
    Transpose(arrange::TransposeOp),
    Unary(elementwise::UnaryOp),
    UnaryGradient(slopes::UnaryGradientOp),
    Unfold(sequence::UnfoldOp),
    Where(elementwise::WhereOp),
}
