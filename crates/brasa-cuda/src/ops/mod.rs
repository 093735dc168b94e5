//! Operations of a compiled program. Each knows the places of its operands, and launches its kernel.

mod arrange;
mod attention;
mod attention_rows;
mod banked_linear;
mod cross_entropy;
mod elementwise;
mod experts;
mod flat;
mod gates;
mod gemm;
mod gradients;
mod head_linear;
mod heads;
mod linear;
mod lookup;
mod low_rank_rows;
mod low_rank_spans;
mod matmul;
mod mixture;
mod paneled;
mod parts;
mod reduce;
mod sequence;
mod states;
mod tails;
mod transposed;

use std::fmt::Debug;

pub(crate) use arrange::{CopyOp, NarrowOp, TransposeOp};
pub(crate) use attention::{
    AttentionOp, CacheWriteOp, Flash, MOST_PAGE_SUMS, Pages, RopeOp, Source, StepTiles, WIDEST_PAGED,
    WIDEST_PAGED_KEY, WIDEST_PAGED_VALUE, flash_kernel, step_tiles_bytes,
};
pub(crate) use attention_rows::{AttentionGradientRows, AttentionRows, Named, Room, rows_kernels};
pub(crate) use banked_linear::BankedLinearOp;
pub(crate) use cross_entropy::{
    LinearCrossEntropyGradientOp, LinearCrossEntropyOp, MOST_ROWS, RowGradients, Scores,
};
pub(crate) use elementwise::{
    BinaryOp, CastOp, ChooseOp, ClampedUnitOp, PositionScaleOp, UnaryOp, cast_target,
};
pub(crate) use experts::{ExpertLinearOp, RouterTopKOp, router_kernel};
pub(crate) use flat::EachElement;
pub(crate) use gates::{GatedGradientOp, GatedOp, GatedPlace, WIDEST_GATED};
pub(crate) use gemm::{
    Ahead, Company, FEWEST_ROWS, GatesBehind, Gemm, LARGEST_ROWS, PANEL_ROWS, Panels, Rounding,
    SIZES as GEMM_SIZES, WIDEST_JOINED, kernels as gemm_kernels, partial_floats,
};
pub(crate) use gradients::{
    AttentionGradientOp, AttentionTangentOp, ExpertGradientOp, ExpertTransposedOp, FoldOp, NormGradientOp,
    PickOp, PlaceOp, SpreadMeanOp, StepAttention, UnaryGradientOp, WIDEST_GRADIENT,
};
pub(crate) use head_linear::{
    HeadFactors, HeadLinearOp, MOST_ROWS_IN_F32 as MOST_HEAD_ROWS_IN_F32, ManyRows,
};
pub(crate) use heads::{HEAD_ELEMENTS, HeadNorm, HeadsOp, LeftParts, PartsInFront, RotationsOp, WIDEST_HEAD};
pub(crate) use linear::{Behind, Further, InFront, LinearOp, ResultForm, TilesLaunch};
pub(crate) use lookup::{EmbedOp, GatherOp, SelectRowsOp};
pub(crate) use low_rank_rows::{
    FewRows, LowRankRowsOp, MOST_ADDED_ROWS, MOST_FEW_ROWS, Matrix, RanksTail, parts as parts_of_ranks,
};
pub(crate) use low_rank_spans::Span;
pub(crate) use matmul::{Floats, MATMUL_TILES, MOST_PARTS, Matmul, MatmulOp};
pub(crate) use mixture::{
    ExpertTiles, FewSlots, MOST_UNSORTED, MixtureOp, PlanBuffers, SIZES as EXPERT_SIZES, Sorted,
    kernels as expert_kernels, most_blocks, most_positions,
};
pub(crate) use paneled::{RoundOp, TAIL_DOWN, ThinGradientOp, ThinProductOp, gradient_parts, product_floats};
pub(crate) use parts::{Parts, parts_kernel};
pub(crate) use reduce::{ArgmaxOp, CrossEntropyOp, NormOp, ReduceOp, SoftmaxOp};
pub(crate) use sequence::{IndexAddOp, MeanPoolOp, UnfoldOp};
pub(crate) use states::{SCANNED_KEYS, ShortConvOp, StateScanOp};
pub(crate) use tails::{LowRank, LowRankOp, MOST_TAIL, Tail, TailTiles};
pub(crate) use transposed::{LinearTransposedOp, Transposed, TransposedTail, TransposedTiles};

use crate::driver::DriverError;
use crate::run::Run;

/// An operation of a compiled program: its launches and its cost.
pub(crate) trait Launch: Debug + Send + Sync {
    /// Queues its kernels.
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError>;

    /// Bytes that it reads of weights and caches, and floating-point operations, for profiles.
    fn cost(&self, _: &Run<'_>) -> (u64, u64) {
        (0, 0)
    }
}

/// Threads of a block that works on one row together: they depend on its width alone.
fn row_threads(width: u32) -> u32 {
    width.next_power_of_two().clamp(32, 256)
}
