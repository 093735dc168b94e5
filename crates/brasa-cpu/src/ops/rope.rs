//! Rotary position embedding.
//!
//! Angles are the same for all heads and layers, so a program computes a table of cosines and sines once per step
//! for each set of frequencies.

use brasa_graph::op::{Rope, RopeLayout};

use crate::Isa;
use crate::context::{Context, Mine};
use crate::simd::{Kernel, Simd, vectorize};
use crate::slot::{Operands, Out, Slot, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// Cosines and sines of the step's positions. Each row is `[cos…, sin…]`, times the magnitude.
#[derive(Clone, Debug)]
pub(crate) struct RopeTable {
    pub positions: Slot,
    pub frequencies: Source,
    pub magnitude: f32,
    pub out: Out,
}

/// `out` is `x` with every head rotated by the angles of its row.
#[derive(Clone, Debug)]
pub(crate) struct RopeOp {
    pub rope: Rope,
    pub head_dim: usize,
    pub x: Source,
    pub table: Slot,
    pub out: Out,
}

impl Operation for RopeTable {
    fn operands(&self, list: &mut Operands) {
        list.reads("positions", self.positions)
            .reads("frequencies", self.frequencies)
            .writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let positions = cx.rows::<u32>(&self.positions);
        let frequencies = cx.view(&self.frequencies);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let position = positions.row(row)[0] as f32;
            let (cos, sin) = out.row(i).split_at_mut(frequencies.row(0).len());
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(frequencies.row(0)) {
                (*sin, *cos) = (position * frequency).sin_cos();
                *sin *= self.magnitude;
                *cos *= self.magnitude;
            }
        }
    }
}

impl Operation for RopeOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("table", self.table).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, x) = (cx.isa, cx.view(&self.x));
        let table = cx.rows::<f32>(&self.table);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.copy_from_slice(x.row(row));
            for head in out.chunks_exact_mut(self.head_dim) {
                rotate(isa, &self.rope, table.row(row), head);
            }
        }
    }
}

/// Rotates one head in place by the angles of a row of the table.
pub(crate) fn rotate(isa: Isa, rope: &Rope, table: &[f32], head: &mut [f32]) {
    let (cos, sin) = table.split_at(rope.rotary_dim / 2);
    vectorize(isa, Rotate { layout: rope.layout, cos, sin, head: &mut head[..rope.rotary_dim] });
}

struct Rotate<'a> {
    layout: RopeLayout,
    cos: &'a [f32],
    sin: &'a [f32],
    head: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let angles = self.cos.iter().zip(self.sin);
        let turn = |a: &mut f32, b: &mut f32, cos: &f32, sin: &f32| {
            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
        };
        match self.layout {
            RopeLayout::SplitHalf => {
                let (first, second) = self.head.split_at_mut(self.cos.len());
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                    turn(a, b, cos, sin);
                }
            }
            RopeLayout::Interleaved => {
                for ([a, b], (cos, sin)) in self.head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    turn(a, b, cos, sin);
                }
            }
        }
    }
}
