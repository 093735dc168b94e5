//! Rotary position embedding.
//!
//! Angles are the same for all heads and layers, so a program computes a table of cosines and sines once per step
//! for each set of frequencies.

use brasa_graph::op::{Rope, RopeLayout};

use crate::Isa;
use crate::context::{Context, Slot, Source};
use crate::simd::{Kernel, Simd, vectorize};

/// Cosines and sines of the step's positions: each row `[cos…, sin…]`, times the magnitude.
#[derive(Clone, Debug)]
pub(crate) struct RopeTable {
    pub positions: Slot,
    pub frequencies: Source,
    pub magnitude: f32,
    pub out: Slot,
}

/// The rotation of every head.
#[derive(Clone, Debug)]
pub(crate) struct RopeOp {
    pub rope: Rope,
    pub head_dim: usize,
    pub x: Source,
    pub table: Slot,
    pub out: Slot,
}

impl RopeTable {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let positions = cx.numbers(&self.positions);
        let frequencies = cx.view(&self.frequencies);
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
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

impl RopeOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let x = cx.view(&self.x);
        let table = cx.arena.read::<f32>(cx.region(&self.table));
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.copy_from_slice(x.row(row));
            for head in out.chunks_exact_mut(self.head_dim) {
                rotate(cx.isa, &self.rope, table.row(row), head);
            }
        }
    }
}

/// Turns one head in place by the angles of a row of the table.
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
