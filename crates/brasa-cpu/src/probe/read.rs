//! The speed at which all threads together read memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memmap2::MmapMut;

use crate::prefetch::LINE_BYTES;
use crate::{Error, Isa, Team};

/// Parts of a thread's share that it reads side by side. Prefetchers follow a stream up to the end of its page; which
/// number of streams keeps most requests in flight differs from processor to processor.
const STREAMS: [usize; 3] = [1, 2, 4];

type Line = [u64; LINE_BYTES / 8];

/// A buffer far larger than the caches, and threads to read it.
#[derive(Debug)]
pub struct ReadProbe {
    isa: Isa,
    team: Team,
    memory: MmapMut,
}

impl ReadProbe {
    /// Fills `len_bytes` of memory with `threads` threads.
    ///
    /// The result is a ceiling only if the buffer is many times as large as the last cache: 1 GiB or more.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::ThreadStart`].
    pub fn new(isa: Isa, threads: usize, len_bytes: usize) -> Result<Self, Error> {
        let team = Team::new(threads)?;
        let unit = LINE_BYTES * STREAMS[STREAMS.len() - 1] * team.threads();
        let len_bytes = len_bytes.max(1).next_multiple_of(unit);
        let mut memory = MmapMut::map_anon(len_bytes)
            .map_err(|error| Error::OutOfMemory { bytes: len_bytes, reason: error.to_string() })?;
        // As weights have them; ordinary pages are read more slowly.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        {
            // Every thread touches its own share first: that is where its memory then lies.
            let shares: Vec<_> = memory.chunks_mut(len_bytes / team.threads()).map(Mutex::new).collect();
            team.run(|thread, _| {
                let mut share = shares[thread].lock().unwrap_or_else(PoisonError::into_inner);
                for (index, byte) in share.iter_mut().enumerate() {
                    *byte = (index / LINE_BYTES) as u8;
                }
            })?;
        }
        Ok(Self { isa, team, memory })
    }

    /// Size of the buffer in bytes.
    pub fn len_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Reads the buffer once in each of several patterns, and returns the bytes a second of the fastest.
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`].
    pub fn bytes_per_second(&self) -> Result<f64, Error> {
        let mut best = 0.0_f64;
        for streams in STREAMS {
            let started = Instant::now();
            black_box(self.read(streams)?);
            best = best.max(self.memory.len() as f64 / started.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// The exclusive or of the buffer's words, each thread reading its share in `streams` parts side by side.
    fn read(&self, streams: usize) -> Result<u64, Error> {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = streams;
        let lines: &[Line] = bytemuck::cast_slice(&self.memory);
        let share = lines.len() / self.team.threads();
        let sum = AtomicU64::new(0);
        self.team.run(|thread, _| {
            let lines = &lines[thread * share..][..share];
            let own = match self.isa {
                // Where the compiler chooses the vectors, a second stream only confuses it.
                Isa::Scalar => portable(lines),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(proof) => x86::avx2(proof, lines, streams),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(proof) => x86::avx512(proof, lines, streams),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_) => portable(lines),
            };
            sum.fetch_xor(own, Ordering::Relaxed);
        })?;
        Ok(sum.into_inner())
    }
}

fn portable(lines: &[Line]) -> u64 {
    let mut sums = Line::default();
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum ^= word;
        }
    }
    sums.iter().fold(0, |sum, word| sum ^ word)
}

/// Vector loads by hand: left to itself the compiler shuffles lanes between streams, and is five times slower than memory.
#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(unsafe_code, reason = "vector intrinsics behind proofs that the processor has them")]
    #![allow(
        clippy::wildcard_imports,
        clippy::cast_ptr_alignment,
        reason = "intrinsics come by the dozen; these loads need no alignment"
    )]

    use std::arch::x86_64::*;
    use std::array::from_fn;

    use super::Line;
    use crate::isa::{Avx2, Avx512};
    use crate::prefetch::{LINE_BYTES, PrefetchPolicy};

    pub(super) fn avx2(_: Avx2, lines: &[Line], streams: usize) -> u64 {
        // SAFETY: the value proves AVX2.
        unsafe {
            match streams {
                1 => read_avx2::<1>(lines),
                2 => read_avx2::<2>(lines),
                _ => read_avx2::<4>(lines),
            }
        }
    }

    pub(super) fn avx512(_: Avx512, lines: &[Line], streams: usize) -> u64 {
        // SAFETY: the value proves AVX-512 F.
        unsafe {
            match streams {
                1 => read_avx512::<1>(lines),
                2 => read_avx512::<2>(lines),
                _ => read_avx512::<4>(lines),
            }
        }
    }

    /// The prefetch policy: one stream is read as kernels read weights, several are left to the processor.
    fn policy_of(streams: usize) -> PrefetchPolicy {
        if streams == 1 { PrefetchPolicy::for_rows(1) } else { PrefetchPolicy::Never }
    }

    /// Divides `lines` into equal parts.
    fn parts<const N: usize>(lines: &[Line]) -> [&[Line]; N] {
        let part = lines.len() / N;
        assert_eq!(part * N, lines.len(), "lines of {N} streams");
        from_fn(|stream| &lines[stream * part..][..part])
    }

    #[target_feature(enable = "avx2")]
    fn read_avx2<const N: usize>(lines: &[Line]) -> u64 {
        let (streams, policy) = (parts::<N>(lines), policy_of(N));
        let mut sums = [_mm256_setzero_si256(); N];
        for at in 0..lines.len() / N {
            for (sum, stream) in sums.iter_mut().zip(&streams) {
                policy.prefetch(stream[at].as_ptr().cast(), LINE_BYTES);
                let line = stream[at].as_ptr().cast::<__m256i>();
                // SAFETY: a line has 64 bytes; unaligned loads.
                let (low, high) = unsafe { (_mm256_loadu_si256(line), _mm256_loadu_si256(line.add(1))) };
                *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(low, high));
            }
        }
        let all = sums.into_iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_xor_si256(all, sum));
        let mut words = [0; 4];
        // SAFETY: four words are 32 bytes; an unaligned store.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), all) };
        words.iter().fold(0, |sum: u64, word| sum ^ word)
    }

    #[target_feature(enable = "avx512f")]
    fn read_avx512<const N: usize>(lines: &[Line]) -> u64 {
        let (streams, policy) = (parts::<N>(lines), policy_of(N));
        let mut sums = [_mm512_setzero_si512(); N];
        for at in 0..lines.len() / N {
            for (sum, stream) in sums.iter_mut().zip(&streams) {
                policy.prefetch(stream[at].as_ptr().cast(), LINE_BYTES);
                // SAFETY: a line has 64 bytes; an unaligned load.
                let line = unsafe { _mm512_loadu_si512(stream[at].as_ptr().cast()) };
                *sum = _mm512_xor_si512(*sum, line);
            }
        }
        let all = sums.into_iter().fold(_mm512_setzero_si512(), |all, sum| _mm512_xor_si512(all, sum));
        let mut words = Line::default();
        // SAFETY: a line has 64 bytes; an unaligned store.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), all) };
        words.iter().fold(0, |sum, word| sum ^ word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_reads_every_byte() {
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut probe = ReadProbe::new(isa, threads, 100_000).unwrap();
                assert!(probe.len_bytes() >= 100_000);
                for place in [0, 33_333, 66_667, 99_999] {
                    probe.memory[place] ^= 1 << (place % 8);
                    let words: &[u64] = bytemuck::cast_slice(&probe.memory);
                    let expected = words.iter().fold(0, |sum, word| sum ^ word);
                    for streams in STREAMS {
                        assert_eq!(probe.read(streams), Ok(expected), "{} {streams} {place}", isa.name());
                    }
                }
                assert!(probe.bytes_per_second().unwrap() > 0.0);
            }
        }
    }
}
