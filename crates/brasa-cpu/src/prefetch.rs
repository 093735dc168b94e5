//! Asking for memory before it is needed.
//!
//! How well a processor streams by itself differs by maker. Reading Q4_0 for one row with two threads, asking for
//! the line 4 KiB ahead raised an Intel Xeon (Sapphire Rapids) from 16.6 to 27.8 GB/s, and cost an AMD EPYC (Zen 4)
//! a fifth to a half of its bandwidth. Several rows leave too much time between two lines for that EPYC's prefetcher:
//! 18 GB/s with 4 rows. What is asked for into the first cache waits in one of its two dozen miss registers (16 on the Xeon)
//! until memory answers, 27 GB/s at most; asking into the second, and further ahead, gave 40 there, and on a Xeon (Emerald
//! Rapids) both together gave 34 where the first alone gave 28.6.
//!
//! Keys are read in four blocks side by side. Asked for in the order of their addresses, four blocks ahead, keys and values of
//! q8 came at 30 instead of 20 GB/s on that EPYC and at 22 instead of 17 on that Xeon.

use std::ptr;

use crate::isa::is_intel;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// How far ahead of itself a kernel asks for what goes into the first cache.
pub(crate) const NEAR_BYTES: usize = 4 << 10;
/// The same for the second.
const FAR_BYTES: usize = 12 << 10;
/// The same where it asks for both.
const FARTHEST_BYTES: usize = 32 << 10;

/// How a kernel asks for the weights that it will read.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "kernels for aarch64 never ask"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Not at all: the processor had better be left alone.
    Never,
    /// Into the second cache, and nearer into the first.
    Both,
    /// Into the second cache, further ahead.
    Far,
}

impl Ahead {
    /// What suits a kernel that reads weights for `rows` rows; of one row, it waits for nothing but memory.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn of_rows(rows: usize) -> Self {
        match rows {
            _ if is_intel() => Self::Both,
            ..=1 => Self::Never,
            _ => Self::Far,
        }
    }

    /// What suits attention, which turns to other memory every few dozen KiB and reads several blocks of it side by side: no
    /// processor's own prefetcher keeps up with that.
    #[inline]
    pub(crate) fn of_pages() -> Self {
        match is_intel() {
            true => Self::Both,
            false if cfg!(target_arch = "x86_64") => Self::Far,
            false => Self::Never,
        }
    }

    /// Asks for what comes so far behind `len_bytes` bytes from `start`; it need not exist.
    #[inline(always)]
    pub(crate) fn ask(self, start: *const u8, len_bytes: usize) {
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

/// Memory that is read up to its end, and what is read after it: null where nobody knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub end: *const u8,
    pub then: *const u8,
}

impl Stretch {
    /// What to ask for while a piece of it is read that begins at `start`: what is read `near_bytes` later, into the first
    /// cache, and what is read later still.
    #[inline(always)]
    pub(crate) fn ahead_of(self, start: *const u8, near_bytes: usize, ahead: Ahead) -> Asked {
        let place = |distance: usize| {
            let place = start.wrapping_add(distance);
            match place.addr().checked_sub(self.end.addr()) {
                Some(_) if self.then.is_null() => self.then,
                Some(beyond) => self.then.wrapping_add(beyond),
                None => place,
            }
        };
        match ahead {
            Ahead::Never => Asked { near: ptr::null(), far: ptr::null() },
            Ahead::Both => Asked { near: place(near_bytes), far: place(FARTHEST_BYTES) },
            Ahead::Far => Asked { near: ptr::null(), far: place(FAR_BYTES) },
        }
    }
}

/// Where that begins which is asked for while a piece of memory is read; null for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    near: *const u8,
    far: *const u8,
}

impl Asked {
    /// Asks for `len_bytes` bytes, `offset` bytes behind the first ones.
    #[inline(always)]
    pub(crate) fn ask(self, offset: usize, len_bytes: usize) {
        if !self.near.is_null() {
            lines(self.near.wrapping_add(offset), len_bytes);
        }
        if !self.far.is_null() {
            each_line(self.far.wrapping_add(offset), len_bytes, to_second_cache);
        }
    }
}

/// Asks for the cache lines of `len_bytes` bytes from `start`, which need not exist.
#[inline(always)]
pub(crate) fn lines(start: *const u8, len_bytes: usize) {
    each_line(start, len_bytes, to_first_cache);
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
