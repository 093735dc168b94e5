//! Q3_K: 256 three-bit codes around 4, sixteen 6-bit scales, 3.4375 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::Integers;
use super::fit_block::fit_scaled;
use super::q2_k::{pack_twos, unpack_twos};
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · scale · q`, q in −4…3, one scale in −32…31 for each 16 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit e/32 of byte e%32 is the upper bit of element e.
    pub hmask: [u8; 32],
    /// The lower two bits, laid out as in Q2_K.
    pub qs: [u8; 64],
    /// Scale k has its lower four bits in byte k%8 (nibble k/8), its upper two in byte 8 + k%4 (bit 2·(k/4)).
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

impl BlockQ3K {
    /// The sixteen scales, −32…31.
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|k| {
            let low = self.scales[k % 8] >> (4 * (k / 8)) & 15;
            let high = self.scales[8 + k % 4] >> (2 * (k / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    /// The 256 codes, −4…3, in element order.
    pub fn codes(&self) -> [i8; 256] {
        let mut codes = unpack_twos(&self.qs);
        for (plane, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, mask) in codes.iter_mut().zip(self.hmask) {
                *code |= (mask >> plane & 1) << 2;
            }
        }
        codes.map(|code| code as i8 - 4)
    }
}

impl Block for BlockQ3K {
    const FORMAT: StorageFormat = StorageFormat::Q3_K;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q3_K block");
        let d = self.d.to_f32();
        let codes = self.codes();
        let parts = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
        for ((out, codes), scale) in parts.zip(self.scales()) {
            let scale = d * f32::from(scale);
            for (x, &q) in out.iter_mut().zip(codes) {
                *x = scale * f32::from(q);
            }
        }
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_scaled::<16, 16>(Integers { half: 4.0 }, 32.0, &x, &w);
        let codes = fit.levels.map(|q| (q + 4.0) as u8);
        let mut block = Self { d: fit.d, qs: pack_twos(&codes), ..Self::zeroed() };
        for (plane, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            for (mask, code) in block.hmask.iter_mut().zip(codes) {
                *mask |= code >> 2 << plane;
            }
        }
        for (k, scale) in fit.scales.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            block.scales[k % 8] |= (scale & 15) << (4 * (k / 8));
            block.scales[8 + k % 4] |= scale >> 4 << (2 * (k / 4));
        }
        block
    }
}
