//! Sixteen lanes as an array.

use super::lanes::{LANES, Simd, f16_to_f32};

/// Plain Rust; the compiler finds the vectors that the target always has (NEON on aarch64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Portable {
    #[inline(always)]
    fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
        std::array::from_fn(|lane| f(a[lane], b[lane]))
    }
}

impl Simd for Portable {
    type V = [f32; LANES];
    const ACCUMULATORS: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::V {
        from.map(f16_to_f32)
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V {
        from.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::V {
        from.map(f32::from)
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        Self::map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|lane| {
            // Without the instruction, a fused multiply–add is a slow library call.
            if cfg!(target_arch = "aarch64") {
                a[lane].mul_add(b[lane], c[lane])
            } else {
                a[lane] * b[lane] + c[lane]
            }
        })
    }
    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|lane| if a[lane] < b[lane] { x[lane] } else { y[lane] })
    }
    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        // Beyond 2²³ there are no fractions left to keep.
        const MAGIC: f32 = 12_582_912.0;
        v.map(|x| (x + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn exp2_integer(self, v: Self::V) -> Self::V {
        v.map(|x| f32::from_bits(((x as i32).wrapping_add(127) << 23) as u32))
    }
}
