//! Asking for memory before it is needed.
//!
//! How well a processor streams by itself differs by maker. Reading Q4_0 for one row with two threads, asking for
//! the line 4 KiB ahead raised an Intel Xeon (Sapphire Rapids) from 16.6 to 27.8 GB/s, and cost an AMD EPYC (Zen 4)
//! a fifth to a half of its bandwidth; with several rows, which leave more time between two lines, it helps both.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// How far ahead of itself a kernel asks, where it does.
const AHEAD_BYTES: usize = 4096;

/// How far ahead of itself a kernel that reads weights for `rows` rows asks for them; zero where it had better not.
#[inline]
pub(crate) fn stream_ahead_bytes(rows: usize) -> usize {
    if rows > 1 || wants_help() { AHEAD_BYTES } else { 0 }
}

/// True where the processor streams faster when it is asked.
fn wants_help() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static INTEL: OnceLock<bool> = OnceLock::new();
        *INTEL.get_or_init(|| {
            let leaf = std::arch::x86_64::__cpuid(0);
            let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
            name.as_flattened() == b"GenuineIntel"
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Asks for the cache lines of `len_bytes` bytes from `start`, which need not exist.
#[inline(always)]
pub(crate) fn lines(start: *const u8, len_bytes: usize) {
    for offset in (0..len_bytes).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "an intrinsic")]
        // SAFETY: a hint, which reads nothing, of any address; every x86-64 has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, offset);
    }
}
