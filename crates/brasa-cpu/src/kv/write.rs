//! Writes one position of a cache.

use brasa_graph::device::KvType;
use brasa_graph::step::PAGE_POSITIONS;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use super::CacheView;
use super::layout::SCALE_ELEMENTS;
use crate::memory::Element;
use crate::simd::LANES;

/// Number of elements that are rounded at a time.
const CHUNK: usize = 64;

impl CacheView<'_> {
    /// Writes key and value of `head` into `slot` of `page`, rounded to the cache's element type.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this slot of this head meanwhile. Other slots of the same key block may be written, since
    /// they are other elements.
    pub(crate) unsafe fn write(&self, page: u32, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        let e = self.layout.head_dim;
        assert_eq!((key.len(), value.len()), (e, e), "elements of a head");
        // SAFETY: the caller's promise covers what these functions touch.
        unsafe {
            match self.layout.dtype {
                KvType::F32 => {
                    self.write_plain::<f32>(page, head, slot, key, value, |x, y| y.copy_from_slice(x));
                }
                KvType::F16 => self.write_plain::<u16>(page, head, slot, key, value, |x, y| {
                    y.reinterpret_cast_mut::<f16>().convert_from_f32_slice(x);
                }),
                KvType::BF16 => self.write_plain::<u16>(page, head, slot, key, value, |x, y| {
                    y.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(x);
                }),
                KvType::Q8 => self.write_q8(page, head, slot, key, value),
            }
        }
    }

    /// Writes elements without scales.
    ///
    /// The elements of a key are scattered: their neighbours belong to other positions, perhaps of other threads.
    unsafe fn write_plain<T: Element + Default>(
        &self,
        page: u32,
        head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
        round: impl Fn(&[f32], &mut [T]),
    ) {
        let layout = self.layout;
        let block_bytes = slot / LANES * layout.key_block_bytes();
        let mut rounded = [T::default(); CHUNK];
        for (chunk, x) in key.chunks(CHUNK).enumerate() {
            round(x, &mut rounded[..x.len()]);
            let offset = block_bytes + (chunk * CHUNK * LANES + slot % LANES) * size_of::<T>();
            // SAFETY: elements of this slot.
            unsafe { self.scatter(page, head, offset, &rounded[..x.len()]) };
        }
        let offset = layout.key_tile_bytes() + slot * layout.value_width() * size_of::<T>();
        // SAFETY: the values of this slot.
        round(value, unsafe { self.get_mut(page, head, offset, value.len()) });
    }

    /// Writes int8 codes and their scales.
    unsafe fn write_q8(&self, page: u32, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        let layout = self.layout;
        let e = layout.head_dim;
        let block = slot / LANES * layout.key_block_bytes();
        let lane = slot % LANES;
        for (group, x) in key.chunks(SCALE_ELEMENTS).enumerate() {
            let (scale, inverse) = scale(x);
            let mut codes = [0_i8; SCALE_ELEMENTS];
            for (code, &x) in codes.iter_mut().zip(x) {
                *code = rounded(x, inverse);
            }
            let offset = block + group * SCALE_ELEMENTS * LANES + lane;
            // SAFETY: elements of this slot.
            unsafe { self.scatter(page, head, offset, &codes[..x.len()]) };
            let offset = block + LANES * e + (group * LANES + lane) * 2;
            // SAFETY: one scale of this slot.
            unsafe { self.get_mut(page, head, offset, 1)[0] = scale.to_bits() };
        }
        let tile = layout.key_tile_bytes();
        for (group, x) in value.chunks(SCALE_ELEMENTS).enumerate() {
            let (scale, inverse) = scale(x);
            let offset = tile + slot * layout.value_width() + group * SCALE_ELEMENTS;
            // SAFETY: values of this slot.
            let codes = unsafe { self.get_mut(page, head, offset, x.len()) };
            for (to, &x) in codes.iter_mut().zip(x) {
                *to = rounded(x, inverse);
            }
            let offset = tile + layout.value_scales_bytes() + (group * PAGE_POSITIONS + slot) * 2;
            // SAFETY: one scale of this slot.
            unsafe { self.get_mut(page, head, offset, 1)[0] = scale.to_bits() };
        }
    }
}

/// Returns the scale of a group, as it is stored, and the inverse of the exact scale. NaN and infinities reach the scale.
fn scale(x: &[f32]) -> (f16, f32) {
    let largest = x
        .iter()
        .fold(0.0_f32, |largest, x| if x.abs() <= largest || largest.is_nan() { largest } else { x.abs() });
    (f16::from_f32(largest / 127.0), if largest > 0.0 { 127.0 / largest } else { 0.0 })
}

fn rounded(x: f32, inverse: f32) -> i8 {
    (x * inverse).round() as i8
}
