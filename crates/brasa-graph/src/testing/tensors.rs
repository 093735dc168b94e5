//! Random weights of every storage format, and a small generator of numbers.

use brasa_formats::{Bytes, MlxAffine, Payload, StorageFormat, Tensor};

/// The generator xorshift. It gives the same numbers on every machine.
pub struct Noise(u64);

impl Noise {
    /// The sequence of numbers that follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number that is uniform in −1..1.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Roughly normal numbers, with occasional outliers as activations have.
    pub fn activations(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let normal: f32 = (0..4).map(|_| self.uniform()).sum();
                if self.bits().is_multiple_of(61) { normal * 6.0 } else { normal }
            })
            .collect()
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.bits().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// Every storage format; of MLX's formats, all widths.
pub fn formats() -> Vec<StorageFormat> {
    let mlx = [(2, 64), (3, 64), (4, 32), (4, 64), (4, 128), (5, 64), (6, 64), (8, 32), (8, 64), (8, 128)];
    let mlx = mlx.map(|(bits, group_size)| StorageFormat::MlxAffine(MlxAffine { bits, group_size }));
    StorageFormat::GGUF.into_iter().chain(mlx).collect()
}

/// Byte offsets of the 16-bit floats in a block.
fn halves(format: StorageFormat) -> &'static [usize] {
    use StorageFormat as F;
    match format {
        F::Q4_0 | F::Q5_0 | F::Q8_0 | F::IQ4_NL | F::IQ4_XS => &[0],
        F::Q4_1 | F::Q5_1 | F::Q4_K | F::Q5_K => &[0, 2],
        F::Q2_K => &[80, 82],
        F::Q3_K => &[108],
        F::Q6_K => &[208],
        F::F32 | F::F16 | F::BF16 | F::MlxAffine(_) => &[],
    }
}

/// A random tensor `[n, k]` in `format`.
///
/// # Panics
///
/// If `k` is not a whole number of blocks.
pub fn tensor(format: StorageFormat, n: usize, k: usize, noise: &mut Noise) -> Tensor {
    let floats = |format, len: usize, scale: f32, noise: &mut Noise| -> Vec<u8> {
        (0..len)
            .flat_map(|_| {
                let value = noise.uniform() * scale;
                match format {
                    StorageFormat::F32 => value.to_le_bytes().to_vec(),
                    StorageFormat::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                    _ => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                }
            })
            .collect()
    };
    let payload = match format {
        StorageFormat::F32 | StorageFormat::F16 | StorageFormat::BF16 => {
            Payload::Blocks(floats(format, n * k, 1.0, noise).into())
        }
        StorageFormat::MlxAffine(mlx) => {
            let groups = n * k / mlx.group_size as usize;
            let scale_format =
                [StorageFormat::F16, StorageFormat::BF16, StorageFormat::F32][mlx.bits as usize % 3];
            let largest = f32::from((1_u16 << mlx.bits) - 1);
            Payload::Mlx {
                words: noise.bytes(n * k * mlx.bits as usize / 8).into(),
                scales: floats(scale_format, groups, 2.0 / largest, noise).into(),
                biases: floats(scale_format, groups, 1.0, noise).into(),
                scale_format,
            }
        }
        _ => {
            let mut bytes = noise.bytes(format.row_bytes(k).expect("whole blocks") * n);
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                for &at in halves(format) {
                    let scale = half::f16::from_f32(noise.uniform() * 0.02);
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            Payload::Blocks(Bytes::from(bytes))
        }
    };
    Tensor { name: format!("random.{format}"), shape: vec![n, k], format, payload }
}
