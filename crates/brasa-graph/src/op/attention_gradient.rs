//! Derivatives of attention.
//!
//! All operations compute scores and probabilities again from queries and keys: neither the `[rows, rows]` scores nor the result
//! of the forward pass are kept for the gradient (Dao 2023, arXiv:2307.08691, keeps the sums of each row).

use std::ops::Range;

use super::attention::{Attention, KvSource};
use super::{NO_DERIVATIVE, Op, Operation, Type, require, require_floats};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// The reason why attention has no second derivative in forward mode.
const TWICE_FORWARD: &str =
    "no tangent of a tangent is defined; gradients of tangents and tangents of gradients are";

/// The tangent of [`Attention`] to the rows of a step.
///
/// `p` are the probabilities, `p_0` is that of the head's sink (0 without sinks), and `cap'` is the slope of the
/// soft-cap.
///
/// - Change of a score before the soft-cap: `ts_j = scale · (tq[r,h]·k[j,g] + q[r,h]·tk[j,g])`.
/// - Change of a score: `tc_j = cap'(s_j) · ts_j`.
/// - Change of a probability: `tp_j = p_j · (tc_j − Σ_i p_i · tc_i − p_0 · tsinks[h])`.
/// - Result: `ty[r,h] = Σ_j tp_j · v[j,g] + p_j · tv[j,g]`.
///
/// Shapes: `q`, `tq` `[R, H, E]`, `k`, `tk` `[R, G, E]`, `v`, `tv` `[R, G, V]`, in the order `q, k, v, tq, tk, tv` →
/// `[R, H, V]`. With sinks `[H]`, the order is `q, k, v, sinks, tq, tk, tv, tsinks`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTangent {
    /// The attention that is differentiated.
    pub attention: Attention,
}

/// The gradient of [`Attention`] to the rows of a step.
///
/// `p` are the probabilities, `p_0` is that of the head's sink, and `cap'` is the slope of the soft-cap.
///
/// - Gradient of a probability: `dp_j = dy[r,h]·v[j,g]`, with the mean `m = Σ_i p_i · dp_i`.
/// - Gradient of a product of query and key: `ds[r,h,j] = cap'(s_j) · scale · p_j · (dp_j − m)`.
/// - `dq[r,h] = Σ_j ds[r,h,j] · k[j,g]`.
/// - `dk[j,g] = Σ_{r,h} ds[r,h,j] · q[r,h]` and `dv[j,g] = Σ_{r,h} p[r,h,j] · dy[r,h]`, over the heads `h` that read KV
///   head `g`.
/// - `dsinks[h] = −Σ_r p_0[r,h] · m[r,h]`.
///
/// Shapes: `q` `[R, H, E]`, `k` `[R, G, E]`, `v` `[R, G, V]`, `dy` `[R, H, V]`, in the order `q, k, v, dy` → `dq`,
/// `dk`, `dv`, shaped as `q`, `k`, `v`. With sinks `[H]`, the order is `q, k, v, sinks, dy`, and `dsinks` is the last
/// result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradient {
    /// The attention that is differentiated.
    pub attention: Attention,
}

/// The tangent of [`AttentionGradient`] along a direction of queries, keys, values and sinks: the product of the
/// direction and the Hessian of `Σ dy · y`, which is symmetric.
///
/// `ts`, `tc` and `tp` are those of [`AttentionTangent`], `dp`, `m` and `ds` those of [`AttentionGradient`]. `cap'` and
/// `cap''` are the derivatives of the soft-cap.
///
/// - `dc_j = p_j · (dp_j − m)`.
/// - `tdp_j = dy[r,h]·tv[j,g]` and `tm = Σ_i (tp_i · dp_i + p_i · tdp_i)`.
/// - `tdc_j = tp_j · (dp_j − m) + p_j · (tdp_j − tm)`.
/// - `tds_j = scale · (cap''(s_j) · ts_j · dc_j + cap'(s_j) · tdc_j)`.
/// - `tdq[r,h] = Σ_j tds_j · k[j,g] + ds_j · tk[j,g]`.
/// - `tdk[j,g] = Σ_{r,h} tds[r,h,j] · q[r,h] + ds[r,h,j] · tq[r,h]`.
/// - `tdv[j,g] = Σ_{r,h} tp[r,h,j] · dy[r,h]`.
/// - `tdsinks[h] = −Σ_r (tp_0 · m + p_0 · tm)`, with `tp_0 = p_0 · (tsinks[h] − Σ_i p_i · tc_i − p_0 · tsinks[h])`.
///
/// Shapes: `q`, `tq` `[R, H, E]`, `k`, `tk` `[R, G, E]`, `v`, `tv` `[R, G, V]`, `dy` `[R, H, V]`, in the order
/// `q, k, v, dy, tq, tk, tv` → `tdq`, `tdk`, `tdv`, shaped as `q`, `k`, `v`. With sinks `[H]`, the order is
/// `q, k, v, sinks, dy, tq, tk, tv, tsinks`, and `tdsinks` is the last result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradientTangent {
    /// The attention that is differentiated.
    pub attention: Attention,
}

/// Fails unless the number of operands is `without` (no sinks) or `with` (sinks).
fn with_or_without_sinks(given: &[&Value], [without, with]: [usize; 2]) -> Result<(), String> {
    let count = given.len();
    require(count == without || count == with, || format!("{count} operands, expected {without} or {with}"))
}

/// Fails unless each value has the shape of its tangent.
fn require_alike(values: &[&Value], tangents: &[&Value]) -> Result<(), String> {
    let alike = values.iter().zip(tangents).all(|(of, tangent)| of.shape == tangent.shape);
    require(alike, || "a tangent has another shape than its value".into())
}

impl Operation for AttentionTangent {
    fn name(&self) -> &'static str {
        "attention_tangent"
    }

    fn attributes(&self) -> String {
        self.attention.attributes()
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        with_or_without_sinks(given, [6, 8])?;
        require_floats(given)?;
        require_rows(&self.attention)?;
        let (values, tangents) = given.split_at(given.len() / 2);
        let types = self.attention.infer(values, caches)?;
        require_alike(values, tangents)?;
        Ok(types)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let (values, tangents) = operands.split_at(operands.len() / 2);
        let [tq, tk, tv] = *tangents.first_chunk().expect("inferred");
        let mut ty = zeros(values);
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, values, env, |head| {
            let (q, tq) = (&values[0].floats()[head.query()], &tq.floats()[head.query()]);
            let mut changes: Vec<T> = Vec::with_capacity(head.weights.len());
            for &(j, _, slope) in &head.weights {
                let (k, tk) = (&values[1].floats()[head.key(j)], &tk.floats()[head.key(j)]);
                changes.push(slope * scale * (sums::dot(tq, k) + sums::dot(q, tk)));
            }
            let mut mean = sums::dot(&head.probabilities(), &changes);
            if let (Some(sink), Some(changes)) = (head.sink, tangents.get(3)) {
                mean += sink * changes.floats()[head.number];
            }
            let ty = &mut ty[head.result()];
            for (&(j, p, _), change) in head.weights.iter().zip(changes) {
                sums::add_scaled(ty, p * (change - mean), &values[2].floats()[head.value(j)]);
                sums::add_scaled(ty, p, &tv.floats()[head.value(j)]);
            }
        });
        Ok(vec![Array::of(shape_of_result(values), ty)])
    }

    /// The tangent of the part of this operation that is linear in its tangents.
    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let half = at.inputs.len() / 2;
        let (of_values, of_tangents) = tangents.split_at(half);
        if of_values.iter().any(Option::is_some) {
            return Err(TWICE_FORWARD.into());
        }
        let (values, like) = at.inputs.split_at(half);
        Ok(vec![along(g, (*self).into(), values, of_tangents, like)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let mut terms = vec![None; at.inputs.len()];
        let Some(d) = cotangents[0] else { return Ok(terms) };
        let half = at.inputs.len() / 2;
        let (values, tangents) = at.inputs.split_at(half);
        if wanted[..half].contains(&true) {
            let bend = AttentionGradientTangent { attention: self.attention };
            let found = g.apply_all(bend, &[values, &[d], tangents].concat())?;
            terms.splice(..half, found.into_iter().map(Some));
        }
        if wanted[half..].contains(&true) {
            let gradient = AttentionGradient { attention: self.attention };
            let found = g.apply_all(gradient, &[values, &[d]].concat())?;
            terms.splice(half.., found.into_iter().map(Some));
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
        with_or_without_sinks(given, [4, 5])?;
        require_floats(given)?;
        require_rows(&self.attention)?;
        let (values, dy) = given.split_at(given.len() - 1);
        let types = self.attention.infer(values, caches)?;
        require(types[0].1 == dy[0].shape, || "dy has another shape than the result".into())?;
        Ok(values.iter().map(|of| (DType::F32, of.shape.clone())).collect())
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let (values, dy) = operands.split_at(operands.len() - 1);
        let mut changes: Vec<Vec<T>> = values.iter().map(|of| vec![T::default(); of.data.len()]).collect();
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, values, env, |head| {
            let (q, dy) = (&values[0].floats()[head.query()], &dy[0].floats()[head.result()]);
            let dp = head.weights.iter().map(|&(j, ..)| sums::dot(dy, &values[2].floats()[head.value(j)]));
            let dp: Vec<T> = dp.collect();
            let mean = sums::dot(&head.probabilities(), &dp);
            for (&(j, p, slope), dp) in head.weights.iter().zip(dp) {
                let ds = slope * scale * p * (dp - mean);
                sums::add_scaled(&mut changes[0][head.query()], ds, &values[1].floats()[head.key(j)]);
                sums::add_scaled(&mut changes[1][head.key(j)], ds, q);
                sums::add_scaled(&mut changes[2][head.value(j)], p, dy);
            }
            if let Some(sink) = head.sink {
                changes[3][head.number] -= sink * mean;
            }
        });
        Ok(shaped_as(values, changes))
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let count = at.inputs.len() - 1;
        let like = &at.inputs[..count];
        let bend = AttentionGradientTangent { attention: self.attention };
        let by_values = all_along(g, bend.into(), &at.inputs, &tangents[..count], like)?;
        let by_dy = tangents[count].map(|t| g.apply_all(*self, &[like, &[t]].concat())).transpose()?;
        let term = |of: &Option<Vec<ValueId>>, place: usize| of.as_ref().map(|results| results[place]);
        (0..count).map(|place| g.total(term(&by_values, place), term(&by_dy, place))).collect()
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let count = at.inputs.len() - 1;
        let like = &at.inputs[..count];
        let mut terms = vec![None; count + 1];
        if wanted[..count].contains(&true) {
            let bend = AttentionGradientTangent { attention: self.attention };
            if let Some(found) = all_along(g, bend.into(), &at.inputs, cotangents, like)? {
                terms.splice(..count, found.into_iter().map(Some));
            }
        }
        if wanted[count] {
            let tangent = AttentionTangent { attention: self.attention };
            terms[count] = along(g, tangent.into(), like, cotangents, like)?;
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
        with_or_without_sinks(given, [7, 9])?;
        let (of_gradient, tangents) = given.split_at(given.len() / 2 + 1);
        let types = AttentionGradient { attention: self.attention }.infer(of_gradient, caches)?;
        require_floats(tangents)?;
        require_alike(of_gradient, tangents)?;
        Ok(types)
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let count = operands.len() / 2;
        let (values, dy, tangents) = (&operands[..count], operands[count], &operands[count + 1..]);
        let [tq, tk, tv] = *tangents.first_chunk().expect("inferred");
        let mut changes: Vec<Vec<T>> = values.iter().map(|of| vec![T::default(); of.data.len()]).collect();
        let scale = T::constant(self.attention.scale.into());
        each_head(&self.attention, values, env, |head| {
            let [q, tq] = [values[0], tq].map(|of| &of.floats()[head.query()]);
            let dy = &dy.floats()[head.result()];
            let probabilities = head.probabilities();
            let each = |of: &dyn Fn(usize, usize) -> T| -> Vec<T> {
                head.weights.iter().enumerate().map(|(at, &(j, ..))| of(at, j)).collect()
            };
            let less_mean = |values: &[T], mean: T| -> Vec<T> { values.iter().map(|&x| x - mean).collect() };
            let key = |j: usize| &values[1].floats()[head.key(j)];
            let ts = each(&|_, j| scale * (sums::dot(tq, key(j)) + sums::dot(q, &tk.floats()[head.key(j)])));
            let tc = each(&|at, _| head.weights[at].2 * ts[at]);
            let of_sink = head.sink.zip(tangents.get(3)).map(|(p, t)| (p, t.floats()[head.number]));
            let mut mean_tc = sums::dot(&probabilities, &tc);
            if let Some((p, t)) = of_sink {
                mean_tc += p * t;
            }
            let tc = less_mean(&tc, mean_tc);
            let tp = each(&|at, _| probabilities[at] * tc[at]);
            let dp = each(&|_, j| sums::dot(dy, &values[2].floats()[head.value(j)]));
            let tdp = each(&|_, j| sums::dot(dy, &tv.floats()[head.value(j)]));
            let mean_change = sums::dot(&tp, &dp) + sums::dot(&probabilities, &tdp);
            let mean_dp = sums::dot(&probabilities, &dp);
            let dp = less_mean(&dp, mean_dp);
            for (at, &(j, p, slope)) in head.weights.iter().enumerate() {
                let bend = self.attention.cap_bend(scale * sums::dot(q, key(j)));
                let ds = scale * slope * p * dp[at];
                let tdc = tp[at] * dp[at] + p * (tdp[at] - mean_change);
                let tds = scale * (bend * ts[at] * p * dp[at] + slope * tdc);
                sums::add_scaled(&mut changes[0][head.query()], tds, key(j));
                sums::add_scaled(&mut changes[0][head.query()], ds, &tk.floats()[head.key(j)]);
                sums::add_scaled(&mut changes[1][head.key(j)], tds, q);
                sums::add_scaled(&mut changes[1][head.key(j)], ds, tq);
                sums::add_scaled(&mut changes[2][head.value(j)], tp[at], dy);
            }
            if let Some((p, t)) = of_sink {
                let tp = p * (t - mean_tc);
                changes[3][head.number] -= tp * mean_dp + p * mean_change;
            }
        });
        Ok(shaped_as(values, changes))
    }
}

/// One query head of one row, and the rows that it sees.
struct Head<T> {
    /// The row, within the step, and the first row of its segment.
    row: usize,
    first_row: usize,
    /// The query head, and the number of query heads.
    number: usize,
    heads: usize,
    /// The KV head that the query head reads, and the number of KV heads.
    group: usize,
    kv_heads: usize,
    /// Elements of a key and of a value.
    widths: [usize; 2],
    /// For each visible row of the segment: its number, its probability, and the slope of the soft-cap.
    weights: Vec<(usize, T, T)>,
    /// The probability of the head's sink, if it has one.
    sink: Option<T>,
}

impl<T: Number> Head<T> {
    /// The probabilities of the visible rows.
    fn probabilities(&self) -> Vec<T> {
        self.weights.iter().map(|&(_, p, _)| p).collect()
    }

    /// The range of the query's elements among the queries of the step.
    fn query(&self) -> Range<usize> {
        of_head(self.row * self.heads + self.number, self.widths[0])
    }

    /// The range of the result's elements among the results of the step.
    fn result(&self) -> Range<usize> {
        of_head(self.row * self.heads + self.number, self.widths[1])
    }

    /// The range of the key's elements of the segment's row `j` among the keys of the step.
    fn key(&self, j: usize) -> Range<usize> {
        of_head((self.first_row + j) * self.kv_heads + self.group, self.widths[0])
    }

    /// The range of the value's elements of the segment's row `j` among the values of the step.
    fn value(&self, j: usize) -> Range<usize> {
        of_head((self.first_row + j) * self.kv_heads + self.group, self.widths[1])
    }
}

/// The range of the elements of head number `head` among heads of `width` elements each.
fn of_head(head: usize, width: usize) -> Range<usize> {
    head * width..(head + 1) * width
}

/// Visits every query head of every row. `operands` are `[q, k, v]`, or `[q, k, v, sinks]`.
fn each_head<T: Number>(
    attention: &Attention,
    operands: &[&Array<T>],
    env: &Env<T>,
    mut visit: impl FnMut(Head<T>),
) {
    let (q, k, v) = (operands[0], operands[1], operands[2]);
    let widths = [k.width(), v.width()];
    let (heads, kv_heads) = (q.row_elements() / widths[0], k.row_elements() / widths[0]);
    for (number, segment) in env.segments.iter().enumerate() {
        let seen = attention.keys_and_values(operands, env, number, segment);
        for (i, row) in segment.rows.clone().enumerate() {
            let visible = attention.visible(segment, i, &seen);
            for h in 0..heads {
                let group = h / (heads / kv_heads);
                let query = &q.floats()[of_head(row * heads + h, widths[0])];
                let score = |&j: &usize| {
                    let k = &seen.k[seen.key(j, group, widths[0])];
                    T::constant(attention.scale.into()) * sums::dot(query, k)
                };
                let scores: Vec<T> = visible.iter().map(score).collect();
                let softened = visible.iter().zip(&scores);
                let softened = softened.map(|(&j, &s)| attention.final_score(s, heads, h, j.abs_diff(i)));
                let sink = operands.get(3).map(|sinks| sinks.floats()[h]);
                let mut probabilities: Vec<T> = softened.chain(sink).collect();
                sums::softmax(&mut probabilities);
                let sink = sink.and_then(|_| probabilities.pop());
                let slopes = scores.into_iter().map(|s| attention.cap_slope(s));
                let weights = visible.iter().copied().zip(probabilities).zip(slopes);
                let weights = weights.map(|((j, p), slope)| (j, p, slope)).collect();
                let first_row = segment.rows.start;
                visit(Head { row, first_row, number: h, heads, group, kv_heads, widths, weights, sink });
            }
        }
    }
}

/// The shape of attention's result: that of queries, with the width of values.
fn shape_of_result<T: Number>(operands: &[&Array<T>]) -> Vec<usize> {
    let mut shape = operands[0].shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = operands[2].width();
    }
    shape
}

/// Zeros in the shape of attention's result.
fn zeros<T: Number>(operands: &[&Array<T>]) -> Vec<T> {
    vec![T::default(); shape_of_result(operands).iter().product()]
}

/// Results in the shapes of the operands.
fn shaped_as<T: Number>(operands: &[&Array<T>], results: Vec<Vec<T>>) -> Vec<Array<T>> {
    operands.iter().zip(results).map(|(of, data)| Array::of(of.shape.clone(), data)).collect()
}

/// Fails if attention reads caches instead of the rows of the step.
fn require_rows(attention: &Attention) -> Result<(), String> {
    require(matches!(attention.source, KvSource::Step(_)), || NO_DERIVATIVE.into())
}
