//! Reproducible random numbers.

/// A stream of random numbers: xoshiro256++ (Blackman & Vigna 2021, arXiv:1805.01407), seeded by SplitMix64.
///
/// Streams of different numbers of one seed are independent, so that numbers from one stream do not depend on the use of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream with number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ mixed(stream.wrapping_add(1));
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mixed(state)
        }))
    }

    /// A stream that continues from `state`, which must not be all zeros.
    pub fn from_state(state: [u64; 4]) -> Self {
        Self(state)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let state = &mut self.0;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number below `bound`, all equally likely; 0 if `bound` is 0.
    ///
    /// Lemire 2019, arXiv:1805.10941.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.bits()) * u128::from(bound);
            if product as u64 >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number from 0 to below 1, a multiple of 2⁻²⁴.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u32 << 24) as f32
    }

    /// Shuffles `items`; all orders are equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end as u64 + 1) as usize);
        }
    }
}

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
