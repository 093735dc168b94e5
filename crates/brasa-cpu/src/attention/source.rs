//! Pages of keys and values for a page kernel: in the cache, or converted to f32.
//!
//! To convert an element costs as much as two multiplications with it. If many queries meet one page, its keys and values
//! are therefore converted once, into memory that the second cache holds. Conversion is exact and scales are applied
//! later in either case, so results are equal.
//!
//! Keys lie element by element, for 16 positions at once; values lie position by position. If values are the first
//! elements of keys, a page is always converted, and conversion also lays these elements out as values. Memory is then
//! read once, for the keys.

use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use crate::Isa;
use crate::kv::{CacheReader, ValueScales};
use crate::memory::Element;
use crate::simd::{Kernel, LANES, Simd, vectorize};

/// An element type of a page.
pub(super) trait KvFormat: Copy {
    /// The stored element.
    type Raw: Element;
    /// The type of elements that were converted to f32. Scales are not applied yet.
    type Staged: KvFormat<Raw = f32>;
    /// True if each 32 elements have a scale.
    const SCALED: bool;
    /// Loads sixteen elements as f32, without their scale.
    fn load<S: Simd>(simd: S, raw: &[Self::Raw; LANES]) -> S::V;
}

macro_rules! kv_formats {
    ($($name:ident $raw:ty, $scaled:literal, $load:ident => $staged:ident;)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name;
        impl KvFormat for $name {
            type Raw = $raw;
            type Staged = $staged;
            const SCALED: bool = $scaled;
            #[inline(always)]
            fn load<S: Simd>(simd: S, raw: &[$raw; LANES]) -> S::V {
                simd.$load(raw)
            }
        }
    )*};
}

// Kernels are compiled for each: a converted page that has no scales is a page of f32.
kv_formats! {
    F32 f32, false, load => F32;
    F16 u16, false, load_f16 => F32;
    Bf16 u16, false, load_bf16 => F32;
    Q8 i8, true, load_i8 => ScaledF32;
    ScaledF32 f32, true, load => ScaledF32;
}

/// The keys and values of one page of one KV head, with elements of type F.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a, F: KvFormat> {
    /// The cache, which has the scales.
    cache: CacheReader<'a>,
    number: u32,
    head: usize,
    /// Blocks of 16 positions, each `key_stride` vectors after the previous block.
    keys: &'a [[F::Raw; LANES]],
    key_stride: usize,
    values: &'a [[F::Raw; LANES]],
}

impl<'a, F: KvFormat> Page<'a, F> {
    /// KV head `head` of page `number` of the cache, whose elements are of type F.
    #[inline(always)]
    pub fn of(cache: CacheReader<'a>, number: u32, head: usize) -> Self {
        let key_stride = cache.layout().key_block_bytes() / size_of::<[F::Raw; LANES]>();
        let (keys, values) = (cache.keys(number, head), cache.values(number, head));
        Self { cache, number, head, keys, key_stride, values }
    }

    /// Elements of a head's key, E.
    #[inline(always)]
    pub fn key_dim(&self) -> usize {
        self.cache.layout().key_dim
    }

    /// Elements of a head's value, V.
    #[inline(always)]
    pub fn value_dim(&self) -> usize {
        self.cache.layout().value.dim()
    }

    /// Bytes from a block of keys to the next.
    #[inline(always)]
    pub fn key_block_bytes(&self) -> usize {
        self.key_stride * size_of::<[F::Raw; LANES]>()
    }

    /// Keys of 16 positions: for each of E elements, a vector of 16 positions.
    #[inline(always)]
    pub fn keys(&self, block: usize) -> &'a [[F::Raw; LANES]] {
        &self.keys[block * self.key_stride..][..self.key_dim()]
    }

    /// Scales of the keys of 16 positions: for each 32 elements, a vector of 16 positions.
    #[inline(always)]
    pub fn key_scales(&self, block: usize) -> &'a [[u16; LANES]] {
        self.cache.key_scales(self.number, self.head, block)
    }

    /// Values of all positions, `[256][⌈V/16⌉][16]`. If values are the first elements of keys, only a [staged](Stage)
    /// page has them.
    #[inline(always)]
    pub fn values(&self) -> &'a [[F::Raw; LANES]] {
        self.values
    }

    /// Scales of the values.
    #[inline(always)]
    pub fn value_scales(&self) -> ValueScales<'a> {
        self.cache.value_scales(self.number, self.head)
    }
}

/// Memory for one staged page.
#[derive(Debug)]
pub(super) struct Stage {
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
}

impl Stage {
    pub fn new(most_head_dim: usize) -> Self {
        let vectors = PAGE_POSITIONS * most_head_dim.div_ceil(LANES);
        Self { keys: vec![[0.0; LANES]; vectors], values: vec![[0.0; LANES]; vectors] }
    }

    /// The page `stored`, after [`fill`](Self::fill) has converted the positions that are read.
    pub fn over<'a, F: KvFormat>(&'a self, stored: Page<'a, F>) -> Page<'a, F::Staged> {
        let Page { cache, number, head, .. } = stored;
        let (keys, values) = (&self.keys[..], &self.values[..]);
        Page { cache, number, head, keys, key_stride: stored.key_dim(), values }
    }

    /// Converts the positions `slots` of a page.
    pub fn fill<F: KvFormat>(&mut self, isa: Isa, stored: Page<'_, F>, slots: Range<usize>) {
        vectorize(isa, Fill { stored, slots, stage: self });
    }
}

/// Transposes the first elements of the keys of 16 positions, `[elements][16]`, into values, `[16][vectors][16]`.
#[inline(always)]
fn turn<S: Simd>(simd: S, keys: &[[f32; LANES]], values: &mut [[f32; LANES]], vectors: usize) {
    const NONE: [f32; LANES] = [0.0; LANES];
    let mut square = [NONE; LANES];
    for vector in 0..vectors {
        let elements = std::array::from_fn(|element| keys.get(vector * LANES + element).unwrap_or(&NONE));
        simd.transpose(&elements, &mut square);
        for (position, elements) in square.iter().enumerate() {
            values[position * vectors + vector] = *elements;
        }
    }
}

struct Fill<'a, F: KvFormat> {
    stored: Page<'a, F>,
    slots: Range<usize>,
    stage: &'a mut Stage,
}

impl<F: KvFormat> Kernel for Fill<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { stored, slots, stage } = self;
        let width = stored.key_dim();
        let vectors = stored.value_dim().div_ceil(LANES);
        let values_are_keys = stored.cache.layout().value.is_prefix();
        for block in slots.start / LANES..slots.end.div_ceil(LANES) {
            let keys = stored.keys(block);
            let staged = &mut stage.keys[block * width..][..width];
            for (to, raw) in staged.iter_mut().zip(keys) {
                simd.store(F::load(simd, raw), to);
            }
            if values_are_keys {
                let values = &mut stage.values[block * LANES * vectors..][..LANES * vectors];
                turn(simd, staged, values, vectors);
            }
        }
        if values_are_keys {
            return;
        }
        let range = slots.start * vectors..slots.end * vectors;
        for (to, raw) in stage.values[range.clone()].iter_mut().zip(&stored.values()[range]) {
            simd.store(F::load(simd, raw), to);
        }
    }
}
