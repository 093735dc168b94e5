//! Writes one position of a cache.

use brasa_graph::device::KvType;
use brasa_graph::step::PAGE_POSITIONS;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use super::CacheView;
use super::layout::{SCALE_ELEMENTS, TileLayout};
use crate::Isa;
use crate::memory::Element;
use crate::simd::{Kernel, LANES, Simd, vectorize};

/// Number of elements that are rounded at a time.
const CHUNK: usize = 64;

impl CacheView<'_> {
    /// Writes key and value of `head` into `slot` of `page`, rounded to the cache's element type. `value` is empty if
    /// values are the first elements of keys.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this slot of this head meanwhile. Other slots of the same key block may be written, since
    /// they are other elements.
    pub(crate) unsafe fn write(&self, page: u32, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        let widths = (self.layout.key_dim, self.layout.value.stored());
        assert_eq!((key.len(), value.len()), widths, "elements of a head");
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

    /// Writes keys and values, `[key, value]`, of some positions of one key block from `slot` on, in f32.
    ///
    /// A whole block is written element by element of the head, which is how it lies in memory.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these slots of this head meanwhile. Other slots of the block may be written, since
    /// they are other elements.
    ///
    /// # Panics
    ///
    /// If the cache holds another type, or a key or value has another width.
    pub(crate) unsafe fn write_some<'x>(
        &self,
        isa: Isa,
        page: u32,
        head: usize,
        slot: usize,
        positions: impl ExactSizeIterator<Item = [&'x [f32]; 2]>,
    ) {
        let TileLayout { dtype, key_dim, value: value_width } = self.layout;
        assert_eq!(dtype, KvType::F32, "type of the rows of a step");
        if positions.len() < LANES {
            for (number, [key, value]) in positions.enumerate() {
                // SAFETY: by the contract.
                unsafe { self.write(page, head, slot + number, key, value) };
            }
            return;
        }
        assert!(
            slot.is_multiple_of(LANES) && positions.len() == LANES,
            "one whole block from slot {slot} on"
        );
        let mut keys = [&[][..]; LANES];
        let (stride, width) = (self.layout.value_width(), size_of::<f32>());
        let offset = self.layout.key_tile_bytes() + slot * stride * width;
        // SAFETY: the values of these slots.
        let values = unsafe { self.get_mut(page, head, offset, LANES * stride) };
        for ((position, keys), values) in positions.zip(&mut keys).zip(values.chunks_exact_mut(stride)) {
            let [key, value] = position;
            assert_eq!((key.len(), value.len()), (key_dim, value_width.stored()), "elements of a head");
            *keys = key;
            values[..value.len()].copy_from_slice(value);
        }
        let offset = slot / LANES * self.layout.key_block_bytes();
        // SAFETY: the keys of these slots, which are all of the block.
        let block: &mut [f32] = unsafe { self.get_mut(page, head, offset, LANES * key_dim) };
        vectorize(isa, Turn { keys: &keys, block: block.as_chunks_mut().0 });
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
        let e = layout.key_dim;
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

/// Lays 16 keys out element by element.
struct Turn<'a> {
    keys: &'a [&'a [f32]; LANES],
    block: &'a mut [[f32; LANES]],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { keys, block } = self;
        let (squares, rest) = block.as_chunks_mut::<LANES>();
        let done = squares.len() * LANES;
        for (at, square) in squares.iter_mut().enumerate() {
            simd.transpose(&keys.map(|key| &key.as_chunks().0[at]), square);
        }
        for (element, lanes) in (done..).zip(rest) {
            *lanes = keys.map(|key| key[element]);
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
