//! Products of tiles in software, for machines without AMX.

use super::{Bf16Factors, Bf16MatrixUnit, Codes, Int8MatrixUnit, SLOTS, Sums, Weights};

/// Products of int8 in plain Rust, over the inputs of a block in one or two parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmulatedInt8 {
    /// Parts of a block.
    pub parts: usize,
}

impl Int8MatrixUnit for EmulatedInt8 {
    fn dot<const UNSIGNED: bool>(&self, slot: usize, part: usize, a: &Codes, b: &Weights, c: &mut Sums<i32>) {
        assert!(slot < SLOTS && part < self.parts, "slot {slot}, part {part}");
        let inputs = 32 / self.parts * part..32 / self.parts * (part + 1);
        for (a, c) in a.iter().zip(&mut c.0) {
            for (output, c) in c.iter_mut().enumerate() {
                *c = inputs.clone().fold(0, |sum, k| {
                    let weight = b[k / 4 * 64 + 4 * output + k % 4];
                    let weight = if UNSIGNED { i32::from(weight) } else { i32::from(weight.cast_signed()) };
                    sum + i32::from(a[k]) * weight
                });
            }
        }
    }
}

/// Products of bf16 in plain Rust.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmulatedBf16;

/// Reads a bf16 like the processor's unit: denormals are zero.
fn read_bf16(bits: u16) -> f32 {
    flush(f32::from_bits(u32::from(bits) << 16))
}

fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

impl Bf16MatrixUnit for EmulatedBf16 {
    /// In the order that Intel documents for TDPBF16PS: within a tile even and odd inputs are summed apart.
    fn sum_bf16<const ADD: bool>(&self, factors: Bf16Factors<'_>, c: &mut [&mut [Sums<f32>]]) {
        factors.check(c);
        for (b, c) in factors.b.iter().zip(c) {
            for (a, c) in factors.a.iter().zip(&mut **c) {
                for (row, c) in c.0.iter_mut().enumerate() {
                    for (output, c) in c.iter_mut().enumerate() {
                        let start = if ADD { *c } else { 0.0 };
                        *c = a.iter().zip(*b).fold(start, |sum, (a, b)| {
                            let mut pair = [0.0_f32; 2];
                            for (k, weights) in b.iter().enumerate() {
                                for (index, pair) in pair.iter_mut().enumerate() {
                                    let (x, w) =
                                        (read_bf16(a[row][2 * k + index]), read_bf16(weights[output][index]));
                                    *pair = flush(x.mul_add(w, *pair));
                                }
                            }
                            flush(sum + flush(pair[0] + pair[1]))
                        });
                    }
                }
            }
        }
    }
}
