//! Random arrays: pure functions of a seed.

use brasa_graph::sampling::philox4x32;

use crate::Array;
use crate::array::check_shape;

impl Array {
    /// Independent numbers from 0 up to 1, 1 excluded. The same seed makes the same numbers.
    pub fn uniform(seed: u64, shape: &[usize]) -> Self {
        Self::drawn("uniform", shape, |elements| fractions(seed).take(elements).collect())
    }

    /// Independent numbers of the standard normal distribution. The same seed makes the same numbers.
    ///
    /// Box & Muller 1958, "A note on the generation of random normal deviates".
    pub fn normal(seed: u64, shape: &[usize]) -> Self {
        let value = |[first, second]: [f32; 2]| {
            // 1 − u is above zero.
            let radius = (-2.0 * (1.0 - first).ln()).sqrt();
            radius * (std::f32::consts::TAU * second).cos()
        };
        Self::drawn("normal", shape, |elements| {
            let mut drawn = fractions(seed);
            let pairs = std::iter::from_fn(|| Some([drawn.next()?, drawn.next()?]));
            pairs.map(value).take(elements).collect()
        })
    }

    fn drawn(operation: &'static str, shape: &[usize], values: impl Fn(usize) -> Vec<f32>) -> Self {
        match check_shape(operation, shape) {
            Ok(elements) => Self::new(values(elements), shape),
            Err(error) => Self::wrong(error),
        }
    }
}

/// The words of a seed's stream as shares of 2³², to 24 bits.
fn fractions(seed: u64) -> impl Iterator<Item = f32> {
    let block =
        move |at: u64| philox4x32([at as u32, (at >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    (0..).flat_map(block).map(|word| (word >> 8) as f32 / 16_777_216.0)
}
