//! How fast all threads together multiply and add, with operands that never leave registers or the first cache.
//!
//! Each loop is the inner loop of a kernel class without its loads from memory, its unpacking and its scales: what would
//! be left of a perfect kernel. An empty `asm!` makes a register unknown to the compiler, which would otherwise lift
//! the products of unchanging operands out of the loop.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")
)]

use std::hint::black_box;
use std::time::Instant;

#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512};
use crate::{Error, Isa, Team};

/// Rounds of a loop between two looks at the clock: some milliseconds.
const ROUNDS: u64 = 1 << 18;
/// Measurements, of which the best counts.
const ATTEMPTS: usize = 5;
/// Elements of the arrays that the portable loops multiply: they stay in the first cache.
const PORTABLE: usize = 1024;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Weight codes times int8 activations, summed in 32 bits: quantised weights.
    Int8,
    /// f32 times f32: F32, F16 and BF16 weights, and attention.
    F32,
}

/// Threads that multiply for nothing.
#[derive(Debug)]
pub struct MatrixProbe {
    isa: Isa,
    team: Team,
}

impl MatrixProbe {
    /// Starts `threads` threads.
    ///
    /// # Errors
    ///
    /// [`Error::ThreadStart`].
    pub fn new(isa: Isa, threads: usize) -> Result<Self, Error> {
        Ok(Self { isa, team: Team::new(threads)? })
    }

    /// Multiplications and additions a second of all threads together; `None` where the kernels may use a unit that has no
    /// loop here: tiles, and products of bf16.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`].
    pub fn operations_per_second(&self, arithmetic: Arithmetic) -> Result<Option<f64>, Error> {
        if !self.has_loop(arithmetic) {
            return Ok(None);
        }
        let mut best = 0.0_f64;
        // The portable loops do several thousand operations a round.
        let rounds = if self.isa == Isa::Scalar { ROUNDS >> 5 } else { ROUNDS };
        for _ in 0..ATTEMPTS {
            let started = Instant::now();
            self.team.run(|_, _| {
                black_box(self.multiply(arithmetic, rounds));
            })?;
            let operations = self.operations(arithmetic) * rounds * self.team.threads() as u64;
            best = best.max(operations as f64 / started.elapsed().as_secs_f64());
        }
        Ok(Some(best))
    }

    fn has_loop(&self, arithmetic: Arithmetic) -> bool {
        match (self.isa, arithmetic) {
            // A loop that was never timed on a real processor says nothing of its peak.
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_), _) => false,
            (isa, Arithmetic::Int8) => !isa.has_tiles(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(proof), Arithmetic::F32) => proof.bf16().is_none(),
            (_, Arithmetic::F32) => true,
        }
    }

    /// Sums something that depends on every product.
    fn multiply(&self, arithmetic: Arithmetic, rounds: u64) -> f64 {
        match (self.isa, arithmetic) {
            (Isa::Scalar, Arithmetic::Int8) => portable_int8(rounds),
            (Isa::Scalar, Arithmetic::F32) => portable_f32(rounds),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(proof), _) => avx2(proof, arithmetic, rounds),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(proof), _) => avx512(proof, arithmetic, rounds),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_), Arithmetic::Int8) => portable_int8(rounds),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_), Arithmetic::F32) => portable_f32(rounds),
        }
    }

    /// Multiplications and additions of a round.
    fn operations(&self, arithmetic: Arithmetic) -> u64 {
        match (self.isa, arithmetic) {
            (Isa::Scalar, _) => 2 * PORTABLE as u64,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(proof), Arithmetic::Int8) if proof.vnni().is_some() => {
                (x86::AVX2_CHAINS * 32 * 2) as u64
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(_), Arithmetic::Int8) => (x86::GROUPS * x86::ROWS * 32 * 2) as u64,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(_), Arithmetic::F32) => (x86::AVX2_CHAINS * 8 * 2) as u64,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(_), Arithmetic::Int8) => (x86::AVX512_CHAINS * 64 * 2) as u64,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(_), Arithmetic::F32) => (x86::AVX512_CHAINS * 16 * 2) as u64,
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_), _) => 2 * PORTABLE as u64,
        }
    }
}

fn portable_int8(rounds: u64) -> f64 {
    let (w, x) = ([1_u8; PORTABLE], [-1_i8; PORTABLE]);
    let mut sum = 0_i64;
    for _ in 0..rounds {
        let products = black_box(&w).iter().zip(black_box(&x)).map(|(w, x)| i32::from(*w) * i32::from(*x));
        sum += i64::from(products.sum::<i32>());
    }
    sum as f64
}

fn portable_f32(rounds: u64) -> f64 {
    /// As many sums side by side as registers hold.
    const SUMS: usize = 32;
    let (w, x) = ([1.0_f32; PORTABLE], [-1.0_f32; PORTABLE]);
    let mut sums = [0.0_f32; SUMS];
    for _ in 0..rounds {
        let (w, x) = (black_box(&w), black_box(&x));
        for (w, x) in w.as_chunks::<SUMS>().0.iter().zip(x.as_chunks::<SUMS>().0) {
            for ((sum, w), x) in sums.iter_mut().zip(w).zip(x) {
                *sum += w * x;
            }
        }
    }
    sums.iter().map(|sum| f64::from(*sum)).sum()
}

#[cfg(target_arch = "x86_64")]
fn avx2(proof: Avx2, arithmetic: Arithmetic, rounds: u64) -> f64 {
    // SAFETY: the value proves AVX2 and FMA, and its extension AVX-VNNI.
    unsafe {
        match arithmetic {
            Arithmetic::Int8 if proof.vnni().is_some() => x86::avxvnni_int8(rounds),
            Arithmetic::Int8 => x86::avx2_int8(rounds),
            Arithmetic::F32 => x86::avx2_f32(rounds),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512(_: Avx512, arithmetic: Arithmetic, rounds: u64) -> f64 {
    // SAFETY: the value proves AVX-512 F, BW and VNNI.
    unsafe {
        match arithmetic {
            Arithmetic::Int8 => x86::avx512_int8(rounds),
            Arithmetic::F32 => x86::avx512_f32(rounds),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::array::from_fn;
    use std::hint::black_box;

    /// Sums of 8 f32 side by side: latency times throughput of a fused multiply–add, in 16 registers.
    pub(super) const AVX2_CHAINS: usize = 12;
    /// Sums of 16 side by side.
    pub(super) const AVX512_CHAINS: usize = 24;
    /// Products that are added in 16 bits before they are widened, as with codes of 4 bits.
    pub(super) const GROUPS: usize = 4;
    /// Rows of activations.
    pub(super) const ROWS: usize = 4;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2_int8(rounds: u64) -> f64 {
        let mut w: [__m256i; GROUPS] = from_fn(|_| _mm256_set1_epi8(1));
        let x = black_box([[_mm256_set1_epi8(-1); GROUPS]; ROWS]);
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_si256(); ROWS];
        for _ in 0..rounds {
            for w in &mut w {
                // SAFETY: no instruction; the register is unchanged.
                unsafe {
                    asm!("/* {0} */", inout(ymm_reg) * w, options(pure, nomem, nostack, preserves_flags));
                };
            }
            for (sum, x) in sums.iter_mut().zip(&x) {
                let mut pairs = _mm256_maddubs_epi16(w[0], x[0]);
                for (w, x) in w.iter().zip(x).skip(1) {
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*w, *x));
                }
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        sums.iter().map(|sum| f64::from(_mm256_extract_epi32::<0>(*sum))).sum()
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn avxvnni_int8(rounds: u64) -> f64 {
        let (w, x) = (_mm256_set1_epi8(black_box(1)), _mm256_set1_epi8(black_box(-1)));
        let mut sums = [_mm256_setzero_si256(); AVX2_CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, w, x);
                // SAFETY: no instruction; the register is unchanged.
                unsafe {
                    asm!("/* {0} */", inout(ymm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
                };
            }
        }
        sums.iter().map(|sum| f64::from(_mm256_extract_epi32::<0>(*sum))).sum()
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2_f32(rounds: u64) -> f64 {
        let (w, x) = (_mm256_set1_ps(black_box(1.0)), _mm256_set1_ps(black_box(-1.0)));
        let mut sums = [_mm256_setzero_ps(); AVX2_CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(w, x, *sum);
                // SAFETY: no instruction; the register is unchanged.
                unsafe {
                    asm!("/* {0} */", inout(ymm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
                };
            }
        }
        sums.iter().map(|sum| f64::from(_mm256_cvtss_f32(*sum))).sum()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn avx512_int8(rounds: u64) -> f64 {
        let (w, x) = (_mm512_set1_epi8(black_box(1)), _mm512_set1_epi8(black_box(-1)));
        let mut sums = [_mm512_setzero_si512(); AVX512_CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, w, x);
                // SAFETY: no instruction; the register is unchanged.
                unsafe {
                    asm!("/* {0} */", inout(zmm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
                };
            }
        }
        sums.iter().map(|sum| f64::from(_mm512_cvtsi512_si32(*sum))).sum()
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512_f32(rounds: u64) -> f64 {
        let (w, x) = (_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(-1.0)));
        let mut sums = [_mm512_setzero_ps(); AVX512_CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(w, x, *sum);
                // SAFETY: no instruction; the register is unchanged.
                unsafe {
                    asm!("/* {0} */", inout(zmm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
                };
            }
        }
        sums.iter().map(|sum| f64::from(_mm512_cvtss_f32(*sum))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every loop multiplies ones by minus ones, so its result counts its products.
    #[test]
    fn every_loop_does_the_operations_that_are_counted() {
        for isa in Isa::available() {
            for arithmetic in [Arithmetic::Int8, Arithmetic::F32] {
                let probe = MatrixProbe::new(isa, 1).unwrap();
                let rounds = 1000;
                let sum = probe.multiply(arithmetic, rounds);
                // A vector's lanes are alike, and one of them is returned.
                let shown = match (isa, arithmetic) {
                    (Isa::Scalar, _) => 1,
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx2(_), _) => 8,
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx512(_), _) => 16,
                    #[cfg(target_arch = "aarch64")]
                    (Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_), _) => 1,
                };
                let products = probe.operations(arithmetic) / 2 / shown * rounds;
                assert_eq!(-sum as u64, products, "{} {arithmetic:?}", isa.name());
            }
        }
    }

    #[test]
    fn all_threads_are_counted() {
        let probe = MatrixProbe::new(Isa::Scalar, 2).unwrap();
        assert!(probe.operations_per_second(Arithmetic::F32).unwrap().unwrap() > 0.0);
    }
}
