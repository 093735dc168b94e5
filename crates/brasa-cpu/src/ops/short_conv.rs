//! Causal convolutions of each channel with itself alone, over few rows.
//!
//! Threads share out channels. A channel sees the rows of its text in the step where they lie, and the rows before the step in a state
//! page. A sum is taken in the order of the taps, for any number of rows.
#![expect(unsafe_code, reason = "threads write disjoint channels of states")]

use brasa_graph::StateId;
use brasa_graph::op::Unary;

use crate::arena::RowsMut;
use crate::context::{Context, Mine, View};
use crate::kv::{SharedKv, StateColumns};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Place, Source};
use crate::step_state::{SegmentState, StepState};
use crate::weights::CpuWeights;

use super::elementwise::evaluate;
use super::operation::{Cost, Operation};
use super::scratch::Scratch;

/// Most taps of a convolution. Models have 3 or 4.
pub(crate) const MOST_TAPS: usize = 16;

/// Channels that are computed for all rows before the next ones: several cache lines of each row.
const BLOCK: usize = 4 * LANES;

/// `y[r, c] = f(Σ_j w[c, j] · x[r − K + 1 + j, c])`.
#[derive(Clone, Debug)]
pub(crate) struct ShortConvOp {
    pub state: StateId,
    pub channels: usize,
    /// K, at most [`MOST_TAPS`].
    pub taps: usize,
    pub x: Source,
    pub w: Source,
    /// A function of each result.
    pub activation: Option<Unary>,
    /// Shared out by columns.
    pub out: Out,
}

impl Operation for ShortConvOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("w", self.w).writes("out", self.out);
        list.writes("state", Place::State(self.state));
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, isa, kv, taps) = (cx.step, cx.isa, cx.kv, self.taps);
        let (x, w) = (cx.view(&self.x), cx.view(&self.w));
        let Mine { columns, mut out, .. } = cx.mine::<f32>(&self.out);
        for first in columns.clone().step_by(BLOCK) {
            let channels = first..columns.end.min(first + BLOCK);
            let mut weights = [[0.0; BLOCK]; MOST_TAPS];
            for (place, channel) in channels.clone().enumerate() {
                for (weights, &w) in weights.iter_mut().zip(&w.row(channel)[..taps]) {
                    weights[place] = w;
                }
            }
            for segment in &step.segments {
                // SAFETY: columns are shared out among threads, and no two segments use a page that one of them writes, which was
                // checked before the step.
                let state =
                    unsafe { kv.state_columns(self.state, 0, [taps - 1, self.channels], channels.clone()) };
                let convolution = Convolution {
                    segment,
                    kept: step.states_to(segment),
                    state,
                    x: &x,
                    channels: channels.clone(),
                    weights: &weights[..taps],
                    activation: self.activation,
                    out: &mut out,
                    first: first - columns.start,
                };
                vectorize(isa, convolution);
            }
        }
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let read = step.segments.iter().filter(|segment| segment.states_from.is_some()).count();
        let written: usize = step.segments.iter().map(|segment| step.states_to(segment).len()).sum();
        let elements = (read + written) * (self.taps - 1) * self.channels + self.taps * self.channels;
        let flops = 2 * step.row_segments.len() * self.taps * self.channels;
        Cost { bytes: (elements * 4) as u64, flops: flops as u64 }
    }
}

/// Some channels of the rows of a segment.
struct Convolution<'c, 'a> {
    segment: &'c SegmentState,
    /// The rows whose states are kept, and their pages.
    kept: &'c [(u32, u32)],
    state: StateColumns<'a>,
    x: &'c View<'a>,
    channels: std::ops::Range<usize>,
    /// The weights of each tap.
    weights: &'c [[f32; BLOCK]],
    activation: Option<Unary>,
    out: &'c mut RowsMut<'a, f32>,
    /// The place of the first channel in a row of `out`.
    first: usize,
}

/// A row that a convolution sees.
#[derive(Clone, Copy)]
enum Seen {
    /// A row of the segment.
    Row(usize),
    /// A row of the state before the segment.
    Before(usize),
}

impl Convolution<'_, '_> {
    /// The last rows before `row` and the row itself, oldest first.
    #[inline(always)]
    fn seen(&self, row: usize) -> [Seen; MOST_TAPS] {
        let taps = self.weights.len();
        let mut seen = [Seen::Before(0); MOST_TAPS];
        let mut at = Some(row);
        let mut left = taps - 1;
        for place in (0..taps).rev() {
            seen[place] = if let Some(row) = at {
                Seen::Row(row)
            } else {
                left -= 1;
                Seen::Before(left)
            };
            at = at.and_then(|row| match &self.segment.tree {
                None => row.checked_sub(1),
                Some(tree) => tree.parent(row).map(|parent| parent as usize),
            });
        }
        seen
    }

    /// The channels of a row; `None` for zeros before the text.
    #[inline(always)]
    fn values(&self, seen: Seen) -> Option<&[f32]> {
        match seen {
            Seen::Row(row) => Some(&self.x.row(self.segment.rows.start + row)[self.channels.clone()]),
            Seen::Before(row) => self.segment.states_from.map(|page| self.state.read(page, row)),
        }
    }
}

impl Kernel for Convolution<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (taps, width) = (self.weights.len(), self.channels.len());
        let mut kept = self.kept.iter().peekable();
        for row in 0..self.segment.rows.len() {
            let seen = self.seen(row);
            let mut sums = [simd.splat(0.0); BLOCK / LANES];
            for (&seen, weights) in seen.iter().zip(self.weights) {
                let Some(x) = self.values(seen) else { continue };
                let (weights, _) = weights.as_chunks::<LANES>();
                let (whole, rest) = x.as_chunks::<LANES>();
                for ((sum, w), x) in sums.iter_mut().zip(weights).zip(whole) {
                    *sum = simd.mul_add(simd.load(w), simd.load(x), *sum);
                }
                if !rest.is_empty() {
                    let mut last = [0.0; LANES];
                    last[..rest.len()].copy_from_slice(rest);
                    let (sum, w) = (&mut sums[whole.len()], &weights[whole.len()]);
                    *sum = simd.mul_add(simd.load(w), simd.load(&last), *sum);
                }
            }
            if let Some(function) = self.activation {
                for sum in &mut sums {
                    *sum = evaluate(simd, function, *sum);
                }
            }
            let out = &mut self.out.row(self.segment.rows.start + row)[self.first..self.first + width];
            for (sum, out) in sums.into_iter().zip(out.chunks_mut(LANES)) {
                if let Ok(out) = out.try_into() {
                    simd.store(sum, out);
                } else {
                    let mut lanes = [0.0; LANES];
                    simd.store(sum, &mut lanes);
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
            let Some(&(_, page)) = kept.next_if(|&&(at, _)| at as usize == row) else { continue };
            for (place, &seen) in seen[1..taps].iter().enumerate() {
                let mut values = [0.0; BLOCK];
                if let Some(x) = self.values(seen) {
                    values[..width].copy_from_slice(x);
                }
                self.state.write(page, place).copy_from_slice(&values[..width]);
            }
        }
    }
}
