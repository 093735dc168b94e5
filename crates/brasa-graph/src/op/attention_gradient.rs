//! Derivatives of attention.
//!
//! All operations compute scores and probabilities again from queries and keys: neither the `[rows, rows]` scores nor the result
//! of the forward pass are kept for the gradient (Dao 2023, arXiv:2307.08691, keeps the sums of each row).

use std::ops::Range;

use super::attention::{Attention, KvSource, Seen};
use super::{NO_DERIVATIVE, Op, Operation, Type, operands, require, require_floats};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, SegmentRows, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// The reason why attention has no second derivative in forward mode.
const TWICE_FORWARD: &str =
    "no tangent of a tangent is defined; gradients of tangents and tangents of gradients are";

/// The tangent of [`Attention`] to the rows of a step.
///
/// With `p` the probabilities and `cap'` the slope of the soft-cap, `ty[r,h] = Σ_j tp_j · v[j,g] + p_j · tv[j,g]`,
/// `tp_j = p_j · (ts_j − Σ_i p_i · ts_i)`, `ts_j = cap'(s_j) · scale · (tq[r,h]·k[j,g] + q[r,h]·tk[j,g])`.
///
/// Shapes: `q`, `tq` `[R, H, E]`, `k`, `v`, `tk`, `tv` `[R, G, E]`, in the order `q, k, v, tq, tk, tv` → `[R, H, E]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTangent {
    /// The attention that is differentiated.
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
    /// The attention that is differentiated.
    pub attention: Attention,
}

/// The tangent of [`AttentionGradient`] along a direction of queries, keys and values: the product of the direction and the
/// Hessian of `Σ dy · y`, which is symmetric.
///
/// With `c = cap(s)`, `tc_j = cap'(s_j) · ts_j`, `ts` and `tp` of [`AttentionTangent`] and `dp`, `ds` of [`AttentionGradient`]: `dc_j = p_j · (dp_j − Σ_i p_i · dp_i)`,
/// `tdp_j = dy[r,h]·tv[j,g]`, `tdc_j = tp_j · (dp_j − Σ_i p_i · dp_i) + p_j · (tdp_j − Σ_i tp_i · dp_i + p_i · tdp_i)`,
/// `tds_j = scale · (cap''(s_j) · ts_j · dc_j + cap'(s_j) · tdc_j)`; then `tdq[r,h] = Σ_j tds_j · k[j,g] + ds_j · tk[j,g]`,
/// `tdk[j,g] = Σ_{r,h} tds[r,h,j] · q[r,h] + ds[r,h,j] · tq[r,h]`, `tdv[j,g] = Σ_{r,h} tp[r,h,j] · dy[r,h]`.
///
/// Shapes: `q`, `dy`, `tq` `[R, H, E]`, `k`, `v`, `tk`, `tv` `[R, G, E]`, in the order `q, k, v, dy, tq, tk, tv` → `tdq`, `tdk`, `tdv`, shaped as `q`, `k`, `v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradientTangent {
    /// The attention that is differentiated.
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

    /// The tangent of the part of this operation that is linear in its tangents.
    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (of_values, of_tangents) = tangents.split_at(3);
        if of_values.iter().any(Option::is_some) {
            return Err(TWICE_FORWARD.into());
        }
        let (values, like) = at.inputs.split_at(3);
        Ok(vec![along(g, (*self).into(), values, of_tangents, like)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[q, k, v, tq, tk, tv], Some(d)) = (&at.inputs[..], cotangents[0]) else {
            return Ok(vec![None; 6]);
        };
        let mut terms = vec![None; 6];
        if wanted[..3].contains(&true) {
            let bend = AttentionGradientTangent { attention: self.attention };
            let found = g.apply_all(bend, &[q, k, v, d, tq, tk, tv])?;
            terms.splice(..3, found.into_iter().map(Some));
        }
        if wanted[3..].contains(&true) {
            let gradient = AttentionGradient { attention: self.attention };
            let found = g.apply_all(gradient, &[q, k, v, d])?;
            terms.splice(3.., found.into_iter().map(Some));
        }
        Ok(terms)
    }
}

/// Builds the first result of `op` for `values` followed by `changes`. A missing change is zeros in the shape of `like`. `None`
/// if all changes are missing.
fn along(
    g: &mut Rules,
    op: Op,
    values: &[ValueId],
    changes: &[Option<ValueId>],
    like: &[ValueId],
) -> Rule<Option<ValueId>> {
    Ok(all_along(g, op, values, changes, like)?.map(|results| results[0]))
}

fn all_along(
    g: &mut Rules,
    op: Op,
    values: &[ValueId],
    changes: &[Option<ValueId>],
    like: &[ValueId],
) -> Rule<Option<Vec<ValueId>>> {
    if changes.iter().all(Option::is_none) {
        return Ok(None);
    }
    let changes = changes.iter().zip(like).map(|(&change, &like)| g.or_zeros(change, like));
    let changes = changes.collect::<Rule<Vec<ValueId>>>()?;
    g.apply_all(op, &[values, &changes].concat()).map(Some)
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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (values, like) = (&at.inputs[..], &at.inputs[..3]);
        let bend = AttentionGradientTangent { attention: self.attention };
        let by_values = all_along(g, bend.into(), values, &tangents[..3], like)?;
        let by_dy =
            tangents[3].map(|t| g.apply_all(*self, &[values[0], values[1], values[2], t])).transpose()?;
        let term = |of: &Option<Vec<ValueId>>, place: usize| of.as_ref().map(|results| results[place]);
        (0..3).map(|place| g.total(term(&by_values, place), term(&by_dy, place))).collect()
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (values, like) = (&at.inputs[..], &at.inputs[..3]);
        let mut terms = vec![None; 4];
        if wanted[..3].contains(&true) {
            let bend = AttentionGradientTangent { attention: self.attention };
            if let Some(found) = all_along(g, bend.into(), values, cotangents, like)? {
                terms.splice(..3, found.into_iter().map(Some));
            }
        }
        if wanted[3] {
            let tangent = AttentionTangent { attention: self.attention };
            terms[3] = along(g, tangent.into(), like, cotangents, like)?;
        }
        Ok(terms)
    }
}

impl Operation for AttentionGradientTangent {
    fn name(&self) -> &'static str {
        "attention_gradient_tangent"
    }

    fn attributes(&self) -> String {
        self.attention.attributes()
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [q, k, v, dy, tq, tk, tv] = operands(given)?;
        AttentionTangent { attention: self.attention }.infer(&[q, k, v, tq, tk, tv], caches)?;
        AttentionGradient { attention: self.attention }.infer(&[q, k, v, dy], caches)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [q, k, v, dy, tq, tk, tv] = *operands else { unreachable!("inferred") };
        let [mut of_q, mut of_k, mut of_v] = [q, k, v].map(|of| vec![T::default(); of.data.len()]);
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, operands, env, |head| {
            let Head { query, segment, .. } = &head;
            let [q, dy, tq] = [q, dy, tq].map(|of| &of.floats()[query.clone()]);
            let probabilities: Vec<T> = head.weights.iter().map(|&(_, p, _)| p).collect();
            let each = |of: &dyn Fn(usize, usize) -> T| -> Vec<T> {
                head.weights.iter().enumerate().map(|(at, &(j, ..))| of(at, j)).collect()
            };
            let less_mean = |values: &[T], mean: T| -> Vec<T> { values.iter().map(|&x| x - mean).collect() };
            let key = |j: usize| &head.seen.k[head.key(j)];
            let ts = each(&|_, j| {
                scale * (sums::dot(tq, key(j)) + sums::dot(q, &tk.floats()[head.row(segment, j)]))
            });
            let tc = each(&|at, _| head.weights[at].2 * ts[at]);
            let tc = less_mean(&tc, sums::dot(&probabilities, &tc));
            let tp = each(&|at, _| probabilities[at] * tc[at]);
            let dp = each(&|_, j| sums::dot(dy, &head.seen.v[head.key(j)]));
            let tdp = each(&|_, j| sums::dot(dy, &tv.floats()[head.row(segment, j)]));
            let mean_change = sums::dot(&tp, &dp) + sums::dot(&probabilities, &tdp);
            let dp = less_mean(&dp, sums::dot(&probabilities, &dp));
            for (at, &(j, p, slope)) in head.weights.iter().enumerate() {
                let own = head.row(segment, j);
                let bend = self.attention.cap_bend(scale * sums::dot(q, key(j)));
                let ds = scale * slope * p * dp[at];
                let tdc = tp[at] * dp[at] + p * (tdp[at] - mean_change);
                let tds = scale * (bend * ts[at] * p * dp[at] + slope * tdc);
                sums::add_scaled(&mut of_q[query.clone()], tds, key(j));
                sums::add_scaled(&mut of_q[query.clone()], ds, &tk.floats()[own.clone()]);
                sums::add_scaled(&mut of_k[own.clone()], tds, q);
                sums::add_scaled(&mut of_k[own.clone()], ds, tq);
                sums::add_scaled(&mut of_v[own], tp[at], dy);
            }
        });
        let shaped = |of: &Array<T>, data| Array::of(of.shape.clone(), data);
        Ok(vec![shaped(q, of_q), shaped(k, of_k), shaped(v, of_v)])
    }
}

/// One query head of one row, and the rows that it sees.
struct Head<'a, T> {
    segment: &'a SegmentRows,
    seen: &'a Seen<T>,
    /// The query's elements within those of the step.
    query: Range<usize>,
    /// The KV head that the query head reads.
    group: usize,
    /// For each visible row of the segment: its number, its probability, and the slope of the soft-cap.
    weights: Vec<(usize, T, T)>,
}

impl<T: Number> Head<'_, T> {
    /// Elements of row `j`'s key or value within those of the segment.
    fn key(&self, j: usize) -> Range<usize> {
        self.seen.head(&self.seen.k, j, self.group, self.query.len())
    }

    /// Elements of row `j`'s key or value within those of the step.
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

/// Fails if attention reads caches instead of the rows of the step.
fn require_rows(attention: &Attention) -> Result<(), String> {
    require(matches!(attention.source, KvSource::Step(_)), || NO_DERIVATIVE.into())
}
