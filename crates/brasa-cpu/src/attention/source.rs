//! Sources of keys and values for a page kernel: the cache, or a page that was converted to f32.
//!
//! To convert an element costs as much as two multiplications with it. If many queries meet one page, its keys and values
//! are therefore converted once, into memory that the second cache holds. Conversion is exact and scales are applied
//! later in either case, so results are equal.

use std::marker::PhantomData;
use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use crate::Isa;
use crate::kv::CacheReader;
use crate::memory::Element;
use crate::simd::{Kernel, LANES, Simd, vectorize};

/// An element type of the cache.
pub(super) trait KvFormat: Copy {
    /// The stored element.
    type Raw: Element;
    /// True if each 32 elements have a scale.
    const SCALED: bool;
    /// Loads sixteen elements as f32, without their scale.
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

/// The keys and values of one page of one KV head.
pub(super) trait Source: Copy {
    /// The element type.
    type Format: KvFormat;
    /// Elements of a head, E.
    fn head_dim(&self) -> usize;
    /// Keys of 16 positions: for each of E elements, a vector of 16 positions.
    fn keys(&self, block: usize) -> &[[<Self::Format as KvFormat>::Raw; LANES]];
    /// Scales of the keys of 16 positions: for each 32 elements, a vector of 16 positions.
    fn key_scales(&self, block: usize) -> &[[u16; LANES]];
    /// Values of all positions, `[256][⌈E/16⌉][16]`.
    fn values(&self) -> &[[<Self::Format as KvFormat>::Raw; LANES]];
    /// Scales of the values: for each 32 elements, `[256 / 16][16]` positions.
    fn value_scales(&self) -> &[[u16; LANES]];
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
    fn value_scales(&self) -> &[[u16; LANES]] {
        self.cache.value_scales(self.page, self.head)
    }
}

/// A page that was converted to f32, in the layout of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged<'a, K> {
    /// The stored page.
    source: K,
    stage: &'a Stage,
}

/// The element type of a converted page. Scales are not applied yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Converted<F>(PhantomData<F>);

impl<F: KvFormat> KvFormat for Converted<F> {
    type Raw = f32;
    const SCALED: bool = F::SCALED;
    #[inline(always)]
    fn load<S: Simd>(simd: S, raw: &[f32; LANES]) -> S::V {
        simd.load(raw)
    }
}

impl<K: Source> Source for Staged<'_, K> {
    type Format = Converted<K::Format>;

    #[inline(always)]
    fn head_dim(&self) -> usize {
        self.source.head_dim()
    }
    #[inline(always)]
    fn keys(&self, block: usize) -> &[[f32; LANES]] {
        let width = self.head_dim();
        &self.stage.keys[block * width..][..width]
    }
    #[inline(always)]
    fn key_scales(&self, block: usize) -> &[[u16; LANES]] {
        self.source.key_scales(block)
    }
    #[inline(always)]
    fn values(&self) -> &[[f32; LANES]] {
        &self.stage.values
    }
    #[inline(always)]
    fn value_scales(&self) -> &[[u16; LANES]] {
        self.source.value_scales()
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

    /// The page `source`, after [`fill`](Self::fill) has converted the positions that are read.
    pub fn over<K: Source>(&self, source: K) -> Staged<'_, K> {
        Staged { source, stage: self }
    }

    /// Converts the positions `slots` of a page.
    pub fn fill<K: Source>(&mut self, isa: Isa, source: K, slots: Range<usize>) {
        vectorize(isa, Fill { source, slots, stage: self });
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
            for (to, raw) in stage.keys[block * width..][..width].iter_mut().zip(keys) {
                simd.store(K::Format::load(simd, raw), to);
            }
        }
        let vectors = width.div_ceil(LANES);
        let range = slots.start * vectors..slots.end * vectors;
        for (to, raw) in stage.values[range.clone()].iter_mut().zip(&source.values()[range]) {
            simd.store(K::Format::load(simd, raw), to);
        }
    }
}
