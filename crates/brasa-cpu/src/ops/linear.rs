//! Linear layers, and the operations that follow while results are still in a cache: bias, residual, gate.
#![expect(unsafe_code, reason = "threads write disjoint columns of one result")]

use std::ops::Range;

use brasa_graph::op::GatedUnit;
use brasa_graph::{Dim, Sizes};

use crate::context::Context;
use crate::kv::SharedKv;
use crate::linear::{Input, Output, PackedLinear, RowMap, STRIP, WeightClasses};
use crate::prepared::PreparedSize;
use crate::shared::SharedSlice;
use crate::simd::vectorize;
use crate::slot::{Operands, Place, Slot, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::elementwise::Gated;
use super::finish::{Follow, add};
use super::operation::{Cost, Operation};
use super::pieces::Pieces;
use super::prepare::Activations;
use super::scratch::{Scratch, ScratchSize};

/// Strips whose results are finished before the next strips are begun, for many rows.
const STRIPS_AT_ONCE: usize = 8;
/// Number of strips in a chunk on a matrix unit, as [`STRIPS_AT_ONCE`] elsewhere. Rows are gathered anew for each chunk of
/// strips, which must not take longer than the products.
const STRIPS_AT_ONCE_ON_TILES: usize = 32;
/// Rows from which on results are finished a few strips at a time.
const MANY_ROWS: usize = 8;

/// Linear layers of one operand; each computes `out = norm(x) · Wᵀ` and what [follows](Follow).
#[derive(Clone, Debug)]
pub(crate) struct LinearOp {
    pub activations: Activations,
    pub layers: Vec<Layer>,
    /// Rows of the operand.
    pub rows: Dim,
}

/// One linear layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Number of the weight.
    pub weight: usize,
    pub follow: Follow,
    pub out: Slot,
}

/// `out = act(norm(x) · Wgᵀ) · (norm(x) · Wuᵀ)`.
#[derive(Clone, Debug)]
pub(crate) struct GateUpOp {
    pub activations: Activations,
    pub gate: Factor,
    pub up: Factor,
    pub unit: GatedUnit,
    /// Strips of each factor.
    pub strips: usize,
    pub out: Slot,
}

/// The outputs of a weight that make the gates, or the values that the gates multiply.
#[derive(Clone, Debug)]
pub(crate) struct Factor {
    /// Number of the weight.
    pub weight: usize,
    /// The first strip of the weight that makes outputs of this factor.
    pub first_strip: usize,
    /// The first output of the weight that belongs to this factor.
    pub first_output: usize,
    pub bias: Option<Source>,
}

impl Operation for LinearOp {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        for layer in &self.layers {
            list.reads("w", Place::Packed(layer.weight));
            layer.follow.operands(list);
            list.writes("out", layer.out);
        }
    }

    fn products(&self) -> WeightClasses {
        self.activations.classes
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let view = cx.view(&self.activations.x);
        let rows = self.rows.resolve(&cx.step.sizes);
        if rows == 0 {
            return;
        }
        let (input, cx) = self.activations.prepare(cx, &view, rows, &mut scratch.rows);
        let vectors = rows * self.activations.per_row;
        let share =
            |layer: usize, thread| cx.weights.linear(self.layers[layer].weight).share(cx.threads, thread);
        let pieces = Pieces::new(self.layers.len(), cx.threads, strips_at_once(cx.isa), share);
        pieces.each(cx, vectors, |layer, strips| {
            self.layers[layer].multiply(cx, &input, vectors, self.activations.per_row, strips);
        });
    }

    fn warm(&self, cx: &Context<'_>) {
        if let Some(layer) = self.layers.first() {
            let linear = cx.weights.linear(layer.weight);
            linear.warm(linear.share(cx.threads, cx.thread).start);
        }
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.k = size.k.max(self.activations.k);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        self.activations.size(isa, self.rows.resolve(sizes))
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let rows = self.rows.resolve(&step.sizes) * self.activations.per_row;
        self.layers.iter().map(|layer| Cost::of_linear(weights.linear(layer.weight), rows)).sum()
    }
}

impl Layer {
    /// Computes this thread's outputs of `vectors` prepared vectors, of which a row has `per_row`.
    pub(super) fn run(&self, cx: &Context<'_>, input: &Input<'_>, vectors: usize, per_row: usize) {
        let mine = cx.weights.linear(self.weight).share(cx.threads, cx.thread);
        self.multiply(cx, input, vectors, per_row, mine);
    }

    /// Computes the outputs of `strips`, which no other thread computes.
    fn multiply(
        &self,
        cx: &Context<'_>,
        input: &Input<'_>,
        vectors: usize,
        per_row: usize,
        strips: Range<usize>,
    ) {
        let linear = cx.weights.linear(self.weight);
        let mut region = cx.region(&self.out);
        if per_row > 1 {
            // Vectors instead of rows: the result is dense.
            region.rows = vectors;
            region.width = linear.n();
            region.stride = linear.n();
        }
        for strips in chunks(strips, vectors, cx.isa) {
            let columns = outputs(linear, &strips);
            // SAFETY: the weight's outputs are split among threads.
            let mut out = unsafe { cx.write::<f32>(&self.out, region.of_columns(columns.clone())) };
            let output =
                Output { values: out.elements(), stride: region.stride, column: region.offset.cast_signed() };
            // SAFETY: `out` holds these columns of all rows for this thread.
            unsafe { linear.multiply(cx.isa, input, RowMap::All(vectors), &output, strips) };
            self.follow.finish(cx, &mut out, vectors, columns);
        }
    }
}

impl Operation for GateUpOp {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        list.reads("gate", Place::Packed(self.gate.weight)).may_read("gate bias", self.gate.bias);
        list.reads("up", Place::Packed(self.up.weight)).may_read("up bias", self.up.bias);
        list.writes("out", self.out);
    }

    fn products(&self) -> WeightClasses {
        self.activations.classes
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let view = cx.view(&self.activations.x);
        let rows = cx.region(&self.out).rows;
        if rows == 0 {
            return;
        }
        let (input, cx) = self.activations.prepare(cx, &view, rows, &mut scratch.rows);
        let share = |_, thread| Team::split(self.strips, 1, cx.threads, thread);
        Pieces::new(1, cx.threads, strips_at_once(cx.isa), share)
            .each(cx, rows, |_, strips| self.multiply(cx, &input, &mut scratch.up, strips));
    }

    fn warm(&self, cx: &Context<'_>) {
        let mine = Team::split(self.strips, 1, cx.threads, cx.thread);
        cx.weights.linear(self.gate.weight).warm(self.gate.first_strip + mine.start);
    }

    fn scratch(&self, sizes: &Sizes, size: &mut ScratchSize) {
        size.k = size.k.max(self.activations.k);
        size.up = size.up.max(self.out.outer.resolve(sizes) * STRIPS_AT_ONCE_ON_TILES * STRIP);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        self.activations.size(isa, self.out.outer.resolve(sizes))
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let rows = self.out.outer.resolve(&step.sizes);
        let factor = |factor: &Factor| Cost::of_linear(weights.linear(factor.weight), rows);
        let gate = factor(&self.gate);
        if self.gate.weight == self.up.weight { gate } else { gate + factor(&self.up) }
    }
}

impl GateUpOp {
    /// Computes the outputs of `mine`, strips of each factor that no other thread computes. `memory` is the thread's.
    fn multiply(&self, cx: &Context<'_>, input: &Input<'_>, memory: &mut [f32], mine: Range<usize>) {
        if mine.is_empty() || self.run_together(cx, input, mine.clone()) {
            return;
        }
        let region = cx.region(&self.out);
        let rows = region.rows;
        let (gate, up) = (cx.weights.linear(self.gate.weight), cx.weights.linear(self.up.weight));
        let biases = [&self.gate, &self.up].map(|factor| factor.bias.map(|bias| cx.view(&bias)));
        // To go from one factor to the other interrupts the stream of weights: take as many strips at once as there is room for.
        let used = memory.len() / STRIPS_AT_ONCE_ON_TILES * strips_at_once(cx.isa);
        let room = used / (rows * STRIP);
        for strips in in_steps(mine, room) {
            let strips_of =
                |factor: &Factor| factor.first_strip + strips.start..factor.first_strip + strips.end;
            let columns = outputs(gate, &strips_of(&self.gate));
            let columns = columns.start - self.gate.first_output..columns.end - self.gate.first_output;
            let width = columns.len();
            // SAFETY: the strips are split among threads.
            let mut out = unsafe { cx.write::<f32>(&self.out, region.of_columns(columns.clone())) };
            let gates = Output {
                values: out.elements(),
                stride: region.stride,
                column: region.offset.cast_signed() - self.gate.first_output.cast_signed(),
            };
            let first = self.up.first_output + columns.start;
            let ups =
                Output { values: SharedSlice::new(memory), stride: width, column: -first.cast_signed() };
            let map = RowMap::All(rows);
            // SAFETY: `out` holds these columns of all rows for this thread, to which `memory` belongs.
            unsafe {
                gate.multiply(cx.isa, input, map, &gates, strips_of(&self.gate));
                up.multiply(cx.isa, input, map, &ups, strips_of(&self.up));
            }
            for row in 0..rows {
                let ups = &mut memory[row * width..(row + 1) * width];
                if let [gate, Some(up)] = &biases {
                    if let Some(gate) = gate {
                        add(cx.isa, out.row(row), &gate.row(0)[columns.clone()]);
                    }
                    add(cx.isa, ups, &up.row(0)[columns.clone()]);
                } else if let [Some(gate), None] = &biases {
                    add(cx.isa, out.row(row), &gate.row(0)[columns.clone()]);
                }
                vectorize(cx.isa, Gated { unit: self.unit, gate: out.row(row), up: ups });
            }
        }
    }

    /// Computes the gates of `strips` and the values that they multiply side by side. False if these weights have no
    /// kernel for that; then nothing is done.
    fn run_together(&self, cx: &Context<'_>, input: &Input<'_>, strips: Range<usize>) -> bool {
        if self.gate.bias.is_some() || self.up.bias.is_some() {
            return false;
        }
        let (gate, up) = (cx.weights.linear(self.gate.weight), cx.weights.linear(self.up.weight));
        let first_strips = [&self.gate, &self.up].map(|factor| factor.first_strip + strips.start);
        let last = self.gate.first_strip + strips.end - 1;
        let columns = gate.strip_outputs(first_strips[0]).start..gate.strip_outputs(last).end;
        let columns = columns.start - self.gate.first_output..columns.end - self.gate.first_output;
        let outputs = columns.len();
        let region = cx.region(&self.out);
        let column = (region.offset + columns.start).cast_signed();
        // SAFETY: the strips are split among threads.
        let out = unsafe { cx.write::<f32>(&self.out, region.of_columns(columns)) };
        let output = Output { values: out.elements(), stride: region.stride, column };
        let finish = |gates: &mut [f32], ups: &[f32]| {
            vectorize(cx.isa, Gated { unit: self.unit, gate: gates, up: ups });
        };
        // SAFETY: `out` holds these columns of all rows for this thread.
        unsafe {
            gate.multiply_gated(up, cx.isa, (input, region.rows), &output, (first_strips, outputs), finish)
        }
    }
}

/// Cuts `strips` into chunks. For many rows a chunk has a few strips, whose results are finished while they are in a cache.
fn chunks(strips: Range<usize>, rows: usize, isa: Isa) -> impl Iterator<Item = Range<usize>> {
    let step = if rows >= MANY_ROWS { strips_at_once(isa) } else { strips.len() };
    in_steps(strips, step)
}

const fn strips_at_once(isa: Isa) -> usize {
    if isa.has_tiles() { STRIPS_AT_ONCE_ON_TILES } else { STRIPS_AT_ONCE }
}

fn in_steps(strips: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let step = step.max(1);
    strips.clone().step_by(step).map(move |first| first..(first + step).min(strips.end))
}

/// The outputs that some strips make.
pub(super) fn outputs(linear: &PackedLinear, strips: &Range<usize>) -> Range<usize> {
    linear.strip_outputs(strips.start).start..linear.strip_outputs(strips.end - 1).end
}
