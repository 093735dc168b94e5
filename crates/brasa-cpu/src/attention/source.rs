//! Where a page kernel finds keys and values: in the cache, or staged as f32.
//!
//! Converting an element costs as much as two multiplications with it. Where many queries meet one page, its
//! keys and values are therefore converted once, into memory that the second cache holds. Conversion is exact, or
//! rounds as the direct path does, so that it does not show in a result.

use std::marker::PhantomData;
use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use crate::kv::CacheReader;
use crate::kv::layout::SCALE_ELEMENTS;
use crate::memory::Element;
use crate::simd::{Kernel, LANES, Simd};

/// How cached elements are read.
pub(super) trait KvFormat: Copy {
    type Raw: Element;
    /// True where each 32 elements have a scale.
    const SCALED: bool;
    fn load<S: Simd>(simd: S, raw: &[Self::Raw; LANES]) -> S::V;
}

macro_rules! kv_formats {
    ($($name:ident $raw:ty, $scaled:literal, $load:ident;)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name;
        impl KvFormat for $name {
            type Raw = $raw;
            const SCALED: bool = $scaled;
            #[inline(always)]
            fn load<S: Simd>(simd: S, raw: &[$raw; LANES]) -> S::V {
                simd.$load(raw)
            }
        }
    )*};
}

kv_formats! {
    F32 f32, false, load;
    F16 u16, false, load_f16;
    Bf16 u16, false, load_bf16;
    Q8 i8, true, load_i8;
}

/// Keys and values of one page of one KV head.
pub(super) trait Source: Copy {
    type Format: KvFormat;
    /// E.
    fn head_dim(&self) -> usize;
    /// Keys of 16 positions: for each of E elements, that of 16 positions.
    fn keys(&self, block: usize) -> &[[<Self::Format as KvFormat>::Raw; LANES]];
    /// Scales of the keys of 16 positions: for each 32 elements, that of 16 positions.
    fn key_scales(&self, block: usize) -> &[[u16; LANES]];
    /// Values of all positions, `[256][⌈E/16⌉][16]`.
    fn values(&self) -> &[[<Self::Format as KvFormat>::Raw; LANES]];
    /// Scales of the values of all positions, `[256][⌈E/32⌉]`.
    fn value_scales(&self) -> &[u16];
}

/// A page of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached<'k, F> {
    format: PhantomData<F>,
    cache: CacheReader<'k>,
    page: u32,
    head: usize,
}

impl<'k, F> Cached<'k, F> {
    /// KV head `head` of page `page`, whose elements are of type F.
    pub fn new(cache: CacheReader<'k>, page: u32, head: usize) -> Self {
        Self { format: PhantomData, cache, page, head }
    }
}

impl<F: KvFormat> Source for Cached<'_, F> {
    type Format = F;

    #[inline(always)]
    fn head_dim(&self) -> usize {
        self.cache.layout().head_dim
    }
    #[inline(always)]
    fn keys(&self, block: usize) -> &[[F::Raw; LANES]] {
        self.cache.key_block(self.page, self.head, block)
    }
    #[inline(always)]
    fn key_scales(&self, block: usize) -> &[[u16; LANES]] {
        self.cache.key_scales(self.page, self.head, block)
    }
    #[inline(always)]
    fn values(&self) -> &[[F::Raw; LANES]] {
        self.cache.values(self.page, self.head)
    }
    #[inline(always)]
    fn value_scales(&self) -> &[u16] {
        self.cache.value_scales(self.page, self.head)
    }
}

/// A page converted to f32, laid out as in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged<'a> {
    head_dim: usize,
    keys: &'a [[f32; LANES]],
    values: &'a [[f32; LANES]],
}

impl Source for Staged<'_> {
    type Format = F32;

    #[inline(always)]
    fn head_dim(&self) -> usize {
        self.head_dim
    }
    #[inline(always)]
    fn keys(&self, block: usize) -> &[[f32; LANES]] {
        &self.keys[block * self.head_dim..][..self.head_dim]
    }
    #[inline(always)]
    fn key_scales(&self, _: usize) -> &[[u16; LANES]] {
        &[]
    }
    #[inline(always)]
    fn values(&self) -> &[[f32; LANES]] {
        self.values
    }
    #[inline(always)]
    fn value_scales(&self) -> &[u16] {
        &[]
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

    /// The staged page; what was not converted is of earlier ones.
    pub fn page(&self, head_dim: usize) -> Staged<'_> {
        Staged { head_dim, keys: &self.keys, values: &self.values }
    }

    /// Converts the positions `slots` of a page.
    pub fn fill<K: Source>(&mut self, isa: crate::Isa, source: K, slots: Range<usize>) {
        crate::simd::vectorize(isa, Fill { source, slots, stage: self });
    }
}

struct Fill<'a, K> {
    source: K,
    slots: Range<usize>,
    stage: &'a mut Stage,
}

impl<K: Source> Kernel for Fill<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { source, slots, stage } = self;
        let width = source.head_dim();
        for block in slots.start / LANES..slots.end.div_ceil(LANES) {
            let keys = &source.keys(block)[..width];
            let scales = source.key_scales(block);
            for (e, (to, raw)) in stage.keys[block * width..][..width].iter_mut().zip(keys).enumerate() {
                let mut key = K::Format::load(simd, raw);
                if K::Format::SCALED {
                    key = simd.mul(key, simd.load_f16(&scales[e / SCALE_ELEMENTS]));
                }
                simd.store(key, to);
            }
        }
        let vectors = width.div_ceil(LANES);
        let (values, scales) = (source.values(), source.value_scales());
        let groups = width.div_ceil(SCALE_ELEMENTS);
        for slot in slots {
            for vector in 0..vectors {
                let at = slot * vectors + vector;
                let mut value = K::Format::load(simd, &values[at]);
                if K::Format::SCALED {
                    let scale = scales[slot * groups + vector * LANES / SCALE_ELEMENTS];
                    value = simd.mul(value, simd.splat(crate::simd::f16_to_f32(scale)));
                }
                simd.store(value, &mut stage.values[at]);
            }
        }
    }
}
