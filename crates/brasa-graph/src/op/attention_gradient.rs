//! Changes passed through attention.
//!
//! Both operations compute scores and probabilities again from queries and keys: nothing of the size of rows × rows is kept
//! between the forward pass and the gradient, and not the forward pass's result either (Dao 2023, arXiv:2307.08691, keeps
//! the sums of each row).

use std::ops::Range;

use super::attention::{Attention, KvSource, Seen};
use super::{NO_DERIVATIVE, Operation, Type, operands, require, require_floats};
use crate::reference::{Array, Env, Number, SegmentRows, sums};
use crate::{CacheSpec, DType, Value};

/// How [`Attention`] to the rows of a step changes along a direction.
///
/// With `p` the probabilities and `cap'` the slope of the soft-cap, `ty[r,h] = Σ_j tp_j · v[j,g] + p_j · tv[j,g]`,
/// `tp_j = p_j · (ts_j − Σ_i p_i · ts_i)`, `ts_j = cap'(s_j) · scale · (tq[r,h]·k[j,g] + q[r,h]·tk[j,g])`.
///
/// Shapes: `q`, `tq` `[R, H, E]`, `k`, `v`, `tk`, `tv` `[R, G, E]`, in the order `q, k, v, tq, tk, tv` → `[R, H, E]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTangent {
    /// The attention.
    pub attention: Attention,
}

/// The gradient of [`Attention`] to the rows of a step.
///
/// With `p` the probabilities and `cap'` the slope of the soft-cap, `ds[r,h,j] = cap'(s_j) · scale · p_j · (dp_j − Σ_i p_i · dp_i)`,
/// `dp_j = dy[r,h]·v[j,g]`; then `dq[r,h] = Σ_j ds_j · k[j,g]`, `dk[j,g] = Σ_{r,h} ds[r,h,j] · q[r,h]`,
/// `dv[j,g] = Σ_{r,h} p[r,h,j] · dy[r,h]`, where the heads `h` are those that read `g`.
///
/// Shapes: `q`, `dy` `[R, H, E]`, `k`, `v` `[R, G, E]`, in the order `q, k, v, dy` → `dq`, `dk`, `dv`, shaped as `q`, `k`, `v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradient {
    /// The attention.
    pub attention: Attention,
}

impl Operation for AttentionTangent {
    fn name(&self) -> &'static str {
        "attention_tangent"
    }

    fn attributes(&self) -> String {
        self.attention.attributes()
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [q, k, v, tq, tk, tv] = operands(given)?;
        require_floats(given)?;
        require_rows(&self.attention)?;
        let types = self.attention.infer(&[q, k, v], caches)?;
        for (of, tangent) in [(q, tq), (k, tk), (v, tv)] {
            require(of.shape == tangent.shape, || "a tangent has another shape than its value".into())?;
        }
        Ok(types)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [q, _, _, tq, tk, tv] = *operands else { unreachable!("inferred") };
        let mut ty = vec![T::default(); q.data.len()];
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, operands, env, |head| {
            let Head { query, segment, .. } = &head;
            let (q, tq) = (&q.floats()[query.clone()], &tq.floats()[query.clone()]);
            let mut changes: Vec<T> = Vec::with_capacity(head.weights.len());
            for &(j, _, slope) in &head.weights {
                let (k, own) = (&head.seen.k[head.key(j)], head.row(segment, j));
                changes.push(slope * scale * (sums::dot(tq, k) + sums::dot(q, &tk.floats()[own])));
            }
            let probabilities: Vec<T> = head.weights.iter().map(|&(_, p, _)| p).collect();
            let mean = sums::dot(&probabilities, &changes);
            for (&(j, p, _), change) in head.weights.iter().zip(changes) {
                let (v, own) = (&head.seen.v[head.key(j)], head.row(segment, j));
                sums::add_scaled(&mut ty[query.clone()], p * (change - mean), v);
                sums::add_scaled(&mut ty[query.clone()], p, &tv.floats()[own]);
            }
        });
        Ok(vec![Array::of(q.shape.clone(), ty)])
    }
}

impl Operation for AttentionGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn attributes(&self) -> String {
        self.attention.attributes()
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [q, k, v, dy] = operands(given)?;
        require_floats(given)?;
        require_rows(&self.attention)?;
        self.attention.infer(&[q, k, v], caches)?;
        require(q.shape == dy.shape, || "dy has another shape than q".into())?;
        Ok([q, k, v].map(|of| (DType::F32, of.shape.clone())).into())
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [q, k, v, dy] = *operands else { unreachable!("inferred") };
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|of| vec![T::default(); of.data.len()]);
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, operands, env, |head| {
            let Head { query, segment, .. } = &head;
            let (q, dy) = (&q.floats()[query.clone()], &dy.floats()[query.clone()]);
            let dp = head.weights.iter().map(|&(j, _, _)| sums::dot(dy, &head.seen.v[head.key(j)]));
            let dp: Vec<T> = dp.collect();
            let probabilities: Vec<T> = head.weights.iter().map(|&(_, p, _)| p).collect();
            let mean = sums::dot(&probabilities, &dp);
            for (&(j, p, slope), dp) in head.weights.iter().zip(dp) {
                let (ds, own) = (slope * scale * p * (dp - mean), head.row(segment, j));
                sums::add_scaled(&mut dq[query.clone()], ds, &head.seen.k[head.key(j)]);
                sums::add_scaled(&mut dk[own.clone()], ds, q);
                sums::add_scaled(&mut dv[own], p, dy);
            }
        });
        let shaped = |of: &Array<T>, data| Array::of(of.shape.clone(), data);
        Ok(vec![shaped(q, dq), shaped(k, dk), shaped(v, dv)])
    }
}

/// One query head of one row, and what it sees.
struct Head<'a, T> {
    segment: &'a SegmentRows,
    seen: &'a Seen<T>,
    /// The query's elements within the step's.
    query: Range<usize>,
    /// The key head that it reads.
    group: usize,
    /// By visible row of the segment: number, probability, slope of the soft-cap.
    weights: Vec<(usize, T, T)>,
}

impl<T: Number> Head<'_, T> {
    /// Elements of row `j`'s key or value within the segment's.
    fn key(&self, j: usize) -> Range<usize> {
        self.seen.head(&self.seen.k, j, self.group, self.query.len())
    }

    /// Elements of row `j`'s key or value within the step's.
    fn row(&self, segment: &SegmentRows, j: usize) -> Range<usize> {
        let start = (segment.rows.start + j) * self.seen.stride + self.group * self.query.len();
        start..start + self.query.len()
    }
}

/// Visits every query head of every row.
fn each_head<T: Number>(
    attention: &Attention,
    operands: &[&Array<T>],
    env: &Env<T>,
    mut visit: impl FnMut(Head<T>),
) {
    let q = operands[0];
    let width = q.width();
    for (number, segment) in env.segments.iter().enumerate() {
        let seen = attention.keys_and_values(operands, env, number, segment);
        let (heads, kv_heads) = (q.row_elements() / width, seen.stride / width);
        for (i, row) in segment.rows.clone().enumerate() {
            let visible = attention.visible(segment, i, &seen);
            for h in 0..heads {
                let (start, group) = ((row * heads + h) * width, h / (heads / kv_heads));
                let query = start..start + width;
                let score = |&j: &usize| {
                    let k = &seen.k[seen.head(&seen.k, j, group, width)];
                    T::constant(attention.scale.into()) * sums::dot(&q.floats()[query.clone()], k)
                };
                let scores: Vec<T> = visible.iter().map(score).collect();
                let softened = visible.iter().zip(&scores);
                let softened = softened.map(|(&j, &s)| attention.final_score(s, heads, h, j.abs_diff(i)));
                let mut probabilities: Vec<T> = softened.collect();
                sums::softmax(&mut probabilities);
                let slopes = scores.into_iter().map(|s| attention.cap_slope(s));
                let weights = visible.iter().copied().zip(probabilities).zip(slopes);
                let weights = weights.map(|((j, p), slope)| (j, p, slope)).collect();
                visit(Head { segment, seen: &seen, query, group, weights });
            }
        }
    }
}

/// Fails for attention to what lies in caches.
fn require_rows(attention: &Attention) -> Result<(), String> {
    require(matches!(attention.source, KvSource::Step(_)), || NO_DERIVATIVE.into())
}
