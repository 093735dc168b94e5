//! Prefetching: asking the memory for cache lines before a kernel reads them.
//!
//! The best policy differs by maker, and each line here was measured.
//!
//! - One row of Q4_0 on two threads: prefetching 4 KiB ahead raised an Intel Xeon (Sapphire Rapids) from 16.6 to 27.8 GB/s. The
//!   same hint cost an AMD EPYC (Zen 4), whose own prefetcher is good, a fifth to a half of its bandwidth.
//! - Four rows: the time between two lines grows too long for the EPYC's own prefetcher, which then reached 18 GB/s. Hints into the
//!   first cache are limited by two dozen miss registers (16 on the Xeon) to 27 GB/s. Hints into the second cache, further
//!   ahead, gave 40 GB/s. A Xeon (Emerald Rapids) read 28.6 GB/s with the first hint alone and 34 GB/s with both.
//! - Keys in q8, read in four blocks side by side: hints in the order of addresses, four blocks ahead, raised that EPYC
//!   from 20 to 30 GB/s and that Xeon from 17 to 22 GB/s.

use std::ptr;

use crate::isa::is_intel;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Distance of a hint into the first cache.
pub(crate) const NEAR_BYTES: usize = 4 << 10;
/// Distance of a hint into the second cache, if that is the only hint.
const FAR_BYTES: usize = 12 << 10;
/// Distance of a hint into the second cache, if another hint goes into the first.
const FARTHEST_BYTES: usize = 32 << 10;

/// The hints that a kernel gives about memory that it will read soon.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "kernels for aarch64 never ask"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefetchPolicy {
    /// No hints: the processor does better alone.
    Never,
    /// A near hint into the first cache and a far one into the second.
    Both,
    /// A far hint into the second cache only.
    Far,
}

impl PrefetchPolicy {
    /// The policy for a kernel that multiplies weights with `rows` rows. One row is bound by memory alone.
    #[inline]
    pub(crate) fn for_rows(rows: usize) -> Self {
        match rows {
            _ if !cfg!(target_arch = "x86_64") => Self::Never,
            _ if is_intel() => Self::Both,
            ..=1 => Self::Never,
            _ => Self::Far,
        }
    }

    /// The policy for attention over KV pages. Attention changes to other memory every few dozen KiB and reads several blocks
    /// side by side, which no processor's own prefetcher follows.
    #[inline]
    pub(crate) fn for_pages() -> Self {
        match is_intel() {
            true => Self::Both,
            false if cfg!(target_arch = "x86_64") => Self::Far,
            false => Self::Never,
        }
    }

    /// This policy with its distances in registers.
    #[inline(always)]
    pub(crate) fn distances(self) -> Distances {
        match self {
            Self::Never => Distances { near: false, far: 0 },
            Self::Both => Distances { near: true, far: FARTHEST_BYTES },
            Self::Far => Distances { near: false, far: FAR_BYTES },
        }
    }

    /// Prefetches `len_bytes` bytes at this policy's distances behind `start`.
    ///
    /// The addresses need not exist: a prefetch of an invalid address does nothing.
    #[inline(always)]
    pub(crate) fn prefetch(self, start: *const u8, len_bytes: usize) {
        match self {
            Self::Never => {}
            Self::Both => {
                lines(start.wrapping_add(NEAR_BYTES), len_bytes);
                each_line(start.wrapping_add(FARTHEST_BYTES), len_bytes, to_second_cache);
            }
            Self::Far => each_line(start.wrapping_add(FAR_BYTES), len_bytes, to_second_cache),
        }
    }
}

/// The distances of a [`PrefetchPolicy`], for loops that would else ask for the policy at every cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distances {
    near: bool,
    far: usize,
}

impl Distances {
    /// Prefetches `len_bytes` bytes at these distances behind `start`, as [`PrefetchPolicy::prefetch`] does.
    #[inline(always)]
    pub(crate) fn prefetch(self, start: *const u8, len_bytes: usize) {
        if self.near {
            lines(start.wrapping_add(NEAR_BYTES), len_bytes);
        }
        if self.far > 0 {
            each_line(start.wrapping_add(self.far), len_bytes, to_second_cache);
        }
    }
}

/// Memory that a kernel reads to its end, and the memory that it reads next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRange {
    /// One past the last byte.
    pub end: *const u8,
    /// First byte of the memory that is read afterwards; null if unknown.
    pub then: *const u8,
}

impl ReadRange {
    /// Addresses to prefetch while the kernel reads a piece that begins at `start`.
    ///
    /// The near address is read `near_bytes` later; the far one has the distance of the policy. Addresses past the end
    /// continue in [`then`](Self::then).
    #[inline(always)]
    pub(crate) fn targets(
        self,
        start: *const u8,
        near_bytes: usize,
        policy: PrefetchPolicy,
    ) -> PrefetchTargets {
        let place = |distance: usize| {
            let place = start.wrapping_add(distance);
            match place.addr().checked_sub(self.end.addr()) {
                Some(_) if self.then.is_null() => self.then,
                Some(beyond) => self.then.wrapping_add(beyond),
                None => place,
            }
        };
        match policy {
            PrefetchPolicy::Never => PrefetchTargets { near: ptr::null(), far: ptr::null() },
            PrefetchPolicy::Both => PrefetchTargets { near: place(near_bytes), far: place(FARTHEST_BYTES) },
            PrefetchPolicy::Far => PrefetchTargets { near: ptr::null(), far: place(FAR_BYTES) },
        }
    }
}

/// Addresses to prefetch while a piece of memory is read; null for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchTargets {
    /// Prefetched into the first cache.
    near: *const u8,
    /// Prefetched into the second cache.
    far: *const u8,
}

impl PrefetchTargets {
    /// Prefetches `len_bytes` bytes, beginning `offset` bytes behind each address.
    #[inline(always)]
    pub(crate) fn prefetch(self, offset: usize, len_bytes: usize) {
        if !self.near.is_null() {
            lines(self.near.wrapping_add(offset), len_bytes);
        }
        if !self.far.is_null() {
            each_line(self.far.wrapping_add(offset), len_bytes, to_second_cache);
        }
    }
}

/// Prefetches the cache lines of `len_bytes` bytes from `start` into the first cache. The memory need not exist.
#[inline(always)]
pub(crate) fn lines(start: *const u8, len_bytes: usize) {
    each_line(start, len_bytes, to_first_cache);
}

/// Prefetches the cache lines of `len_bytes` bytes from `start` into the second cache. The memory need not exist.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "asked for between products of AVX-512"))]
#[inline(always)]
pub(crate) fn second_cache_lines(start: *const u8, len_bytes: usize) {
    each_line(start, len_bytes, to_second_cache);
}

#[inline(always)]
fn each_line(start: *const u8, len_bytes: usize, ask: impl Fn(*const u8)) {
    for offset in (0..len_bytes).step_by(LINE_BYTES) {
        ask(start.wrapping_add(offset));
    }
}

macro_rules! ask {
    ($name:ident, $hint:ident) => {
        #[inline(always)]
        fn $name(line: *const u8) {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "an intrinsic")]
            // SAFETY: a hint, which reads nothing, of any address; every x86-64 has it.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::$hint }>(line.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    };
}
ask!(to_first_cache, _MM_HINT_T0);
ask!(to_second_cache, _MM_HINT_T1);
