//! Rotates the keys of a page to other positions (for a context shift).
//!
//! Keys lie as `[E][16]`: a pair's elements of 16 positions are two vectors that rotate by one angle.

use brasa_graph::device::KvType;
use brasa_graph::shift::KeyRotation;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::CpuKvPool;
use super::layout::BLOCKS;
use crate::memory::Element;
use crate::simd::LANES;

impl CpuKvPool {
    /// Rotates the keys of cache number `place` of group `group` in page `page`; floats and halves only.
    ///
    /// # Panics
    ///
    /// If the pool holds other elements, which callers refuse before.
    pub(crate) fn rotate_keys(
        &mut self,
        group: usize,
        place: usize,
        page: usize,
        rotation: &KeyRotation,
        angles: &[(f32, f32)],
    ) {
        match self.spec.dtype {
            KvType::F32 => {
                self.rotate_elements::<f32>(group, place, page, rotation, angles, |keys, rotate| {
                    rotate(keys);
                });
            }
            KvType::F16 => {
                self.rotate_elements::<u16>(group, place, page, rotation, angles, |keys, rotate| {
                    let mut floats = [[0.0; LANES]; 2];
                    for (float, key) in floats.iter_mut().zip(&*keys) {
                        key.reinterpret_cast::<f16>().convert_to_f32_slice(float);
                    }
                    rotate(&mut floats);
                    for (float, key) in floats.iter().zip(keys) {
                        key.reinterpret_cast_mut::<f16>().convert_from_f32_slice(float);
                    }
                });
            }
            other => unreachable!("keys of {other:?} were not refused"),
        }
    }

    /// Rotates elements of type T: `each` hands a pair's elements of 16 positions, as floats, to the closure that rotates them.
    fn rotate_elements<T: Element + Default>(
        &mut self,
        group: usize,
        place: usize,
        page: usize,
        rotation: &KeyRotation,
        angles: &[(f32, f32)],
        each: impl Fn(&mut [[T; LANES]; 2], &dyn Fn(&mut [[f32; LANES]; 2])),
    ) {
        let group = &mut self.groups[group];
        let (layout, heads) = (group.layout, group.heads);
        let elements: &mut [T] = group.pages[page].all_mut();
        for head in 0..heads {
            for block in 0..BLOCKS {
                let offset_bytes =
                    (place * heads + head) * layout.head_bytes() + block * layout.key_block_bytes();
                let keys = &mut elements[offset_bytes / size_of::<T>()..][..layout.key_dim * LANES];
                let (keys, _) = keys.as_chunks_mut::<LANES>();
                for (pair, &(cos, sin)) in angles.iter().enumerate() {
                    let (first, second) = rotation.elements(pair);
                    let mut both = [keys[first], keys[second]];
                    each(&mut both, &|[first, second]: &mut [[f32; LANES]; 2]| {
                        for (a, b) in first.iter_mut().zip(second) {
                            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                        }
                    });
                    [keys[first], keys[second]] = both;
                }
            }
        }
    }
}
