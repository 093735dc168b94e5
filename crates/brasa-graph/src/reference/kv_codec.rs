//! Conversion of keys and values to and from the element types of a cache.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::device::KvType;
use crate::page::SCALE_ELEMENTS;

/// Stores one head's key or value: little-endian `elements`, and for q8 the `scales` of 32 elements each.
pub(super) fn encode(dtype: KvType, head: &[f32], elements: &mut [u8], scales: &mut [u8]) {
    match dtype {
        KvType::F32 => each(head, elements, f32::to_le_bytes),
        KvType::F16 => each(head, elements, |x| f16::from_f32(x).to_le_bytes()),
        KvType::BF16 => each(head, elements, |x| bf16::from_f32(x).to_le_bytes()),
        KvType::Q8 => {
            let blocks = head.chunks(SCALE_ELEMENTS).zip(elements.chunks_mut(SCALE_ELEMENTS));
            for ((block, codes), scale) in blocks.zip(scales.as_chunks_mut().0) {
                // NaN and infinities reach the scale, and so every element of the block.
                let max = block
                    .iter()
                    .fold(0.0_f32, |max, x| if x.abs() <= max || max.is_nan() { max } else { x.abs() });
                *scale = f16::from_f32(max / 127.0).to_le_bytes();
                let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
                each(block, codes, |x| ((x * inverse).round() as i8).to_le_bytes());
            }
        }
    }
}

/// Reads one head's key or value, the inverse of [`encode`].
pub(super) fn decode(dtype: KvType, elements: &[u8], scales: &[u8], head: &mut [f32]) {
    match dtype {
        KvType::F32 => each_back(elements, head, f32::from_le_bytes),
        KvType::F16 => halves(elements, head, f16::from_le_bytes),
        KvType::BF16 => halves(elements, head, bf16::from_le_bytes),
        KvType::Q8 => {
            let blocks = head.chunks_mut(SCALE_ELEMENTS).zip(elements.chunks(SCALE_ELEMENTS));
            for ((block, codes), &scale) in blocks.zip(scales.as_chunks().0) {
                let scale = f16::from_le_bytes(scale).to_f32();
                each_back(codes, block, |code| f32::from(i8::from_le_bytes(code)) * scale);
            }
        }
    }
}

fn each<const N: usize>(values: &[f32], bytes: &mut [u8], store: impl Fn(f32) -> [u8; N]) {
    for (&x, stored) in values.iter().zip(bytes.as_chunks_mut().0) {
        *stored = store(x);
    }
}

fn each_back<const N: usize>(bytes: &[u8], values: &mut [f32], load: impl Fn([u8; N]) -> f32) {
    for (&stored, x) in bytes.as_chunks().0.iter().zip(values) {
        *x = load(stored);
    }
}

/// Reads elements of 16 bits, several at a time, since slices are converted much faster than single numbers.
fn halves<T: Copy + Default>(bytes: &[u8], values: &mut [f32], load: impl Fn([u8; 2]) -> T)
where
    [T]: HalfFloatSliceExt,
{
    let mut some = [T::default(); 64];
    for (bytes, values) in bytes.chunks(128).zip(values.chunks_mut(64)) {
        for (&stored, x) in bytes.as_chunks().0.iter().zip(&mut some) {
            *x = load(stored);
        }
        some[..values.len()].convert_to_f32_slice(values);
    }
}
