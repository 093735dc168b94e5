//! Q4_K: 256 four-bit codes, eight 6-bit scales and minima, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit_block::fit_offset;
use super::k_scales::{pack_k4_scales, unpack_k4_scales};
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · scale · q − dmin · min`, one scale and one min for each 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Eight scales and eight minima, see [`unpack_k4_scales`].
    pub scales: [u8; 12],
    /// 32 bytes for each 64 elements: byte j holds element j in its low nibble, j + 32 in its high nibble.
    pub qs: [u8; 128],
}

impl BlockQ4K {
    /// The 256 codes, 0…15, in element order.
    pub fn codes(&self) -> [u8; 256] {
        unpack_k_nibbles(&self.qs)
    }
}

impl Block for BlockQ4K {
    const FORMAT: StorageFormat = StorageFormat::Q4_K;
    const LEN: usize = 256;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q4_K block");
        decode_k4(self.d, self.dmin, &self.scales, &self.codes(), out);
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<256>(x, importance);
        let fit = fit_offset::<32, 8>(15.0, 63.0, &x, &w);
        Self {
            d: fit.d,
            dmin: fit.dmin,
            scales: pack_k4_scales(&fit.scales, &fit.mins),
            qs: pack_k_nibbles(&fit.codes.map(|q| q as u8)),
        }
    }
}

/// The elements of Q4_K and Q5_K, whose blocks differ in their codes alone.
pub(super) fn decode_k4(d: Half, dmin: Half, scales: &[u8; 12], codes: &[u8; 256], out: &mut [f32]) {
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let (scales, mins) = unpack_k4_scales(scales);
    let parts = out.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<32>().0);
    for ((out, codes), (scale, min)) in parts.zip(scales.into_iter().zip(mins)) {
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (x, &q) in out.iter_mut().zip(codes) {
            *x = scale * f32::from(q) - min;
        }
    }
}

/// The inverse of [`unpack_k_nibbles`]; only the lower four bits of a code count.
pub(super) fn pack_k_nibbles(codes: &[u8; 256]) -> [u8; 128] {
    let mut qs = [0; 128];
    for (bytes, codes) in qs.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<64>().0) {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[j] & 15 | codes[j + 32] << 4;
        }
    }
    qs
}

/// The 256 four-bit fields of Q4_K and Q5_K.
pub(super) fn unpack_k_nibbles(qs: &[u8; 128]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, bytes) in codes.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        let (low, high) = codes.split_at_mut(32);
        for j in 0..32 {
            low[j] = bytes[j] & 15;
            high[j] = bytes[j] >> 4;
        }
    }
    codes
}
