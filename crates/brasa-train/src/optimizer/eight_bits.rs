//! Moments of eight bits a number (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861).
//!
//! An array is cut into blocks, each with the largest magnitude in it. A number is stored as a code for its ratio to that
//! magnitude. Codes are spaced like a small floating-point format: seven powers of ten, with finer steps toward 1 ("dynamic tree
//! quantization").

use std::sync::LazyLock;

/// Numbers that share a magnitude. The paper uses 2048; bitsandbytes, by the same authors, now uses 256.
pub const BLOCK: usize = 256;
/// Least number of elements of an array with moments in eight bits, as in bitsandbytes. Shorter arrays are norms and biases,
/// which take little memory.
pub const SHORTEST: usize = 4096;

/// Number of powers of ten of the codes.
const EXPONENTS: i32 = 7;

/// The values of the codes from −1 to 1, ascending.
static SIGNED: LazyLock<[f32; 256]> = LazyLock::new(|| dynamic_map(true));
/// The values of the codes from 0 to 1, ascending.
static UNSIGNED: LazyLock<[f32; 256]> = LazyLock::new(|| dynamic_map(false));
/// For the upper half of an f32's bits, the last signed code with a value that is no larger than any number with these bits.
static SIGNED_STARTS: LazyLock<Box<[u8]>> = LazyLock::new(|| starts(&SIGNED));
/// Like [`SIGNED_STARTS`], for codes from 0 to 1.
static UNSIGNED_STARTS: LazyLock<Box<[u8]>> = LazyLock::new(|| starts(&UNSIGNED));

/// An array in eight bits a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Codes {
    /// A code for each number: an index into [`map`].
    pub codes: Vec<u8>,
    /// The largest magnitude of each block of [`BLOCK`] numbers.
    pub magnitudes: Vec<f32>,
    /// True if numbers may be negative.
    pub is_signed: bool,
}

impl Codes {
    /// Codes of `count` zeros.
    pub fn zeros(count: usize, is_signed: bool) -> Self {
        let zero = nearest(map(is_signed), starts_of(is_signed), 0.0);
        Self { codes: vec![zero; count], magnitudes: vec![0.0; count.div_ceil(BLOCK)], is_signed }
    }

    /// Decodes the numbers of a block.
    pub fn decode(&self, block: usize, out: &mut [f32]) {
        let (map, magnitude) = (map(self.is_signed), self.magnitudes[block]);
        let codes = &self.codes[block * BLOCK..][..out.len()];
        out.iter_mut().zip(codes).for_each(|(x, &code)| *x = map[usize::from(code)] * magnitude);
    }

    /// Encodes the numbers of a block.
    pub fn encode(&mut self, block: usize, values: &[f32]) {
        let (map, starts) = (map(self.is_signed), starts_of(self.is_signed));
        let magnitude = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        self.magnitudes[block] = magnitude;
        let codes = &mut self.codes[block * BLOCK..][..values.len()];
        for (code, &x) in codes.iter_mut().zip(values) {
            *code = nearest(map, starts, if magnitude > 0.0 { x / magnitude } else { 0.0 });
        }
    }
}

/// The values of all codes, ascending.
pub fn map(is_signed: bool) -> &'static [f32; 256] {
    if is_signed { &SIGNED } else { &UNSIGNED }
}

fn starts_of(is_signed: bool) -> &'static [u8] {
    if is_signed { &SIGNED_STARTS } else { &UNSIGNED_STARTS }
}

/// A table for finding codes: a starting code for all numbers with the same upper half of their bits. Such numbers differ by less
/// than a hundredth, so one or two steps remain.
fn starts(map: &[f32; 256]) -> Box<[u8]> {
    let start = |upper: u32| {
        let ends = [upper << 16, upper << 16 | 0xFFFF].map(f32::from_bits);
        let least = ends[0].min(ends[1]);
        map.partition_point(|&value| value <= least).saturating_sub(1) as u8
    };
    (0..1 << 16).map(start).collect()
}

/// The code with the nearest value; the lower one if two are equally near.
fn nearest(map: &[f32; 256], starts: &[u8], x: f32) -> u8 {
    let mut left = usize::from(starts[(x.to_bits() >> 16) as usize]);
    while left < 255 && map[left + 1] <= x {
        left += 1;
    }
    let right = (left + 1).min(255);
    if (map[right] - x).abs() < (x - map[left]).abs() { right as u8 } else { left as u8 }
}

/// The values of the codes: means of evenly spaced bounds from 0.1 to 1, times a power of ten; and 0 and 1. The smallest power
/// has one value (two without signs), and each further one twice as many. Computed in f32, so that bits equal those of
/// bitsandbytes.
fn dynamic_map(is_signed: bool) -> [f32; 256] {
    let mut numbers = vec![0.0, 1.0];
    for exponent in 0..EXPONENTS {
        let items = (if is_signed { 1 } else { 2 }) << exponent;
        let bounds = evenly(items + 1);
        let power = 10_f64.powi(exponent - (EXPONENTS - 1)) as f32;
        for bounds in bounds.array_windows::<2>() {
            let number = power * f32::midpoint(bounds[0], bounds[1]);
            numbers.push(number);
            if is_signed {
                numbers.push(-number);
            }
        }
    }
    numbers.sort_by(f32::total_cmp);
    numbers.try_into().expect("256 numbers")
}

/// `count` evenly spaced numbers from 0.1 to 1, each half computed from its own end.
fn evenly(count: usize) -> Vec<f32> {
    let (start, end) = (0.1_f32, 1.0_f32);
    let step = (end - start) / (count - 1) as f32;
    let number = |at: usize| {
        if at < count / 2 {
            step.mul_add(at as f32, start)
        } else {
            (-step).mul_add((count - 1 - at) as f32, end)
        }
    };
    (0..count).map(number).collect()
}
