//! Q5_K: 256 five-bit codes, eight 6-bit scales and minima, 5.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit_block::fit_offset;
use super::k_scales::pack_k4_scales;
use super::q4_k::{decode_k4, pack_k_nibbles, unpack_k_nibbles};
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · scale · q − dmin · min`, one scale and one min for each 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Eight scales and eight minima, see [`unpack_k4_scales`](super::unpack_k4_scales).
    pub scales: [u8; 12],
    /// Bit e/32 of byte e%32 is bit 4 of element e.
    pub qh: [u8; 32],
    /// The lower four bits, laid out as in Q4_K.
    pub qs: [u8; 128],
}

impl BlockQ5K {
    /// The 256 codes, 0…31, in element order.
    pub fn codes(&self) -> [u8; 256] {
        let mut codes = unpack_k_nibbles(&self.qs);
        for (plane, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, high) in codes.iter_mut().zip(self.qh) {
                *code |= (high >> plane & 1) << 4;
            }
        }
        codes
    }
}

impl Block for BlockQ5K {
    const FORMAT: StorageFormat = StorageFormat::Q5_K;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q5_K block");
        decode_k4(self.d, self.dmin, &self.scales, &self.codes(), out);
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_offset::<32, 8>(31.0, 63.0, &x, &w);
        let codes = fit.codes.map(|q| q as u8);
        let mut qh = [0; 32];
        for (plane, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            for (high, code) in qh.iter_mut().zip(codes) {
                *high |= code >> 4 << plane;
            }
        }
        let scales = pack_k4_scales(&fit.scales, &fit.mins);
        Self { d: fit.d, dmin: fit.dmin, scales, qh, qs: pack_k_nibbles(&codes) }
    }
}
