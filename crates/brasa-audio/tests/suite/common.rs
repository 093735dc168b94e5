//! Signals and comparisons.

use std::f64::consts::TAU;
use std::path::{Path, PathBuf};

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The signal of all files: one second, from 200 Hz up to 3 kHz, faded at both ends.
pub fn sweep(rate: u32) -> Vec<f32> {
    let sample = |n: u32| {
        let t = f64::from(n) / f64::from(rate);
        let fade = (t.min(1.0 - t) / 0.05).min(1.0);
        (0.5 * fade * (TAU * (200.0 * t + 1400.0 * t * t)).sin()) as f32
    };
    (0..rate).map(sample).collect()
}

/// The relative L2 distance over the samples that both have.
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (difference / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

/// A WAV file of these samples, with a header of 44 bytes.
pub fn wav(tag: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let frame_bytes = channels.wrapping_mul(bits.div_ceil(8));
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
    file.extend(tag.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend(rate.wrapping_mul(u32::from(frame_bytes)).to_le_bytes());
    file.extend(frame_bytes.to_le_bytes());
    file.extend(bits.to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    let riff_bytes = file.len() as u32 - 8;
    file[4..8].copy_from_slice(&riff_bytes.to_le_bytes());
    file
}

/// Knuth's generator, as in the scripts that made golden files.
pub fn noise(count: usize) -> Vec<f32> {
    let mut seed = 1_u64;
    let mut sample = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % 65_536) as f32 / 32_768.0 - 1.0
    };
    (0..count).map(|_| sample()).collect()
}
