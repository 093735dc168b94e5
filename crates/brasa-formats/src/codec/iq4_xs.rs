//! IQ4_XS: 256 indices into the table of IQ4_NL under eight 6-bit scales, 4.25 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit_block::fit_scaled;
use super::iq4_nl::{NonLinear, index_of};
use super::q4_0::{pack_nibbles, unpack_nibbles};
use super::{Block, Half, IQ4_NL_VALUES, prepare};
use crate::StorageFormat;

/// `x = d · s · T[q]` with one s in −32…31 for each 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4XS {
    /// Scale of the scales.
    pub d: Half,
    /// A little-endian word: bits 2j and 2j + 1 are the upper bits of scale j.
    pub scales_h: [u8; 2],
    /// The lower four bits of the scales, even ones in low nibbles.
    pub scales_l: [u8; 4],
    /// 16 bytes for each 32 elements: byte j holds element j in its low nibble, j + 16 in its high nibble.
    pub qs: [u8; 128],
}

impl BlockIQ4XS {
    /// The eight scales, −32…31.
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|j| {
            let low = self.scales_l[j / 2] >> (4 * (j % 2)) & 15;
            (low | ((high >> (2 * j) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block for BlockIQ4XS {
    const FORMAT: StorageFormat = StorageFormat::IQ4_XS;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of an IQ4_XS block");
        let d = self.d.to_f32();
        let parts = out.as_chunks_mut::<32>().0.iter_mut().zip(self.qs.as_chunks::<16>().0);
        for ((out, qs), scale) in parts.zip(self.scales()) {
            let scale = d * f32::from(scale);
            for (x, q) in out.iter_mut().zip(unpack_nibbles(*qs)) {
                *x = scale * f32::from(IQ4_NL_VALUES[usize::from(q)]);
            }
        }
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_scaled::<32, 8>(NonLinear, 32.0, &x, &w);
        let mut block = Self { d: fit.d, ..Self::zeroed() };
        let mut high = 0;
        for (j, scale) in fit.scales.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            block.scales_l[j / 2] |= (scale & 15) << (4 * (j % 2));
            high |= u16::from(scale >> 4) << (2 * j);
        }
        block.scales_h = high.to_le_bytes();
        let parts = block.qs.as_chunks_mut::<16>().0.iter_mut().zip(fit.levels.as_chunks::<32>().0);
        for (qs, levels) in parts {
            *qs = pack_nibbles(levels.map(index_of));
        }
        block
    }
}
