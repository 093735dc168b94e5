//! A quad's codes of a block, from bit planes to bytes that a signed product can take.

#[allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]
use std::arch::aarch64::*;

use super::super::super::layout::{Codes, TABLE};
use super::super::kinds::Kind;
use super::{GROUPS, VECTOR};

/// Bytes from one vector of a plane to the next.
const PLANE_VECTOR: usize = 64;

/// [`TABLE`] around zero.
const CENTRED_TABLE: [u8; 16] = {
    let mut table = TABLE;
    let mut index = 0;
    while index < table.len() {
        table[index] ^= 0x80;
        index += 1;
    }
    table
};

/// True where codes, which fill a byte, are moved to −128..=127.
pub(super) const fn centred(codes: Codes) -> bool {
    matches!(codes, Codes::Bits8 | Codes::Table4)
}

/// The eight groups of a quad, four codes of each row.
///
/// # Safety
///
/// `planes` points to a packed block of kind K, or one to three vectors behind, for the other quads.
#[inline(always)]
pub(super) unsafe fn quad<K: Kind>(planes: *const u8) -> [int8x16_t; GROUPS] {
    // SAFETY: by the contract; NEON is part of every instruction set that asks.
    unsafe {
        [
            group::<K, 0>(planes),
            group::<K, 1>(planes),
            group::<K, 2>(planes),
            group::<K, 3>(planes),
            group::<K, 4>(planes),
            group::<K, 5>(planes),
            group::<K, 6>(planes),
            group::<K, 7>(planes),
        ]
    }
}

/// Group G; vectors and bits are counted as [`layout`](super::super::super::layout) says.
///
/// # Safety
///
/// As [`quad`].
#[inline(always)]
unsafe fn group<K: Kind, const G: usize>(planes: *const u8) -> int8x16_t {
    // SAFETY: by the contract; NEON is part of every instruction set that asks.
    unsafe {
        let load = |vector: usize| vld1q_u8(planes.add(PLANE_VECTOR * vector));
        let nibbles = |first: usize| bits(load(first + G % 4), G / 4 * 4, 0, 15);
        let pairs = |vector: usize, to: usize| bits(load(vector), G % 4 * 2, to, 3);
        let single = |to: usize| bits(load(0), G, to, 1);
        vreinterpretq_s8_u8(match K::CODES {
            Codes::Bits8 => veorq_u8(load(G), vdupq_n_u8(0x80)),
            Codes::Bits4 => nibbles(0),
            Codes::Table4 => vqtbl1q_u8(vld1q_u8(CENTRED_TABLE.as_ptr()), nibbles(0)),
            Codes::Bits5 => vorrq_u8(single(4), nibbles(1)),
            Codes::Bits6 => vorrq_u8(pairs(G / 4 * 5, 4), nibbles(1)),
            Codes::Bits2 => pairs(G / 4, 0),
            Codes::Bits3 => vorrq_u8(single(2), pairs(1 + G / 4, 0)),
        })
    }
}

/// The bits `mask` from place `from` of every byte, moved to place `to`.
#[inline(always)]
fn bits(vector: uint8x16_t, from: usize, to: usize, mask: u8) -> uint8x16_t {
    // SAFETY: NEON is part of every instruction set that asks.
    unsafe {
        macro_rules! shifted {
            ($shift:ident $by:expr) => {
                match $by {
                    1 => $shift::<1>(vector),
                    2 => $shift::<2>(vector),
                    3 => $shift::<3>(vector),
                    4 => $shift::<4>(vector),
                    5 => $shift::<5>(vector),
                    6 => $shift::<6>(vector),
                    7 => $shift::<7>(vector),
                    _ => vector,
                }
            };
        }
        let moved = if from >= to { shifted!(vshrq_n_u8 from - to) } else { shifted!(vshlq_n_u8 to - from) };
        vandq_u8(moved, vdupq_n_u8(mask << to))
    }
}

const _: () = assert!(VECTOR * 4 == PLANE_VECTOR, "a vector of a plane has four quads");
