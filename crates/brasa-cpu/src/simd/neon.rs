//! NEON: four vectors of four lanes.
//!
//! Rust's targets for this architecture always have these instructions; the proof is carried nevertheless, so that
//! a kernel reads alike on every processor.
#![expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")]

#[allow(clippy::wildcard_imports, reason = "intrinsics")]
use std::arch::aarch64::*;

use super::lanes::{LANES, Simd};
use crate::isa::Neon;

/// Four quarters of sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Quads(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

impl Quads {
    #[inline(always)]
    fn map(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self(f(self.0), f(self.1), f(self.2), f(self.3))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(f(self.0, other.0), f(self.1, other.1), f(self.2, other.2), f(self.3, other.3))
    }
}

macro_rules! quadwise {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, a: Quads, b: Quads) -> Quads {
            // SAFETY: `self` proves NEON.
            a.zip(b, |a, b| unsafe { $intrinsic(a, b) })
        }
    };
}

impl Simd for Neon {
    type V = Quads;
    /// Half of 32 registers. The other half holds a vector, a factor and operands that are being loaded.
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Quads {
        // SAFETY: `self` proves NEON.
        let quad = unsafe { vdupq_n_f32(value) };
        Quads(quad, quad, quad, quad)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Quads {
        let from = from.as_ptr();
        // SAFETY: `self` proves NEON; sixteen elements are there.
        unsafe {
            Quads(vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12)))
        }
    }
    #[inline(always)]
    fn store(self, v: Quads, to: &mut [f32; LANES]) {
        let to = to.as_mut_ptr();
        // SAFETY: `self` proves NEON; sixteen elements are there.
        unsafe {
            vst1q_f32(to, v.0);
            vst1q_f32(to.add(4), v.1);
            vst1q_f32(to.add(8), v.2);
            vst1q_f32(to.add(12), v.3);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Quads {
        let from = from.as_ptr();
        // SAFETY: `self` proves NEON; sixteen elements are there.
        unsafe {
            let (low, high) =
                (vreinterpretq_f16_u16(vld1q_u16(from)), vreinterpretq_f16_u16(vld1q_u16(from.add(8))));
            Quads(
                vcvt_f32_f16(vget_low_f16(low)),
                vcvt_high_f32_f16(low),
                vcvt_f32_f16(vget_low_f16(high)),
                vcvt_high_f32_f16(high),
            )
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Quads {
        let from = from.as_ptr();
        // SAFETY: `self` proves NEON; sixteen elements are there.
        unsafe {
            let (low, high) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            Quads(
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
            )
        }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Quads {
        // SAFETY: `self` proves NEON; sixteen elements are there.
        unsafe {
            let bytes = vld1q_s8(from.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Quads(
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            )
        }
    }
    quadwise!(add, vaddq_f32);
    quadwise!(sub, vsubq_f32);
    quadwise!(mul, vmulq_f32);
    quadwise!(div, vdivq_f32);
    // Not `vmaxq` and `vminq`, which give NaN where either is.
    #[inline(always)]
    fn max(self, a: Quads, b: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        a.zip(b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn min(self, a: Quads, b: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        a.zip(b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn mul_add(self, a: Quads, b: Quads, c: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        unsafe {
            Quads(
                vfmaq_f32(c.0, a.0, b.0),
                vfmaq_f32(c.1, a.1, b.1),
                vfmaq_f32(c.2, a.2, b.2),
                vfmaq_f32(c.3, a.3, b.3),
            )
        }
    }
    #[inline(always)]
    fn less(self, a: Quads, b: Quads, x: Quads, y: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        unsafe {
            Quads(
                vbslq_f32(vcltq_f32(a.0, b.0), x.0, y.0),
                vbslq_f32(vcltq_f32(a.1, b.1), x.1, y.1),
                vbslq_f32(vcltq_f32(a.2, b.2), x.2, y.2),
                vbslq_f32(vcltq_f32(a.3, b.3), x.3, y.3),
            )
        }
    }
    #[inline(always)]
    fn round(self, v: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        v.map(|v| unsafe { vrndnq_f32(v) })
    }
    #[inline(always)]
    fn exp2_integer(self, v: Quads) -> Quads {
        // SAFETY: `self` proves NEON.
        v.map(|v| unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(v), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }
}
