//! Attention and its caches: writing keys and values, and attending to them.

use std::ops::Range;

use super::elementwise::{Unary, softcap};
use super::{
    AccessKind, AttentionGradient, AttentionTangent, MemoryAccess, Operation, SequenceMemory, Type,
    cache_spec, operands, require, require_floats, with_width,
};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, SegmentRows, sums};
use crate::{CacheId, CacheSpec, DType, MemoryId, Node, Value, ValueId, ValueWidth};

/// Writes each row's keys and values into a cache, at the row's index.
///
/// Shapes: `k` `[R, G, E]`, `v` `[R, G, V]` → nothing. A cache whose values are the first elements of its keys takes `k` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheWrite {
    /// Cache to write to.
    pub cache: CacheId,
}

/// The reason why caches and memories cannot be differentiated.
const KEPT: &str =
    "keys and values that are kept have no derivative; a model's graph can attend to the rows of a step";

impl Operation for CacheWrite {
    fn name(&self) -> &'static str {
        "cache_write"
    }

    fn attributes(&self) -> String {
        format!("cache={}", self.cache.0)
    }

    fn memory_access(&self) -> Option<MemoryAccess> {
        Some(MemoryAccess { memory: SequenceMemory::Cache(self.cache), kind: AccessKind::Write })
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        require_floats(given)?;
        let spec = cache_spec(caches, self.cache)?;
        let given: Vec<(&Value, usize)> = match spec.value {
            ValueWidth::Own(width) => {
                let [k, v] = operands(given)?;
                vec![(k, spec.key_dim), (v, width)]
            }
            ValueWidth::PrefixOfKey(_) => {
                let [k] = operands(given)?;
                vec![(k, spec.key_dim)]
            }
        };
        for (value, width) in given {
            require(value.shape.inner() == Some(vec![spec.kv_heads, width]), || {
                format!("expected [R, {}, {width}]", spec.kv_heads)
            })?;
        }
        Ok(Vec::new())
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let (k, v) = (operands[0], operands.get(1));
        for (number, segment) in env.segments.iter().enumerate() {
            for (i, row) in segment.rows.clone().enumerate() {
                let at = |x: &Array<T>| row * x.row_elements()..(row + 1) * x.row_elements();
                let v = v.map_or(&[][..], |v| &v.floats()[at(v)]);
                env.kv.write(self.cache, number, segment.first_index + i, &k.floats()[at(k)], v);
            }
        }
        Ok(Vec::new())
    }

    fn jvp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>]) -> Terms {
        Err(KEPT.into())
    }

    fn vjp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>], _: &[bool]) -> Terms {
        Err(KEPT.into())
    }
}

/// Writes each row's keys and values into a memory, at the row's index: the last operation of an encoder.
///
/// Shapes: `k` `[R, G, E]`, `v` `[R, G, V]` → nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWrite {
    /// Memory to write to.
    pub memory: MemoryId,
}

impl Operation for MemoryWrite {
    fn name(&self) -> &'static str {
        "memory_write"
    }

    fn attributes(&self) -> String {
        format!("memory={}", self.memory.0.0)
    }

    fn memory_access(&self) -> Option<MemoryAccess> {
        Some(MemoryAccess { memory: SequenceMemory::Cache(self.memory.0), kind: AccessKind::Write })
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        CacheWrite { cache: self.memory.0 }.infer(given, caches)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        CacheWrite { cache: self.memory.0 }.reference(operands, env)
    }

    fn jvp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>]) -> Terms {
        Err(KEPT.into())
    }

    fn vjp(&self, _: &mut Rules, _: &Node, _: &[Option<ValueId>], _: &[bool]) -> Terms {
        Err(KEPT.into())
    }
}

/// Source of attention's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// A cache: a row sees all indices of its sequence up to its own.
    Cache(CacheId),
    /// A memory: every row sees all rows of the memory that the segment declares.
    Memory(MemoryId),
    /// The step itself: a row sees rows of the same segment, by the mask. Differentiable.
    Step(Mask),
}

/// Which rows of its segment a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// A row sees the rows up to itself; in a draft tree, its ancestors and itself.
    Causal,
    /// Every row sees all rows.
    Bidirectional,
    /// Every row sees all rows, and distant rows score lower: ALiBi in its symmetric form.
    ///
    /// After the soft-cap, [`alibi_slope`] of the head times `|j − i|` is subtracted from the score of row *j* for row *i*. Press
    /// et al. 2022, arXiv:2108.12409; Günther et al. 2023, arXiv:2310.19923.
    Alibi,
}

impl Mask {
    /// True if a row sees no row after itself.
    pub fn is_causal(self) -> bool {
        self == Self::Causal
    }
}

/// The slope by which [`Mask::Alibi`] lowers the scores of query head `head` of `heads`, for each position of distance.
///
/// The slopes of 2ⁿ heads are a geometric sequence that ends at 2⁻⁸. Further heads take every other slope of the
/// sequence of 2ⁿ⁺¹ heads.
pub fn alibi_slope(heads: usize, head: usize) -> f32 {
    let power = 1 << heads.max(1).ilog2();
    let exponent = if head < power {
        8.0 * (head + 1) as f64 / power as f64
    } else {
        4.0 * (2 * (head - power) + 1) as f64 / power as f64
    };
    (-exponent).exp2() as f32
}

/// Scaled dot-product attention with grouped KV heads.
///
/// `y[r,h] = Σ_j softmax_j(cap(scale · q[r,h]·k[j,g])) · v[j,g]`, `g = h / (H/G)`, over the visible `j`; `cap` is the
/// soft-cap `c·tanh(s/c)` where one is set. Scores and softmax in f32.
///
/// With sinks, the softmax of head *h* has one more score, `sinks[h]`, which belongs to no value. The sink only
/// enlarges the denominator: `softmax_j(s) = exp(s_j) / (exp(sinks[h]) + Σ_i exp(s_i))`. Scale, soft-cap and distance
/// do not change the sink.
///
/// A row at index *i* sees *j* with `j ≤ i` and, with a window *w*, `j > i − w`. Under another mask than [`Mask::Causal`], it sees all *j* and,
/// with a window, those with `|j − i| < w`. [`Mask::Alibi`] lowers scores by distance.
/// In a [draft tree](crate::DraftTree) it sees, of its own segment, only itself and its ancestors, and windows count the
/// indices that plain text would have.
///
/// Shapes: `q` `[R, H, E]` → `[R, H, V]`. [`KvSource::Step`] takes `q`, `k` `[R, G, E]` and `v` `[R, G, V]`. A layer
/// with sinks has `sinks` `[H]` as its last operand. E is the width of a key and V that of a value; a cache's values
/// may be the first V elements of its keys.
/// Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245; sinks: OpenAI 2025, arXiv:2508.10925.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Source of keys and values.
    pub source: KvSource,
    /// Multiplies the scores.
    pub scale: f32,
    /// Positions that a row sees to either side, itself included; `None` for all.
    pub window: Option<usize>,
    /// Soft-cap of the scores.
    pub softcap: Option<f32>,
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attributes(&self) -> String {
        let source = match self.source {
            KvSource::Cache(cache) => format!("cache={}", cache.0),
            KvSource::Memory(memory) => format!("memory={}", memory.0.0),
            KvSource::Step(Mask::Causal) => "step=causal".into(),
            KvSource::Step(Mask::Bidirectional) => "step=bidirectional".into(),
            KvSource::Step(Mask::Alibi) => "step=alibi".into(),
        };
        let window = self.window.map_or(String::new(), |window| format!(" window={window}"));
        let softcap = self.softcap.map_or(String::new(), |cap| format!(" softcap={cap}"));
        format!("{source} scale={}{window}{softcap}", self.scale)
    }

    fn memory_access(&self) -> Option<MemoryAccess> {
        let (KvSource::Cache(cache) | KvSource::Memory(MemoryId(cache))) = self.source else { return None };
        Some(MemoryAccess { memory: SequenceMemory::Cache(cache), kind: AccessKind::Read })
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let q = given.first().ok_or("no query")?;
        require_floats(given)?;
        let (given, sinks) = self.split_sinks(given);
        let (kv_heads, key_dim, value_dim) = match self.source {
            KvSource::Cache(cache) => {
                let [_] = operands(given)?;
                let spec = cache_spec(caches, cache)?;
                require(spec.window.is_none_or(|kept| self.window.is_some_and(|w| w <= kept)), || {
                    format!("window {:?} over a cache that keeps {:?}", self.window, spec.window)
                })?;
                (spec.kv_heads, spec.key_dim, spec.value_dim())
            }
            KvSource::Memory(memory) => {
                let [_] = operands(given)?;
                let spec = cache_spec(caches, memory.0)?;
                require(self.window.is_none(), || "a window over a memory".into())?;
                (spec.kv_heads, spec.key_dim, spec.value_dim())
            }
            KvSource::Step(_) => {
                let [_, k, v] = operands(given)?;
                match (k.shape.inner().as_deref(), v.shape.inner().as_deref()) {
                    (Some(&[heads, width]), Some(&[of_v, value_width])) => {
                        let outer = q.shape.outer();
                        let alike = heads == of_v && k.shape.outer() == outer && v.shape.outer() == outer;
                        require(alike, || "k and v differ".into())?;
                        (heads, width, value_width)
                    }
                    _ => return Err("k must be [R, G, E], and v [R, G, V]".into()),
                }
            }
        };
        let heads = match q.shape.inner().as_deref() {
            Some(&[heads, width]) if width == key_dim && kv_heads > 0 && heads.is_multiple_of(kv_heads) => {
                heads
            }
            _ => return Err(format!("q must be [R, H, {key_dim}], H a multiple of {kv_heads}")),
        };
        if let Some(sinks) = sinks {
            let found = &sinks.shape;
            require(found.0[..] == [heads.into()], || format!("sinks {found}, expected [{heads}]"))?;
        }
        require(self.window != Some(0), || "a window of 0 sees nothing".into())?;
        Ok(vec![(DType::F32, with_width(&q.shape, value_dim))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let q = operands[0];
        let sinks = self.split_sinks(operands).1.map(Array::floats);
        let (heads, width) = (q.row_elements() / q.width(), q.width());
        let mut y = Vec::new();
        let mut value_dim = 0;
        for (number, segment) in env.segments.iter().enumerate() {
            let seen = self.keys_and_values(operands, env, number, segment);
            let kv_heads = seen.k_stride / width;
            value_dim = seen.v_stride / kv_heads;
            y.resize(q.outer() * heads * value_dim, T::default());
            for (i, row) in segment.rows.clone().enumerate() {
                let visible = self.visible(segment, i, &seen);
                for h in 0..heads {
                    let head = row * heads + h;
                    let q = &q.floats()[head * width..(head + 1) * width];
                    let scores = visible.iter().map(|&j| {
                        let k = &seen.k[seen.key(j, h / (heads / kv_heads), width)];
                        self.final_score(
                            T::constant(self.scale.into()) * sums::dot(q, k),
                            heads,
                            h,
                            j.abs_diff(i),
                        )
                    });
                    let weights = softmax_with_sink(scores, sinks.map(|sinks| sinks[h]));
                    let y = &mut y[head * value_dim..(head + 1) * value_dim];
                    for (&j, &weight) in visible.iter().zip(&weights) {
                        let v = &seen.v[seen.value(j, h / (heads / kv_heads), value_dim)];
                        sums::add_scaled(y, weight, v);
                    }
                }
            }
        }
        let mut shape = q.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = value_dim;
        }
        Ok(vec![Array::of(shape, y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let KvSource::Step(_) = self.source else {
            return Err(KEPT.into());
        };
        let changes = at.inputs.iter().zip(tangents).map(|(&of, &t)| g.or_zeros(t, of));
        let changes = changes.collect::<Rule<Vec<ValueId>>>()?;
        let tangent = AttentionTangent { attention: *self };
        Ok(vec![Some(g.apply(tangent, &[&at.inputs[..], &changes].concat())?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let KvSource::Step(_) = self.source else {
            return Err(KEPT.into());
        };
        let Some(d) = cotangents[0] else { return Ok(vec![None; at.inputs.len()]) };
        let gradient = AttentionGradient { attention: *self };
        Ok(g.apply_all(gradient, &[&at.inputs[..], &[d]].concat())?.into_iter().map(Some).collect())
    }
}

/// The softmax of `scores`, with `sink` as one more score in the denominator. The sink's own weight is left out.
fn softmax_with_sink<T: Number>(scores: impl Iterator<Item = T>, sink: Option<T>) -> Vec<T> {
    let mut weights: Vec<T> = scores.chain(sink).collect();
    sums::softmax(&mut weights);
    if sink.is_some() {
        weights.pop();
    }
    weights
}

/// Keys and values that the rows of one segment may see.
pub(super) struct Seen<T> {
    /// Index of the first visible position.
    first: usize,
    /// One past the index of the last visible position.
    end: usize,
    /// Elements of one position's keys: KV heads × width of a key.
    pub(super) k_stride: usize,
    /// Elements of one position's values: KV heads × width of a value.
    pub(super) v_stride: usize,
    pub(super) k: Vec<T>,
    pub(super) v: Vec<T>,
}

impl<T: Number> Seen<T> {
    /// Reads the keys and values of segment `number` from a cache, at the indices `range`.
    fn read(env: &Env<T>, cache: CacheId, number: usize, range: Range<usize>) -> Self {
        let [k_stride, v_stride] = env.kv.position_elements(cache);
        let [mut k, mut v] = [k_stride, v_stride].map(|stride| vec![T::default(); range.len() * stride]);
        for (i, (k, v)) in k.chunks_exact_mut(k_stride).zip(v.chunks_exact_mut(v_stride)).enumerate() {
            env.kv.read(cache, number, range.start + i, k, v);
        }
        Self { first: range.start, end: range.end, k_stride, v_stride, k, v }
    }

    /// The range of the elements of the key of KV head `head` at cache index `index`; keys have `width` elements.
    pub(super) fn key(&self, index: usize, head: usize, width: usize) -> Range<usize> {
        let start = (index - self.first) * self.k_stride + head * width;
        start..start + width
    }

    /// The range of the elements of the value of KV head `head` at cache index `index`; values have `width` elements.
    pub(super) fn value(&self, index: usize, head: usize, width: usize) -> Range<usize> {
        let start = (index - self.first) * self.v_stride + head * width;
        start..start + width
    }
}

impl Attention {
    /// Splits `operands` of attention into queries, keys and values, and the sinks if the layer has them.
    pub(super) fn split_sinks<'a, X: Copy>(&self, operands: &'a [X]) -> (&'a [X], Option<X>) {
        let count = if matches!(self.source, KvSource::Step(_)) { 3 } else { 1 };
        match operands.len().checked_sub(1) {
            Some(last) if last == count => (&operands[..last], Some(operands[last])),
            _ => (operands, None),
        }
    }

    pub(super) fn keys_and_values<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &Env<T>,
        number: usize,
        segment: &SegmentRows,
    ) -> Seen<T> {
        match self.source {
            KvSource::Cache(cache) => {
                let end = segment.first_index + segment.rows.len();
                let first = self.window.map_or(0, |w| (segment.first_index + 1).saturating_sub(w));
                Seen::read(env, cache, number, first..end)
            }
            KvSource::Memory(memory) => Seen::read(env, memory.0, number, 0..segment.memory_rows),
            KvSource::Step(_) => {
                let [k_stride, v_stride] = [1, 2].map(|place| operands[place].row_elements());
                let copy = |x: &Array<T>, stride: usize| {
                    x.floats()[segment.rows.start * stride..segment.rows.end * stride].to_vec()
                };
                let (k, v) = (copy(operands[1], k_stride), copy(operands[2], v_stride));
                Seen { first: 0, end: segment.rows.len(), k_stride, v_stride, k, v }
            }
        }
    }

    /// Indices that the segment's row `i` sees.
    pub(super) fn visible<T>(&self, segment: &SegmentRows, i: usize, seen: &Seen<T>) -> Vec<usize> {
        if let KvSource::Memory(_) = self.source {
            return (seen.first..seen.end).collect();
        }
        let begin = seen.end - segment.rows.len();
        let causal = !matches!(self.source, KvSource::Step(mask) if !mask.is_causal());
        let tree = segment.tree.as_ref().filter(|_| causal);
        // Where plain text would have the index.
        let place = |j: usize| match tree {
            Some(tree) if j >= begin => begin + tree.depth(j - begin),
            _ => j,
        };
        let own = |j: usize| match tree {
            Some(tree) => tree.sees(i, j - begin),
            None => j <= begin + i || !causal,
        };
        let within = |j: usize| {
            let (j, own) = (place(j), place(begin + i));
            self.window.is_none_or(|window| {
                j.saturating_add(window) > own && (causal || own.saturating_add(window) > j)
            })
        };
        (seen.first..seen.end).filter(|&j| (j < begin || own(j)) && within(j)).collect()
    }

    /// The score after the soft-cap.
    fn capped<T: Number>(&self, score: T) -> T {
        self.softcap.map_or(score, |c| softcap(score, c))
    }

    /// The score that enters the softmax, from the scaled product of query and key. `head` is a query head of `heads`, at
    /// `distance` positions from the key.
    pub(super) fn final_score<T: Number>(&self, scaled: T, heads: usize, head: usize, distance: usize) -> T {
        let score = self.capped(scaled);
        if self.source != KvSource::Step(Mask::Alibi) {
            return score;
        }
        score - T::constant(f64::from(alibi_slope(heads, head)) * distance as f64)
    }

    /// The first derivative of the soft-cap at `score`.
    pub(super) fn cap_slope<T: Number>(&self, score: T) -> T {
        self.softcap.map_or(T::constant(1.0), |c| Unary::Softcap(c).slope(score))
    }

    /// The second derivative of the soft-cap at `score`.
    pub(super) fn cap_bend<T: Number>(&self, score: T) -> T {
        self.softcap.map_or(T::default(), |c| {
            let c = T::constant(c.into());
            let y = (score / c).tanh();
            T::constant(-2.0) * y * (T::constant(1.0) - y * y) / c
        })
    }
}
