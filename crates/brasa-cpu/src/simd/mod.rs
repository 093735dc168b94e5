//! Sixteen f32 lanes on whatever the processor has.
//!
//! A kernel is written once over [`Simd`] and compiled once per instruction set by [`vectorize`]. Every
//! implementation rounds every lane alike (where the processor has fused multiply–add), and horizontal sums have
//! one fixed order, so the instruction set rarely shows in the result and the number of lanes never does.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "enables instructions behind proofs that the processor has them")
)]
#![allow(clippy::excessive_precision, reason = "constants as published")]

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::Isa;
#[cfg(target_arch = "aarch64")]
use crate::isa::Neon;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512};
use portable::Portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A proof that some vector instructions exist, and those instructions.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// Vectors that may be accumulated in registers at the same time.
    const ACCUMULATORS: usize;

    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// IEEE halves.
    fn load_f16(self, from: &[u16; LANES]) -> Self::V;
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V;
    fn load_i8(self, from: &[i8; LANES]) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a < b ? x : y` in each lane.
    fn less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// To the nearest integer, ties to even; for magnitudes below 2²².
    fn round(self, v: Self::V) -> Self::V;
    /// `2^v` for integers in −126..=127.
    fn exp2_integer(self, v: Self::V) -> Self::V;

    /// The sum of all lanes, in one fixed order.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        lanes[0]
    }

    /// The largest lane; lanes must not be NaN.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                let (a, b) = (lanes[lane], lanes[lane + width]);
                lanes[lane] = if a > b { a } else { b };
            }
        }
        lanes[0]
    }

    /// `e^v`, within 2 ulp; 0 below −86.5, infinite above 88.72.
    #[inline(always)]
    fn exp(self, v: Self::V) -> Self::V {
        let x = self.min(self.splat(89.0), self.max(self.splat(-86.5), v));
        let (p, n) = self.exp_parts(x);
        // 2^n in two factors, since n may be 128.
        let half = self.exp2_integer(self.sub(n, self.splat(1.0)));
        let y = self.mul(self.mul(p, half), self.splat(2.0));
        self.less(v, self.splat(-86.5), self.splat(0.0), y)
    }

    /// `e^v` as [`exp`](Self::exp), where no v is above 1: weights of a softmax.
    #[inline(always)]
    fn exp_to_one(self, v: Self::V) -> Self::V {
        let (p, n) = self.exp_parts(self.max(self.splat(-86.5), v));
        self.less(v, self.splat(-86.5), self.splat(0.0), self.mul(p, self.exp2_integer(n)))
    }

    /// p and integers n of `e^x = p · 2^n`. Cephes' expf (Moshier 1989).
    #[inline(always)]
    fn exp_parts(self, x: Self::V) -> (Self::V, Self::V) {
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        let r = self.mul_add(n, self.splat(-0.693_359_4), x);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
            p = self.mul_add(p, r, self.splat(c));
        }
        (self.mul_add(p, self.mul(r, r), self.add(r, self.splat(1.0))), n)
    }

    /// `tanh v`, within 3 ulp.
    #[inline(always)]
    fn tanh(self, v: Self::V) -> Self::V {
        let zero = self.splat(0.0);
        let one = self.splat(1.0);
        let magnitude = self.less(v, zero, self.sub(zero, v), v);
        // Small: Cephes' tanhf polynomial.
        let z = self.mul(v, v);
        let mut p = self.splat(-5.704_988_7e-3);
        for c in [2.063_908_9e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8] {
            p = self.mul_add(p, z, self.splat(c));
        }
        let small = self.mul_add(self.mul(p, z), v, v);
        // Large: (1 − t) / (1 + t), t = e^(−2|v|).
        let t = self.exp(self.mul(magnitude, self.splat(-2.0)));
        let large = self.div(self.sub(one, t), self.add(one, t));
        let large = self.less(v, zero, self.sub(zero, large), large);
        self.less(magnitude, self.splat(0.625), small, large)
    }

    /// `1 / (1 + e^−v)`.
    #[inline(always)]
    fn sigmoid(self, v: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.splat(0.0), v))))
    }

    /// `v / (1 + e^−v)`.
    #[inline(always)]
    fn silu(self, v: Self::V) -> Self::V {
        self.div(v, self.add(self.splat(1.0), self.exp(self.sub(self.splat(0.0), v))))
    }

    /// `v/2 · (1 + tanh(√(2/π)·(v + 0.044715·v³)))`, as `v · sigmoid(2·…)`, which loses nothing where tanh nears −1.
    #[inline(always)]
    fn gelu_tanh(self, v: Self::V) -> Self::V {
        let cube = self.mul(self.mul(v, v), self.mul(v, self.splat(0.044_715)));
        let inner = self.mul(self.add(v, cube), self.splat(-2.0 * 0.797_884_6));
        self.div(v, self.add(self.splat(1.0), self.exp(inner)))
    }

    /// `v/2 · (1 + erf(v/√2))`, erfc by Chebyshev fit to 1.2e-7 relative (Press et al., Numerical Recipes).
    #[inline(always)]
    fn gelu_erf(self, v: Self::V) -> Self::V {
        let (zero, one) = (self.splat(0.0), self.splat(1.0));
        let x = self.mul(v, self.splat(std::f32::consts::FRAC_1_SQRT_2));
        let z = self.less(x, zero, self.sub(zero, x), x);
        let t = self.div(one, self.mul_add(z, self.splat(0.5), one));
        let mut p = self.splat(0.170_872_77);
        for c in [
            -0.822_152_23,
            1.488_515_87,
            -1.135_203_98,
            0.278_868_07,
            -0.186_288_06,
            0.096_784_18,
            0.374_091_96,
            1.000_023_68,
            -1.265_512_23,
        ] {
            p = self.mul_add(p, t, self.splat(c));
        }
        let erfc = self.mul(t, self.exp(self.sub(p, self.mul(z, z))));
        // 1 + erf(x) = erfc(−x).
        let sum = self.less(x, zero, erfc, self.sub(self.splat(2.0), erfc));
        self.mul(self.mul(v, self.splat(0.5)), sum)
    }
}

/// Code that runs on any instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Runs it with the instructions of `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel`, compiled for `isa`.
#[inline]
pub(crate) fn vectorize<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        Isa::Scalar => kernel.run(Portable),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value proves AVX2, FMA and F16C.
        Isa::Avx2(proof) => unsafe { run_avx2(proof, kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value proves AVX-512 F, BW, DQ and VL, and all that AVX2 proves.
        Isa::Avx512(proof) => unsafe { run_avx512(proof, kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the value proves NEON.
        Isa::Neon(proof) => unsafe { run_neon(proof, kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::Dotprod(proof) => unsafe { run_neon(proof.neon(), kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::I8mm(proof) => unsafe { run_neon(proof.neon(), kernel) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(proof: Avx2, kernel: K) -> K::Output {
    kernel.run(proof)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512<K: Kernel>(proof: Avx512, kernel: K) -> K::Output {
    kernel.run(proof)
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(proof: Neon, kernel: K) -> K::Output {
    kernel.run(proof)
}

/// The value of an IEEE half, without branches.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    // Exponents are rebased by a multiplication, which is right for subnormals too; infinities and NaN keep all bits set.
    let value = f32::from_bits(rest) * f32::from_bits(0x7780_0000);
    let special = if rest >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special | sign)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact results are meant")]
mod tests {
    use super::*;

    struct Functions<'a> {
        x: &'a [f32; LANES],
    }

    impl Kernel for Functions<'_> {
        type Output = [[f32; LANES]; 6];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let x = simd.load(self.x);
            let results = [
                simd.exp(x),
                simd.tanh(x),
                simd.sigmoid(x),
                simd.silu(x),
                simd.gelu_tanh(x),
                simd.gelu_erf(x),
            ];
            results.map(|v| {
                let mut lanes = [0.0; LANES];
                simd.store(v, &mut lanes);
                lanes
            })
        }
    }

    /// erf by its series, in f64.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn functions_agree_with_f64() {
        for isa in Isa::available() {
            for start in -40..40 {
                let x: [f32; LANES] =
                    std::array::from_fn(|lane| (start as f32 + lane as f32 / 16.0 + 0.013) * 0.1);
                let results = vectorize(isa, Functions { x: &x });
                for lane in 0..LANES {
                    let v = f64::from(x[lane]);
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v * v * v);
                    let expected = [
                        v.exp(),
                        v.tanh(),
                        1.0 / (1.0 + (-v).exp()),
                        v / (1.0 + (-v).exp()),
                        v / 2.0 * (1.0 + inner.tanh()),
                        v / 2.0 * (1.0 + erf(v / 2.0_f64.sqrt())),
                    ];
                    for (function, (result, expected)) in results.iter().zip(expected).enumerate() {
                        let error = (f64::from(result[lane]) - expected).abs();
                        assert!(
                            error <= 2e-6 * expected.abs() + 1e-12,
                            "{} function {function} of {v}: {} expected {expected}",
                            isa.name(),
                            result[lane]
                        );
                    }
                }
            }
        }
    }

    /// The number is that of AVX2 and AVX-512; every other processor that fuses has to find it too.
    #[test]
    fn every_fused_multiply_add_gives_the_same_bits() {
        for isa in Isa::available() {
            if isa == Isa::Scalar && !cfg!(target_arch = "aarch64") {
                continue;
            }
            // FNV-1a.
            let mut fingerprint = 0xcbf2_9ce4_8422_2325_u64;
            for start in -1000..1000 {
                let x = std::array::from_fn(|lane| (start as f32 + lane as f32 / 16.0 + 0.003) * 0.09);
                for value in vectorize(isa, Functions { x: &x }).as_flattened() {
                    fingerprint =
                        (fingerprint ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
            assert_eq!(fingerprint, 0xcf48_dca2_491c_4e16, "{}: {fingerprint:#018x}", isa.name());
        }
    }

    #[test]
    fn extremes_of_exp() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, -1000.0, 1000.0, f32::INFINITY, f32::NAN, 88.5]);
        for isa in Isa::available() {
            let exp = vectorize(isa, Functions { x: &x })[0];
            assert_eq!(exp[..4], [0.0, 0.0, f32::INFINITY, f32::INFINITY], "{}", isa.name());
            assert!(exp[4].is_nan());
            assert!((exp[5] / 88.5_f32.exp() - 1.0).abs() < 1e-5);
            assert_eq!(exp[6], 1.0);
        }
    }

    #[test]
    fn halves_are_read_exactly() {
        struct Load<'a>(&'a [u16; LANES]);
        impl Kernel for Load<'_> {
            type Output = [f32; LANES];
            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
                let mut lanes = [0.0; LANES];
                simd.store(simd.load_f16(self.0), &mut lanes);
                lanes
            }
        }
        for isa in Isa::available() {
            for start in (0..=u16::MAX).step_by(LANES) {
                let bits: [u16; LANES] = std::array::from_fn(|lane| start + lane as u16);
                let values = vectorize(isa, Load(&bits));
                for (bits, value) in bits.into_iter().zip(values) {
                    let expected = half::f16::from_bits(bits).to_f32();
                    assert!(value == expected || value.is_nan() && expected.is_nan(), "{bits:#06x}: {value}");
                }
            }
        }
    }
}
