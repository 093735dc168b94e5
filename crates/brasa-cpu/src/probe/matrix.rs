//! The speed at which all threads together multiply and add, with operands in registers or the first cache.
//!
//! Each loop is the inner loop of a kernel class without its loads from memory, its unpacking and its scales: a perfect
//! kernel would take this time. An empty `asm!` makes a register unknown to the compiler, which would otherwise lift
//! the products of unchanging operands out of the loop.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")
)]

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512};
use crate::linear::Arithmetic;
#[cfg(target_arch = "x86_64")]
use crate::tiles::{self, Amx, Tiles};
use crate::{Error, Isa, Team};

/// Rounds of a loop between two looks at the clock: some milliseconds.
const ROUNDS: u64 = 1 << 20;
/// Number of measurements; the best counts.
const ATTEMPTS: usize = 5;
/// Elements of the arrays that the portable loops multiply: they stay in the first cache.
const PORTABLE: usize = 1024;

/// Threads that multiply only to be timed.
#[derive(Debug)]
pub struct MatrixProbe {
    isa: Isa,
    team: Team,
}

/// A loop, and its number of operations.
#[derive(Clone, Copy, Debug)]
enum Loop {
    Portable(Arithmetic),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2, Arithmetic),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512, Arithmetic),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Arithmetic),
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

    /// Multiplications and additions a second of all threads together; `None` if the instruction set has no such unit, or
    /// none that was ever timed.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`].
    pub fn operations_per_second(&self, arithmetic: Arithmetic) -> Result<Option<f64>, Error> {
        let Some(looped) = Loop::of(self.isa, arithmetic) else { return Ok(None) };
        let rounds = looped.rounds();
        let mut best = 0.0_f64;
        for _ in 0..ATTEMPTS {
            let seconds = self.time(|| {
                black_box(looped.multiply(rounds));
            })?;
            let operations = looped.operations() * rounds * self.team.threads() as u64;
            best = best.max(operations as f64 / seconds.as_secs_f64());
        }
        Ok(Some(best))
    }

    /// The time from when all threads are awake until the last has done `work`.
    fn time(&self, work: impl Fn() + Sync) -> Result<Duration, Error> {
        let time = Mutex::new(Duration::ZERO);
        self.team.run(|thread, barrier| {
            barrier.wait();
            let started = Instant::now();
            work();
            barrier.wait();
            if thread == 0 {
                *time.lock().unwrap_or_else(PoisonError::into_inner) = started.elapsed();
            }
        })?;
        Ok(time.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Loop {
    fn of(isa: Isa, arithmetic: Arithmetic) -> Option<Self> {
        match (isa, arithmetic) {
            (Isa::Scalar, Arithmetic::Int8 | Arithmetic::F32) => Some(Self::Portable(arithmetic)),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(proof), Arithmetic::Int8 | Arithmetic::F32) => Some(Self::Avx2(proof, arithmetic)),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(proof), Arithmetic::Int8 | Arithmetic::F32) => Some(Self::Avx512(proof, arithmetic)),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(proof), Arithmetic::Bf16) => proof.bf16().map(|_| Self::Avx512(proof, arithmetic)),
            // Tiles in software have no ceiling worth the name.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512(proof), Arithmetic::Int8Tiles | Arithmetic::Bf16Tiles) => match proof.tiles() {
                Some(Tiles::Amx(amx)) => Some(Self::Amx(amx, arithmetic)),
                Some(Tiles::Emulated) | None => None,
            },
            // A loop that was never timed on a real processor says nothing of its peak.
            _ => None,
        }
    }

    /// Rounds of one measurement. The portable loops do several thousand operations a round, the loops of tiles a hundred
    /// thousand.
    const fn rounds(self) -> u64 {
        match self {
            Self::Portable(_) => ROUNDS >> 7,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(..) | Self::Avx512(..) => ROUNDS,
            #[cfg(target_arch = "x86_64")]
            Self::Amx(..) => ROUNDS >> 4,
        }
    }

    /// Runs rounds of the loop, and returns a sum that depends on every product.
    fn multiply(self, rounds: u64) -> f64 {
        match self {
            Self::Portable(Arithmetic::Int8) => portable_int8(rounds),
            Self::Portable(_) => portable_f32(rounds),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof, arithmetic) => avx2(proof, arithmetic, rounds),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof, arithmetic) => avx512(proof, arithmetic, rounds),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(amx, Arithmetic::Bf16Tiles) => amx.chain_bf16(rounds),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(amx, _) => amx.chain_int8(rounds),
        }
    }

    /// Multiplications and additions of a round.
    fn operations(self) -> u64 {
        let products = match self {
            Self::Portable(_) => PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof, Arithmetic::Int8) if proof.vnni().is_none() => x86::GROUPS * x86::ROWS * 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_, Arithmetic::Int8) => x86::CHAINS * 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(..) => x86::CHAINS * 8,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_, Arithmetic::Int8) => x86::CHAINS * 64,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_, Arithmetic::Bf16) => x86::CHAINS * 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(..) => x86::CHAINS * 16,
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_, Arithmetic::Bf16Tiles) => tiles::CHAINS * 16 * 16 * 32,
            #[cfg(target_arch = "x86_64")]
            Self::Amx(..) => tiles::CHAINS * 16 * 16 * 64,
        };
        2 * products as u64
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
    /// Number of sums that are kept at the same time, so that they fill the registers.
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
            _ => x86::avx2_f32(rounds),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512(proof: Avx512, arithmetic: Arithmetic, rounds: u64) -> f64 {
    // SAFETY: the value proves AVX-512 F, BW and VNNI, and its extension the products of bf16.
    unsafe {
        match arithmetic {
            Arithmetic::Int8 => x86::avx512_int8(rounds),
            Arithmetic::Bf16 if proof.bf16().is_some() => x86::avx512_bf16(rounds),
            _ => x86::avx512_f32(rounds),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![allow(
        clippy::wildcard_imports,
        clippy::needless_range_loop,
        reason = "intrinsics come by the dozen; adapters of iterators may not be inlined"
    )]

    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::array::from_fn;
    use std::hint::black_box;
    use std::mem::transmute;

    /// Sums side by side: more than latency times throughput of a multiply–add, which is 8 or 10. Operands of `asm!` are
    /// in the first 16 registers, also of AVX-512: with 24 sums, nine were stored and loaded in every round, and the
    /// ceiling was found at two thirds of where it is.
    pub(super) const CHAINS: usize = 12;
    /// Products that are added in 16 bits before they are widened, as with codes of 4 bits.
    pub(super) const GROUPS: usize = 4;
    /// Rows of activations.
    pub(super) const ROWS: usize = 4;

    /// Sums side by side after `$rounds` steps of each.
    macro_rules! chains {
        ($register:ident, $rounds:expr, $start:expr, |$sum:ident| $next:expr) => {{
            let mut sums = [$start; CHAINS];
            for _ in 0..$rounds {
                for $sum in &mut sums {
                    *$sum = $next;
                    // SAFETY: no instruction; the register is unchanged.
                    unsafe {
                        asm!(
                            "/* {0} */",
                            inout($register) * $sum,
                            options(pure, nomem, nostack, preserves_flags)
                        );
                    };
                }
            }
            sums
        }};
    }

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
            // Adapters of iterators are not inlined here: their methods would be compiled without these instructions.
            for row in 0..ROWS {
                let mut pairs = _mm256_maddubs_epi16(w[0], x[row][0]);
                for group in 1..GROUPS {
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[group], x[row][group]));
                }
                sums[row] = _mm256_add_epi32(sums[row], _mm256_madd_epi16(pairs, ones));
            }
        }
        sums.iter().map(|sum| f64::from(_mm256_extract_epi32::<0>(*sum))).sum()
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn avxvnni_int8(rounds: u64) -> f64 {
        let (w, x) = (_mm256_set1_epi8(black_box(1)), _mm256_set1_epi8(black_box(-1)));
        let sums =
            chains!(ymm_reg, rounds, _mm256_setzero_si256(), |sum| _mm256_dpbusd_avx_epi32(*sum, w, x));
        sums.iter().map(|sum| f64::from(_mm256_extract_epi32::<0>(*sum))).sum()
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2_f32(rounds: u64) -> f64 {
        let (w, x) = (_mm256_set1_ps(black_box(1.0)), _mm256_set1_ps(black_box(-1.0)));
        let sums = chains!(ymm_reg, rounds, _mm256_setzero_ps(), |sum| _mm256_fmadd_ps(w, x, *sum));
        sums.iter().map(|sum| f64::from(_mm256_cvtss_f32(*sum))).sum()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn avx512_int8(rounds: u64) -> f64 {
        let (w, x) = (_mm512_set1_epi8(black_box(1)), _mm512_set1_epi8(black_box(-1)));
        let sums = chains!(zmm_reg, rounds, _mm512_setzero_si512(), |sum| _mm512_dpbusd_epi32(*sum, w, x));
        sums.iter().map(|sum| f64::from(_mm512_cvtsi512_si32(*sum))).sum()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) fn avx512_bf16(rounds: u64) -> f64 {
        // SAFETY: both are 512 bits of which any are valid.
        let halves = |bits: u16| unsafe { transmute(_mm512_set1_epi16(black_box(bits).cast_signed())) };
        let (w, x): (__m512bh, __m512bh) = (halves(0x3f80), halves(0xbf80));
        let sums = chains!(zmm_reg, rounds, _mm512_setzero_ps(), |sum| _mm512_dpbf16_ps(*sum, w, x));
        sums.iter().map(|sum| f64::from(_mm512_cvtss_f32(*sum))).sum()
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512_f32(rounds: u64) -> f64 {
        let (w, x) = (_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(-1.0)));
        let sums = chains!(zmm_reg, rounds, _mm512_setzero_ps(), |sum| _mm512_fmadd_ps(w, x, *sum));
        sums.iter().map(|sum| f64::from(_mm512_cvtss_f32(*sum))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every loop multiplies ones by minus ones, so its result counts its products.
    #[test]
    fn every_loop_does_the_operations_that_are_counted() {
        for isa in Isa::choices() {
            for arithmetic in Arithmetic::ALL {
                let Some(looped) = Loop::of(isa, arithmetic) else { continue };
                let rounds = 1000;
                // The elements of a vector or of a tile are alike, and one of them is returned.
                let shown = match looped {
                    Loop::Portable(_) => 1,
                    #[cfg(target_arch = "x86_64")]
                    Loop::Avx2(..) => 8,
                    #[cfg(target_arch = "x86_64")]
                    Loop::Avx512(..) => 16,
                    #[cfg(target_arch = "x86_64")]
                    Loop::Amx(..) => 256,
                };
                let products = looped.operations() / 2 / shown * rounds;
                assert_eq!(-looped.multiply(rounds) as u64, products, "{} {arithmetic:?}", isa.name());
            }
        }
    }

    #[test]
    fn what_kernels_multiply_with_has_a_ceiling_unless_it_is_emulated() {
        use crate::linear::WeightClass::{Float16, Full, Quantised};
        for isa in Isa::choices() {
            for (class, rows) in [(Quantised, 1), (Quantised, 512), (Float16, 1), (Float16, 512), (Full, 512)]
            {
                let arithmetic = Arithmetic::of(isa, class, rows);
                let timed = cfg!(target_arch = "x86_64") || isa == Isa::Scalar;
                assert_eq!(Loop::of(isa, arithmetic).is_some(), timed, "{} {arithmetic:?}", isa.name());
                let Some(emulated) = isa.with_emulated_tiles() else { continue };
                let arithmetic = Arithmetic::of(emulated, class, rows);
                let tiles = matches!(arithmetic, Arithmetic::Int8Tiles | Arithmetic::Bf16Tiles);
                assert_eq!(Loop::of(emulated, arithmetic).is_none(), tiles, "{arithmetic:?}");
            }
        }
    }

    #[test]
    fn all_threads_are_counted() {
        let probe = MatrixProbe::new(Isa::Scalar, 2).unwrap();
        assert!(probe.operations_per_second(Arithmetic::F32).unwrap().unwrap() > 0.0);
        assert_eq!(probe.operations_per_second(Arithmetic::Bf16), Ok(None));
    }
}
