//! The largest logit, of all and of each block.

/// Consecutive logits of a block.
pub(super) const BLOCK: usize = 256;

/// The largest number of `z` and the lowest id that has it; −∞ if there is no number.
pub(super) fn largest(z: &[f32]) -> (f32, u32) {
    first_of_largest(maxima(z), z)
}

/// The largest number of each block; −∞ for a block of NaN alone.
pub(super) fn maxima(z: &[f32]) -> impl Iterator<Item = f32> {
    z.chunks(BLOCK).map(max_of)
}

/// The largest of `z` and the lowest id that has it, if `maxima` are those of its blocks.
pub(super) fn first_of_largest(maxima: impl Iterator<Item = f32>, z: &[f32]) -> (f32, u32) {
    let mut best = (f32::NEG_INFINITY, 0);
    for (block, max) in maxima.enumerate() {
        if max > best.0 {
            best = (max, block * BLOCK);
        }
    }
    let (max, first) = best;
    let id = z[first..].iter().position(|&z| z >= max).map_or(0, |place| first + place);
    (max, id as u32)
}

/// The largest number of `z`; −∞ if there is no number.
fn max_of(z: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (chunks, rest) = z.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &z) in lanes.iter_mut().zip(chunk) {
            // False where `z` is no number.
            *lane = if z > *lane { z } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}
