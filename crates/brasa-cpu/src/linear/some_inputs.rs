//! Adds products of single rows with some inputs of packed floats.
//!
//! `y[n] += Σ_k x[k] · w[n, first + k]`: the second matrix of a bank of adapters, of which a row uses a few columns. The order of a sum
//! depends on the number of these inputs alone: even and odd ones by themselves, then both together.

use std::ops::Range;

use super::float_layout::FloatLayout;
use super::formats::Float;
use super::layout::LANES;
use crate::simd::{Kernel, Simd, vectorize};
use crate::{Isa, prefetch};

/// Number of strips between the multiplied strip and the prefetched strip: a few inputs of each lie too far apart for the
/// processor's own prefetching.
const AHEAD: usize = 8;

/// The place of the next strips' weights, for prefetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// In a cache, since other rows are multiplied with the same ones.
    Cached,
    /// In memory, and are fetched.
    Fetched,
}

/// Packed strips of floats, of outputs that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct FloatStrips<'a> {
    pub(super) layout: FloatLayout,
    pub(super) bytes: &'a [u8],
}

impl FloatStrips<'_> {
    /// The bytes of the weights of some inputs, in a strip, and of one more if they end at an odd number.
    fn of(&self, strip: usize, inputs: &Range<usize>) -> &[u8] {
        let input_bytes = LANES * self.layout.float.bytes();
        let strip = self.strip(strip);
        &strip[inputs.start * input_bytes..inputs.end.next_multiple_of(2) * input_bytes]
    }

    fn strip(&self, strip: usize) -> &[u8] {
        &self.bytes[strip * self.layout.strip_bytes()..][..self.layout.strip_bytes()]
    }

    fn is_used(&self, strip: usize, inputs: &Range<usize>) -> bool {
        if inputs.start.is_multiple_of(2) && inputs.end.is_multiple_of(2) {
            return self.of(strip, inputs).iter().any(|&byte| byte != 0);
        }
        let bytes = self.strip(strip);
        let mut lanes = 0..LANES;
        lanes.any(|lane| inputs.clone().any(|input| self.layout.weight(bytes, lane, input).to_bits() != 0))
    }

    /// The strips from the first to the last that have weights other than zero for some inputs.
    pub fn used(&self, inputs: &Range<usize>) -> Range<usize> {
        let strips = self.bytes.len() / self.layout.strip_bytes();
        let first = (0..strips).find(|&strip| self.is_used(strip, inputs)).unwrap_or(0);
        first..(first..strips).rfind(|&strip| self.is_used(strip, inputs)).map_or(first, |last| last + 1)
    }

    /// True if [`add`](Self::add) can multiply these inputs: they begin at an even number, and an odd end has an input behind it.
    pub const fn adds(&self, inputs: &Range<usize>) -> bool {
        inputs.start.is_multiple_of(2) && inputs.end.next_multiple_of(2) <= self.layout.k
    }

    /// Adds the products of `x`, the activations of some inputs, with `strips` to `y`, their outputs. If the inputs end at an odd number,
    /// `x` has a zero behind them.
    ///
    /// # Panics
    ///
    /// If lengths do not fit, or inputs are not [multiplied](Self::adds).
    pub fn add(
        &self,
        isa: Isa,
        strips: Range<usize>,
        inputs: &Range<usize>,
        x: &[f32],
        y: &mut [f32],
        ahead: Ahead,
    ) {
        assert!(
            self.adds(inputs) && x.len() == inputs.len().next_multiple_of(2),
            "{} activations of inputs {inputs:?} of {}",
            x.len(),
            self.layout.k
        );
        assert_eq!(y.len().div_ceil(LANES), strips.len(), "strips of {} outputs", y.len());
        match self.layout.float {
            Float::F32 => vectorize(isa, Add::<0> { weights: self, strips, inputs, x, y, ahead }),
            Float::F16 => vectorize(isa, Add::<1> { weights: self, strips, inputs, x, y, ahead }),
            Float::BF16 => vectorize(isa, Add::<2> { weights: self, strips, inputs, x, y, ahead }),
        }
    }
}

/// The sums of some strips; F is the storage type: F32, F16, BF16.
struct Add<'a, const F: u8> {
    weights: &'a FloatStrips<'a>,
    strips: Range<usize>,
    inputs: &'a Range<usize>,
    x: &'a [f32],
    y: &'a mut [f32],
    ahead: Ahead,
}

impl<const F: u8> Kernel for Add<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { weights, strips, inputs, x, y, ahead } = self;
        let (pairs, _) = x.as_chunks::<2>();
        // Not a closure, which would be compiled without the instructions of `simd`.
        for (strip, y) in strips.zip(y.chunks_mut(LANES)) {
            let mut sums = [simd.splat(0.0); 2];
            let bytes = weights.of(strip, inputs);
            if ahead == Ahead::Fetched {
                let later = bytes.as_ptr().wrapping_add(AHEAD * weights.layout.strip_bytes());
                prefetch::lines(later, bytes.len());
            }
            if F == 0 {
                let (lines, _) = bytes.as_chunks::<{ 8 * LANES }>();
                for (x, line) in pairs.iter().zip(lines) {
                    let words = bytemuck::cast::<[u8; 8 * LANES], [[f32; LANES]; 2]>(*line);
                    sums[0] = simd.mul_add(simd.load(&words[0]), simd.splat(x[0]), sums[0]);
                    sums[1] = simd.mul_add(simd.load(&words[1]), simd.splat(x[1]), sums[1]);
                }
            } else {
                let (lines, _) = bytes.as_chunks::<{ 4 * LANES }>();
                for (x, line) in pairs.iter().zip(lines) {
                    let halves = if F == 1 {
                        let words = bytemuck::cast::<[u8; 4 * LANES], [[u16; LANES]; 2]>(*line);
                        [simd.load_f16(&words[0]), simd.load_f16(&words[1])]
                    } else {
                        let words = bytemuck::cast::<[u8; 4 * LANES], [u32; LANES]>(*line);
                        let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
                        for lane in 0..LANES {
                            even[lane] = f32::from_bits(words[lane] << 16);
                            odd[lane] = f32::from_bits(words[lane] & 0xffff_0000);
                        }
                        [simd.load(&even), simd.load(&odd)]
                    };
                    sums[0] = simd.mul_add(halves[0], simd.splat(x[0]), sums[0]);
                    sums[1] = simd.mul_add(halves[1], simd.splat(x[1]), sums[1]);
                }
            }
            let sum = simd.add(sums[0], sums[1]);
            if let Ok(y) = <&mut [f32; LANES]>::try_from(&mut *y) {
                simd.store(simd.add(simd.load(y), sum), y);
            } else {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                for (y, sum) in y.iter_mut().zip(lanes) {
                    *y += sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use brasa_formats::StorageFormat;
    use brasa_graph::WeightPart;
    use brasa_graph::device::Precision;
    use brasa_graph::testing::{Noise, random_tensor};

    use super::*;
    use crate::Team;
    use crate::linear::{PackedLinear, Packer};

    #[test]
    fn some_inputs_of_every_float_format() {
        let (n, k) = (75, 24);
        let team = Team::new(1).unwrap();
        for format in [StorageFormat::F32, StorageFormat::F16, StorageFormat::BF16] {
            let tensor = random_tensor(format, n, k, &mut Noise::new(3));
            let linear =
                PackedLinear::new("w", &[WeightPart::whole(tensor)], Precision::Fast, &Packer::new(&team))
                    .unwrap();
            let strips = linear.float_strips().unwrap();
            for isa in Isa::available() {
                for (inputs, outputs, ahead) in [
                    (0..24, 0..75_usize, Ahead::Fetched),
                    (4..12, 16..64, Ahead::Cached),
                    (20..24, 64..75, Ahead::Fetched),
                    (4..9, 0..16, Ahead::Cached),
                ] {
                    let mut x: Vec<f32> = (0..inputs.len()).map(|k| k as f32 * 0.3 - 0.7).collect();
                    x.resize(inputs.len().next_multiple_of(2), 0.0);
                    let mut y: Vec<f32> = outputs.clone().map(|n| n as f32).collect();
                    let of = outputs.start / 16..outputs.end.div_ceil(16);
                    strips.add(isa, of, &inputs, &x, &mut y, ahead);
                    for (output, y) in outputs.zip(y) {
                        let mut row = vec![0.0; k];
                        linear.decode_row(output, &mut row);
                        let products = row[inputs.clone()].iter().zip(&x);
                        let expected =
                            output as f64 + products.map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
                        let error = (f64::from(y) - expected).abs();
                        assert!(
                            error < 1e-5 * expected.abs().max(1.0),
                            "{format} {isa:?} {output}: {y} {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn strips_of_zeros_are_not_used() {
        let mut values = vec![0.0; 80 * 8];
        for output in 20..40 {
            values[output * 8 + 5] = 1.0;
        }
        let tensor = brasa_formats::Tensor::of_floats("w", vec![80, 8], &values);
        let team = Team::new(1).unwrap();
        let linear =
            PackedLinear::new("w", &[WeightPart::whole(tensor)], Precision::Fast, &Packer::new(&team));
        let linear = linear.unwrap();
        let strips = linear.float_strips().unwrap();
        let used = [4..8, 0..4, 5..6, 6..8, 3..5].map(|inputs| strips.used(&inputs));
        assert_eq!(used, [1..3, 0..0, 1..3, 0..0, 0..0]);
    }
}
