//! Vectors of sixteen f32 lanes, on any processor.
//!
//! A kernel is written once over [`Simd`] and compiled once per instruction set by [`vectorize`]. Every processor with
//! fused multiply–add rounds every lane alike, and horizontal sums have one fixed order. So the instruction set rarely
//! shows in a result, and the width of the processor's vectors never does.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "enables instructions behind proofs that the processor has them")
)]
mod lanes;
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
#[cfg(target_arch = "x86_64")]
pub(crate) use lanes::f16_to_f32;
pub(crate) use lanes::{LANES, Simd};
use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{read, transpose_words};

/// Code that runs on any instruction set. [`run`](Self::run) must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// The result.
    type Output;
    /// Runs the code with the instructions of `simd`.
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
        // SAFETY: the value proves NEON.
        Isa::Dotprod(proof) => unsafe { run_neon(proof.neon(), kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the value proves NEON.
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
