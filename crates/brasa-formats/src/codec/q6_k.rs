//! Q6_K: 256 six-bit codes around 32, sixteen 8-bit scales, 6.5625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::Integers;
use super::fit_block::fit_scaled;
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · scale · q`, q in −32…31, one scale for each 16 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Lower four bits: with c = e/128 and r = e%128, nibble r/64 of byte 64c + r%64.
    pub ql: [u8; 128],
    /// Upper two bits: bits 2·(r/32) of byte 32c + r%32.
    pub qh: [u8; 64],
    /// Scales.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

impl BlockQ6K {
    /// The 256 codes, −32…31, in element order.
    pub fn codes(&self) -> [i8; 256] {
        let mut codes = [0; 256];
        let halves = codes.as_chunks_mut::<128>().0.iter_mut();
        for ((codes, ql), qh) in halves.zip(self.ql.as_chunks::<64>().0).zip(self.qh.as_chunks::<32>().0) {
            for j in 0..32 {
                let (a, b, high) = (ql[j], ql[j + 32], qh[j]);
                codes[j] = (a & 15 | (high & 3) << 4) as i8 - 32;
                codes[j + 32] = (b & 15 | (high >> 2 & 3) << 4) as i8 - 32;
                codes[j + 64] = (a >> 4 | (high >> 4 & 3) << 4) as i8 - 32;
                codes[j + 96] = (b >> 4 | high >> 6 << 4) as i8 - 32;
            }
        }
        codes
    }
}

impl Block for BlockQ6K {
    const FORMAT: StorageFormat = StorageFormat::Q6_K;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q6_K block");
        let d = self.d.to_f32();
        let codes = self.codes();
        let parts = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
        for ((out, codes), scale) in parts.zip(self.scales) {
            let scale = d * f32::from(scale);
            for (x, &q) in out.iter_mut().zip(codes) {
                *x = scale * f32::from(q);
            }
        }
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_scaled::<16, 16>(Integers { half: 32.0 }, 128.0, &x, &w);
        let codes = fit.levels.map(|q| (q + 32.0) as u8);
        let mut block = Self { d: fit.d, scales: fit.scales, ..Self::zeroed() };
        let parts = block.ql.as_chunks_mut::<64>().0.iter_mut().zip(block.qh.as_chunks_mut::<32>().0);
        for ((ql, qh), codes) in parts.zip(codes.as_chunks::<128>().0) {
            for j in 0..32 {
                let [a, b, c, d] = [codes[j], codes[j + 32], codes[j + 64], codes[j + 96]];
                ql[j] = a & 15 | c << 4;
                ql[j + 32] = b & 15 | d << 4;
                qh[j] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
            }
        }
        block
    }
}
