//! Random arrays: pure functions of a seed.

use brasa_graph::sampling::philox4x32;

use crate::Array;
use crate::array::check_shape;

impl Array {
    /// Independent numbers from 0 up to 1, 1 excluded. The same seed makes the same numbers.
    pub fn uniform(seed: u64, shape: &[usize]) -> Self {
        let values = |elements| (0..elements).map(|at| fraction(word(seed, at))).collect();
        Self::drawn("uniform", shape, values)
    }

    /// Independent numbers of the standard normal distribution. The same seed makes the same numbers.
    ///
    /// Box & Muller 1958, "A note on the generation of random normal deviates".
    pub fn normal(seed: u64, shape: &[usize]) -> Self {
        let value = |at: usize| {
            // 1 − u is above zero.
            let radius = (-2.0 * (1.0 - fraction(word(seed, 2 * at))).ln()).sqrt();
            radius * (std::f32::consts::TAU * fraction(word(seed, 2 * at + 1))).cos()
        };
        Self::drawn("normal", shape, |elements| (0..elements).map(value).collect())
    }

    fn drawn(operation: &'static str, shape: &[usize], values: impl Fn(usize) -> Vec<f32>) -> Self {
        match check_shape(operation, shape) {
            Ok(elements) => Self::new(values(elements), shape),
            Err(error) => Self::wrong(error),
        }
    }
}

/// Word `at` of a seed's stream.
fn word(seed: u64, at: usize) -> u32 {
    let block = (at / 4) as u64;
    let words = philox4x32([block as u32, (block >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    words[at % 4]
}

/// A word as a share of 2³², to 24 bits.
fn fraction(word: u32) -> f32 {
    (word >> 8) as f32 / 16_777_216.0
}
