//! Q2_K: 256 two-bit codes, sixteen 4-bit scales and minima, 2.625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit_block::fit_offset;
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · scale · q − dmin · min`, one scale and one min for each 16 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Byte j: scale of elements 16j…16j+15 in the low nibble, their min in the high one.
    pub scales: [u8; 16],
    /// Codes: element e is in byte 32·(e/128) + e%32, at bit 2·((e%128)/32).
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
}

impl BlockQ2K {
    /// The 256 codes, 0…3, in element order.
    pub fn codes(&self) -> [u8; 256] {
        unpack_twos(&self.qs)
    }
}

impl Block for BlockQ2K {
    const FORMAT: StorageFormat = StorageFormat::Q2_K;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q2_K block");
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let codes = self.codes();
        let parts = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
        for ((out, codes), packed) in parts.zip(self.scales) {
            let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            for (x, &q) in out.iter_mut().zip(codes) {
                *x = scale * f32::from(q) - min;
            }
        }
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_offset::<16, 16>(3.0, 15.0, &x, &w);
        Self {
            scales: std::array::from_fn(|j| fit.scales[j] | fit.mins[j] << 4),
            qs: pack_twos(&fit.codes.map(|q| q as u8)),
            d: fit.d,
            dmin: fit.dmin,
        }
    }
}

/// The inverse of [`unpack_twos`]; only the lower two bits of a code count.
pub(super) fn pack_twos(codes: &[u8; 256]) -> [u8; 64] {
    let mut qs = [0; 64];
    for (plane, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        let bytes = &mut qs.as_chunks_mut::<32>().0[plane / 4];
        for (byte, code) in bytes.iter_mut().zip(codes) {
            *byte |= (code & 3) << (2 * (plane % 4));
        }
    }
    qs
}

/// The 256 two-bit fields of Q2_K and Q3_K, in element order.
pub(super) fn unpack_twos(qs: &[u8; 64]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (plane, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let bytes = &qs.as_chunks::<32>().0[plane / 4];
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code = byte >> (2 * (plane % 4)) & 3;
        }
    }
    codes
}
