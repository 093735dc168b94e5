//! Reproducible random numbers.

use crate::Weight;

/// A small generator (splitmix64; Steele, Lea & Flood 2014): equal seeds give equal numbers for all time.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of numbers that follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A random whole number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number that is uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// A standard normal number (Box & Muller 1958).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }

    /// `len` standard normals times `scale`.
    pub fn normals(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.normal() * scale).collect()
    }

    /// A weight of normals, scaled so that a linear layer keeps its input's magnitude.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Weight {
        let fan_in = shape.last().copied().unwrap_or(1).max(1);
        let values = self.normals(shape.iter().product(), 1.0 / (fan_in as f32).sqrt());
        super::weight(name, shape, &values)
    }
}
