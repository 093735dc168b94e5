//! Q4_K: 256 four-bit codes, eight 6-bit scales and minima, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::k_scales::unpack_k4_scales;
use super::{Block, Half};
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
