//! Codes of a block to bit planes and back, in plain Rust. [`layout`](super::layout) says where each bit goes.

use super::formats::Codes;
use super::layout::{BLOCK, WIDE_BLOCK_BYTES};

const VECTOR: usize = 64;

/// Codes of a block, one byte each, group by group.
pub(super) type WideBlock = [u8; WIDE_BLOCK_BYTES];

/// Packs the codes of a block into planes. `packed` must be zero before.
pub(super) fn pack(codes: Codes, wide: &WideBlock, packed: &mut [u8]) {
    let groups = wide.as_chunks::<VECTOR>().0;
    let (planes, _) = packed.as_chunks_mut::<VECTOR>();
    for (group, codes_of_group) in groups.iter().enumerate() {
        let mut put = |vector: usize, shift: usize, from: u32, mask: u8| {
            for (byte, code) in planes[vector].iter_mut().zip(codes_of_group) {
                *byte |= ((code >> from) & mask) << shift;
            }
        };
        let mut put_nibble = |first: usize| put(first + group % 4, group / 4 * 4, 0, 15);
        match codes {
            Codes::Bits8 => put(group, 0, 0, 255),
            Codes::Bits4 | Codes::Table4(_) => put_nibble(0),
            Codes::Bits5 => {
                put_nibble(1);
                put(0, group, 4, 1);
            }
            Codes::Bits6 => {
                put_nibble(1);
                put(group / 4 * 5, group % 4 * 2, 4, 3);
            }
            Codes::Bits2 => put(group / 4, group % 4 * 2, 0, 3),
            Codes::Bits3 => {
                put(1 + group / 4, group % 4 * 2, 0, 3);
                put(0, group, 2, 1);
            }
        }
    }
}

/// Unpacks the codes of a block. Codes of a table become table values plus 128.
#[inline(always)]
pub(super) fn unpack(codes: Codes, packed: &[u8], wide: &mut WideBlock) {
    let (planes, _) = packed.as_chunks();
    let (groups, _) = wide.as_chunks_mut::<VECTOR>();
    for (group, out) in groups.iter_mut().enumerate() {
        for (index, out) in out.iter_mut().enumerate() {
            *out = code(codes, planes, group, index);
        }
    }
}

/// The 32 codes of one output of a block, unpacked like those of [`unpack`].
pub(super) fn unpack_lane(codes: Codes, packed: &[u8], lane: usize) -> [u8; BLOCK] {
    let (planes, _) = packed.as_chunks();
    std::array::from_fn(|input| code(codes, planes, input / 4, lane * 4 + input % 4))
}

#[inline(always)]
fn code(codes: Codes, planes: &[[u8; VECTOR]], group: usize, index: usize) -> u8 {
    let nibble = |first: usize| (planes[first + group % 4][index] >> (group / 4 * 4)) & 15;
    let pair = |vector: usize| (planes[vector][index] >> (group % 4 * 2)) & 3;
    let bit = || (planes[0][index] >> group) & 1;
    match codes {
        Codes::Bits8 => planes[group][index],
        Codes::Bits4 => nibble(0),
        Codes::Table4(values) => values[nibble(0) as usize] as u8 ^ 0x80,
        Codes::Bits5 => nibble(1) | bit() << 4,
        Codes::Bits6 => nibble(1) | pair(group / 4 * 5) << 4,
        Codes::Bits2 => pair(group / 4),
        Codes::Bits3 => pair(1 + group / 4) | bit() << 2,
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::LANES;
    use super::*;

    #[test]
    fn planes_give_back_the_codes() {
        for (codes, bits) in [
            (Codes::Bits2, 2),
            (Codes::Bits3, 3),
            (Codes::Bits4, 4),
            (Codes::Bits5, 5),
            (Codes::Bits6, 6),
            (Codes::Bits8, 8),
        ] {
            let mut wide = [0; WIDE_BLOCK_BYTES];
            for (index, code) in wide.iter_mut().enumerate() {
                *code = (((index * 2_654_435_761) >> 7) & ((1 << bits) - 1)) as u8;
            }
            let mut packed = vec![0; codes.bits() * WIDE_BLOCK_BYTES / 8];
            pack(codes, &wide, &mut packed);
            let mut back = [0; WIDE_BLOCK_BYTES];
            unpack(codes, &packed, &mut back);
            assert_eq!(back, wide, "{codes:?}");
            for lane in 0..LANES {
                let of_lane = |input: usize| wide[(input / 4 * LANES + lane) * 4 + input % 4];
                assert_eq!(unpack_lane(codes, &packed, lane), std::array::from_fn(of_lane), "{codes:?}");
            }
        }
    }
}
