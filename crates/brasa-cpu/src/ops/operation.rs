//! The trait of all operations of a program.

use std::fmt::Debug;
use std::ops::Add;

use brasa_graph::Sizes;

use crate::Isa;
use crate::context::Context;
use crate::kv::{RowPagesSize, SharedKv};
use crate::linear::{PackedLinear, WeightClasses};
use crate::prepared::PreparedSize;
use crate::slot::Operands;
use crate::step_state::StepState;
use crate::weights::CpuWeights;

use super::scratch::{Scratch, ScratchSize};

/// An operation with resolved operands.
///
/// Most operations only [run](Self::run) and list their [operands](Self::operands).
pub(crate) trait Operation: Debug + Send + Sync {
    /// Computes this thread's share. All threads wait at the barrier equally often.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch);

    /// Lists every operand and result. The program is checked against this list, so it must be complete.
    fn operands(&self, list: &mut Operands);

    /// The classes of the weights that the operation multiplies with.
    fn products(&self) -> WeightClasses {
        WeightClasses::default()
    }

    /// Prefetches the first bytes that this thread will read, while it waits for the operation before.
    fn warm(&self, _cx: &Context<'_>) {}

    /// Enlarges `size` to the thread memory that this operation needs for steps of `sizes`.
    fn scratch(&self, _sizes: &Sizes, _size: &mut ScratchSize) {}

    /// Memory for activations that threads prepare together, for steps of `sizes`.
    fn prepared(&self, _isa: Isa, _sizes: &Sizes) -> PreparedSize {
        PreparedSize::default()
    }

    /// Elements of memory for partial results of attention in a step.
    fn partial_elements(&self, _step: &StepState, _threads: usize) -> usize {
        0
    }

    /// Pages that hold keys and values of the rows of a step while it attends to them.
    fn row_pages(&self, _step: &StepState) -> RowPagesSize {
        RowPagesSize::default()
    }

    /// Most waits at the barrier in a step, not counting the wait after the operation.
    fn waits(&self, _step: &StepState) -> usize {
        7
    }

    /// The work of a step: bytes of weights and caches, multiplications and additions.
    fn cost(&self, _step: &StepState, _weights: &CpuWeights, _kv: SharedKv<'_>) -> Cost {
        Cost::default()
    }
}

/// The work of an operation in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes of weights, as they are stored, and of caches that are read.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
}

impl Cost {
    /// The products of `rows` rows with a weight.
    pub(crate) fn of_linear(linear: &PackedLinear, rows: usize) -> Self {
        // A step that asks for no logits does not read the last weight.
        let bytes = if rows > 0 { linear.stored_bytes() } else { 0 };
        Self { bytes: bytes as u64, flops: (2 * rows * linear.n() * linear.k()) as u64 }
    }

    /// The products of `pairs` pairs of a row and an expert.
    pub(crate) fn of_experts(experts: &[PackedLinear], pairs: usize) -> Self {
        let bytes: usize = experts.iter().map(PackedLinear::stored_bytes).sum();
        // Each pair reads one expert, and at most all of them are read.
        let bytes = bytes * pairs.min(experts.len()) / experts.len();
        Self { bytes: bytes as u64, flops: (2 * pairs * experts[0].n() * experts[0].k()) as u64 }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}
