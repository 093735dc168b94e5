//! The loss of language models from hidden states, without logits of all rows.

use super::elementwise::{Unary, softcap};
use super::linear::{rows_times, rows_times_transposed};
use super::reduce::{row_weights, softmax_gradient};
use super::{
    CrossEntropy, Linear, LinearGradient, LinearTransposed, Operation, Place, Softmax, Type, UnaryGradient,
    index, operands, require,
};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// A language model's head and its loss in one operation: [`Linear`], a soft-cap if there is one, [`CrossEntropy`].
///
/// `y[r] = logsumexp(z[r]) − z[r, targets[r]]`, `z[r,v] = cap(Σ_k x[r,k] · w[v,k])`.
///
/// A device computes the logits of a few rows at a time, and computes them again for the gradient. So the logits of all rows, by
/// far the largest value of a step, are never stored (Wijmans et al. 2024, arXiv:2411.09009). Rows without a target are no output
/// rows of the step, and so are left out.
///
/// Shapes: `x` `[R, K]`, `w` a weight `[V, K]` in any storage, `targets` `[R]` u32 → `[R]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCrossEntropy {
    /// Soft-cap of the logits.
    pub softcap: Option<f32>,
}

/// The gradient of [`LinearCrossEntropy`]: logits are computed again, a few rows at a time.
///
/// With `g[r,v] = d[r] · (softmax(z[r])_v − [v = targets[r]]) · cap'`, `dx[r,k] = Σ_v g[r,v] · w[v,k]` and
/// `dw[v,k] = Σ_r g[r,v] · x[r,k]`.
///
/// Shapes: `x` `[R, K]`, `w` a weight `[V, K]` in any storage, `targets` `[R]` u32, `d` `[R]` → `dx` `[R, K]`, and `dw` `[V, K]`
/// if the head varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCrossEntropyGradient {
    /// Soft-cap of the logits.
    pub softcap: Option<f32>,
    /// Whether the operation also returns the gradient of the head's weight.
    pub head: Head,
}

/// Whether a language model's head varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The head's weight is a constant.
    Frozen,
    /// The head's weight has a gradient.
    Varying,
}

impl LinearCrossEntropy {
    fn attributes_of(softcap: Option<f32>) -> String {
        softcap.map_or(String::new(), |cap| format!("softcap={cap}"))
    }

    /// The logits before and after the soft-cap, as separate operations.
    fn logits(self, g: &mut Rules, x: ValueId, w: ValueId) -> Rule<(ValueId, ValueId)> {
        let scores = g.apply(Linear, &[x, w])?;
        let logits = match self.softcap {
            Some(cap) => g.apply(Unary::Softcap(cap), &[scores])?,
            None => scores,
        };
        Ok((scores, logits))
    }
}

impl Operation for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn attributes(&self) -> String {
        Self::attributes_of(self.softcap)
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w, targets] = operands(given)?;
        let [(dtype, shape)] = &Linear.infer(&[x, w], caches)?[..] else { unreachable!("one result") };
        let logits = Value { dtype: *dtype, shape: shape.clone(), kind: x.kind };
        CrossEntropy.infer(&[&logits, targets], caches)
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, w, targets] = *operands else { unreachable!("inferred") };
        let losses = x.rows().zip(targets.integers()).map(|(x, &target)| {
            let cap = |score| self.softcap.map_or(score, |cap| softcap(score, cap));
            let logits: Vec<T> = w.rows().map(|w| cap(sums::dot(x, w))).collect();
            Ok(sums::log_sum_exp(&logits) - logits[index(target, logits.len())?])
        });
        Ok(vec![Array::of(targets.shape.clone(), losses.collect::<Result<_, String>>()?)])
    }

    /// The tangent of the equivalent separate operations, which compute all logits.
    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let &[x, w, targets] = &at.inputs[..] else { unreachable!("inferred") };
        let (scores, logits) = self.logits(g, x, w)?;
        let node = |op, inputs: &[ValueId], output| Node { op, inputs: inputs.into(), outputs: vec![output] };
        let mut tangent = Linear.jvp(g, &node(Linear.into(), &[x, w], scores), &tangents[..2])?;
        if let Some(cap) = self.softcap {
            let cap = Unary::Softcap(cap);
            tangent = cap.jvp(g, &node(cap.into(), &[scores], logits), &tangent)?;
        }
        let at = node(CrossEntropy.into(), &[logits, targets], at.outputs[0]);
        CrossEntropy.jvp(g, &at, &[tangent[0], None])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let &[x, w, targets] = &at.inputs[..] else { unreachable!("inferred") };
        let Some(d) = cotangents[0] else { return Ok(vec![None; 3]) };
        let head = if wanted[1] { Head::Varying } else { Head::Frozen };
        let gradient = LinearCrossEntropyGradient { softcap: self.softcap, head };
        Ok(g.apply_all(gradient, &[x, w, targets, d])?.into_iter().map(Some).collect())
    }
}

/// The values of the gradient as separate operations, which compute all logits.
struct Parts {
    softcap: Option<Unary>,
    /// Products `x · wᵀ` before the soft-cap, `[R, V]`.
    scores: ValueId,
    /// Probabilities, `[R, V]`.
    shares: ValueId,
    /// Probabilities, minus one at the target, `[R, V]`.
    residue: ValueId,
    /// `d` as a factor of each row, `[R, 1]`.
    factors: ValueId,
    /// The residue times `d`, `[R, V]`.
    pulled: ValueId,
    /// The gradient with respect to the scores, `[R, V]`.
    gradient: ValueId,
}

impl Parts {
    fn of(gradient: LinearCrossEntropyGradient, g: &mut Rules, at: &Node) -> Rule<Self> {
        let &[x, w, targets, d] = &at.inputs[..] else { unreachable!("inferred") };
        let (scores, logits) = LinearCrossEntropy { softcap: gradient.softcap }.logits(g, x, w)?;
        let softcap = gradient.softcap.map(Unary::Softcap);
        let shares = g.apply(Softmax, &[logits])?;
        let one = g.constant(1.0);
        let ones = g.spread(one, &g.shape(targets))?;
        let own = g.apply(Place { width: g.width(logits)? }, &[ones, targets])?;
        let residue = g.sub(shares, own)?;
        let factors = row_weights(g, d)?;
        let pulled = g.mul(residue, factors)?;
        let mut parts = Self { softcap, scores, shares, residue, factors, pulled, gradient: pulled };
        parts.gradient = parts.through_cap(g, pulled)?;
        Ok(parts)
    }

    /// Multiplies a change by the slope of the soft-cap: a change of scores becomes one of logits, a cotangent of logits one of
    /// scores.
    fn through_cap(&self, g: &mut Rules, change: ValueId) -> Rule {
        self.softcap
            .map_or(Ok(change), |function| g.apply(UnaryGradient { function }, &[self.scores, change]))
    }

    /// The change of the scores' gradient along `change`, a change of the scores. This map is symmetric.
    fn bend(&self, g: &mut Rules, change: ValueId) -> Rule {
        let of_logits = self.through_cap(g, change)?;
        let of_shares = softmax_gradient(g, self.shares, of_logits)?;
        let of_shares = g.mul(of_shares, self.factors)?;
        let by_shares = self.through_cap(g, of_shares)?;
        let Some(softcap) = self.softcap else { return Ok(by_shares) };
        let both = g.mul(self.pulled, change)?;
        let by_slope = softcap.bend(g, self.scores, both)?;
        Ok(g.total(Some(by_shares), by_slope)?.unwrap_or(by_shares))
    }
}

impl Operation for LinearCrossEntropyGradient {
    fn name(&self) -> &'static str {
        "linear_cross_entropy_gradient"
    }

    fn attributes(&self) -> String {
        let head = match self.head {
            Head::Frozen => "frozen",
            Head::Varying => "varying",
        };
        format!("{head} {}", LinearCrossEntropy::attributes_of(self.softcap)).trim_end().into()
    }

    fn infer(&self, given: &[&Value], caches: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w, targets, d] = operands(given)?;
        let losses = LinearCrossEntropy { softcap: self.softcap }.infer(&[x, w, targets], caches)?;
        require(d.dtype != DType::U32 && losses[0].1 == d.shape, || "d must be [R]".into())?;
        let of_x = (DType::F32, x.shape.clone());
        Ok(match self.head {
            Head::Frozen => vec![of_x],
            Head::Varying => vec![of_x, (DType::F32, w.shape.clone())],
        })
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, w, targets, d] = *operands else { unreachable!("inferred") };
        let mut dx = vec![T::default(); x.data.len()];
        let mut dw = match self.head {
            Head::Frozen => Vec::new(),
            Head::Varying => vec![T::default(); w.data.len()],
        };
        let rows = dx.chunks_exact_mut(x.width()).zip(x.rows()).zip(targets.integers()).zip(d.floats());
        for (((dx, x), &target), &d) in rows {
            let scores: Vec<T> = w.rows().map(|w| sums::dot(x, w)).collect();
            let cap = |score| self.softcap.map_or(score, |cap| softcap(score, cap));
            let slope = |score| self.softcap.map_or(T::constant(1.0), |cap| Unary::Softcap(cap).slope(score));
            let mut shares: Vec<T> = scores.iter().map(|&score| cap(score)).collect();
            sums::softmax(&mut shares);
            shares[index(target, scores.len())?] -= T::constant(1.0);
            for (v, (&score, w)) in scores.iter().zip(w.rows()).enumerate() {
                let change = d * shares[v] * slope(score);
                sums::add_scaled(dx, change, w);
                if self.head == Head::Varying {
                    sums::add_scaled(&mut dw[v * x.len()..(v + 1) * x.len()], change, x);
                }
            }
        }
        let dx = Array::of(x.shape.clone(), dx);
        Ok(match self.head {
            Head::Frozen => vec![dx],
            Head::Varying => vec![dx, Array::of(w.shape.clone(), dw)],
        })
    }

    /// The tangent of the equivalent separate operations, which compute all logits.
    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let &[x, w, _, _] = &at.inputs[..] else { unreachable!("inferred") };
        let &[tx, tw, _, td] = tangents else { unreachable!("inferred") };
        let parts = Parts::of(*self, g, at)?;
        let of_scores = [
            tx.map(|tx| g.apply(Linear, &[tx, w])).transpose()?,
            tw.map(|tw| g.apply(Linear, &[x, tw])).transpose()?,
        ];
        let change = g.total(of_scores[0], of_scores[1])?;
        let change = change.map(|change| parts.bend(g, change)).transpose()?;
        let by_d = td.map(|td| {
            let factors = row_weights(g, td)?;
            let pulled = g.mul(parts.residue, factors)?;
            parts.through_cap(g, pulled)
        });
        let change = g.total(change, by_d.transpose()?)?;
        let by_change = change.map(|change| g.apply(LinearTransposed, &[change, w])).transpose()?;
        let by_w = tw.map(|tw| g.apply(LinearTransposed, &[parts.gradient, tw])).transpose()?;
        let mut changes = vec![g.total(by_change, by_w)?];
        if self.head == Head::Varying {
            let by_change = change.map(|change| g.apply(LinearGradient, &[change, x])).transpose()?;
            let by_x = tx.map(|tx| g.apply(LinearGradient, &[parts.gradient, tx])).transpose()?;
            changes.push(g.total(by_change, by_x)?);
        }
        Ok(changes)
    }

    /// The cotangents of the equivalent separate operations, which compute all logits.
    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let &[x, w, _, _] = &at.inputs[..] else { unreachable!("inferred") };
        let (of_x, of_w) = (cotangents[0], cotangents.get(1).copied().flatten());
        let parts = Parts::of(*self, g, at)?;
        let of_scores = [
            of_x.map(|of_x| g.apply(Linear, &[of_x, w])).transpose()?,
            of_w.map(|of_w| rows_times_transposed(g, x, of_w)).transpose()?,
        ];
        let Some(change) = g.total(of_scores[0], of_scores[1])? else { return Ok(vec![None; 4]) };
        let (mut by_x, mut by_w, mut by_d) = (None, None, None);
        if wanted[0] || wanted[1] {
            let bent = parts.bend(g, change)?;
            if wanted[0] {
                let through = of_w.map(|of_w| rows_times(g, parts.gradient, of_w)).transpose()?;
                let bent = g.apply(LinearTransposed, &[bent, w])?;
                by_x = g.total(Some(bent), through)?;
            }
            if wanted[1] {
                let through =
                    of_x.map(|of_x| g.apply(LinearGradient, &[parts.gradient, of_x])).transpose()?;
                let bent = g.apply(LinearGradient, &[bent, x])?;
                by_w = g.total(Some(bent), through)?;
            }
        }
        if wanted[3] {
            let change = parts.through_cap(g, change)?;
            let each = g.mul(parts.residue, change)?;
            by_d = Some(g.sum(each, 1)?);
        }
        Ok(vec![by_x, by_w, None, by_d])
    }
}
