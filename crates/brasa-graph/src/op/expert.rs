//! Mixture of experts: choosing experts, and linear layers of the chosen ones.

use super::reduce::softmax_gradient;
use super::{
    ExpertLinearGradient, ExpertLinearTransposed, Gating, Operation, Pick, Place, Reshape, Scores, Softmax,
    Type, Unary, UnaryGradient, constant_dims, index, operands, require, require_floats, width,
};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// Chooses `k` experts for each row and weighs them, largest score first, ties to the lowest expert. A NaN ranks below
/// every number.
///
/// [`Gating`] defines `experts[r]` and `weights[r]` by `logits[r]`. A selection bias takes part in the choice alone: no
/// weight and no derivative depends on the bias. If a logit of a row is NaN, all weights of that row are NaN.
///
/// Shapes: `logits` `[R, X]` and, if the router has a selection bias, a bias `[X]` → `experts` `[R, k]` u32, `weights` `[R, k]`.
/// Shazeer et al. 2017, arXiv:1701.06538; the bias: Wang et al. 2024, arXiv:2408.15664.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterTopK {
    /// Number of experts that are chosen for each row.
    pub k: usize,
    /// The rule by which experts are scored, chosen and weighed.
    pub gating: Gating,
}

impl RouterTopK {
    /// Chooses the experts of one row: `k` pairs of an expert and its weight, in order of the choice.
    ///
    /// `logits` and the selection bias `bias` have one number for each expert.
    ///
    /// # Panics
    ///
    /// If there are fewer than `k` experts to choose from.
    pub fn choose<T: Number>(&self, logits: &[T], bias: Option<&[T]>) -> Vec<(u32, T)> {
        let chosen = self.gating.choose(self.k, logits, bias);
        let weights = self.gating.weigh(logits, &chosen);
        chosen.into_iter().map(|x| x as u32).zip(weights).collect()
    }

    /// True if score `a` ranks before score `b`: `a` is larger, or `b` alone is NaN.
    pub fn is_before<T: PartialOrd>(a: &T, b: &T) -> bool {
        a > b || (Self::is_nan(b) && !Self::is_nan(a))
    }

    /// True for a logit that is no number.
    pub fn is_nan<T: PartialOrd>(logit: &T) -> bool {
        logit.partial_cmp(logit).is_none()
    }
}

impl Operation for RouterTopK {
    fn name(&self) -> &'static str {
        "router_topk"
    }

    fn attributes(&self) -> String {
        format!("k={} {}", self.k, self.gating.describe())
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let (logits, bias) = match *given {
            [logits, bias] => (logits, Some(bias)),
            _ => (operands::<1>(given)?[0], None),
        };
        require_floats(given)?;
        require(logits.shape.rank() == 2, || "logits must be [R, X]".into())?;
        let experts = width(logits)?;
        require((1..=experts).contains(&self.k), || format!("k = {} of {experts} experts", self.k))?;
        let fits = |bias: &Value| bias.shape == Shape::new([experts]);
        require(bias.is_none_or(fits), || format!("the selection bias must be [{experts}]"))?;
        self.gating.check(self.k, experts)?;
        let shape = Shape::rows(logits.shape.outer(), &[self.k]);
        Ok(vec![(DType::U32, shape.clone()), (DType::F32, shape)])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let (logits, bias) = (operands[0], operands.get(1).map(|bias| bias.floats()));
        let chosen = logits.rows().flat_map(|row| self.choose(row, bias));
        let (experts, weights): (Vec<_>, Vec<_>) = chosen.unzip();
        let shape = [logits.outer(), self.k];
        Ok(vec![Array::u32(shape, experts), Array::of(shape, weights)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let Some(t) = tangents[0] else { return Ok(vec![None; 2]) };
        let Chosen { logits, experts, weights } = Chosen::of(at);
        if self.gating == Gating::SOFTMAX_CHOSEN {
            let t = g.apply(Pick, &[t, experts])?;
            return Ok(vec![None, Some(softmax_gradient(g, weights, t)?)]);
        }
        let t = match self.gating.scores {
            Scores::SoftmaxAll => {
                let all = g.apply(Softmax, &[logits])?;
                let t = softmax_gradient(g, all, t)?;
                g.apply(Pick, &[t, experts])?
            }
            Scores::SoftmaxChosen => {
                let scores = self.scores(g, logits, experts)?;
                let t = g.apply(Pick, &[t, experts])?;
                softmax_gradient(g, scores, t)?
            }
            Scores::Sigmoid => {
                let t = g.apply(Pick, &[t, experts])?;
                let few = g.apply(Pick, &[logits, experts])?;
                g.apply(UnaryGradient { function: Unary::Sigmoid }, &[few, t])?
            }
        };
        // The change of w / S, with S the sum and ε: (t − w/S · Σ t) / S.
        let t = match self.normalised(g, logits, experts)? {
            Some((share, total)) => {
                let all = g.sum_of_rows(t)?;
                let moved = g.mul(share, all)?;
                let t = g.sub(t, moved)?;
                g.div(t, total)?
            }
            None => t,
        };
        Ok(vec![None, Some(self.scaled(g, t)?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let mut terms = vec![None; at.inputs.len()];
        let Some(d) = cotangents[1] else { return Ok(terms) };
        let Chosen { logits, experts, weights } = Chosen::of(at);
        let place = Place { width: g.width(logits)? };
        if self.gating == Gating::SOFTMAX_CHOSEN {
            let d = softmax_gradient(g, weights, d)?;
            terms[0] = Some(g.apply(place, &[d, experts])?);
            return Ok(terms);
        }
        let d = self.scaled(g, d)?;
        // The transpose of the change of w / S: (d − Σ d · w/S) / S.
        let d = match self.normalised(g, logits, experts)? {
            Some((share, total)) => {
                let along = g.mul(d, share)?;
                let along = g.sum_of_rows(along)?;
                let d = g.sub(d, along)?;
                g.div(d, total)?
            }
            None => d,
        };
        terms[0] = Some(match self.gating.scores {
            Scores::SoftmaxAll => {
                let all = g.apply(Softmax, &[logits])?;
                let d = g.apply(place, &[d, experts])?;
                softmax_gradient(g, all, d)?
            }
            Scores::SoftmaxChosen => {
                let scores = self.scores(g, logits, experts)?;
                let d = softmax_gradient(g, scores, d)?;
                g.apply(place, &[d, experts])?
            }
            Scores::Sigmoid => {
                let few = g.apply(Pick, &[logits, experts])?;
                let d = g.apply(UnaryGradient { function: Unary::Sigmoid }, &[few, d])?;
                g.apply(place, &[d, experts])?
            }
        });
        Ok(terms)
    }
}

/// The values of a router that its derivatives read.
struct Chosen {
    logits: ValueId,
    experts: ValueId,
    weights: ValueId,
}

impl Chosen {
    fn of(at: &Node) -> Self {
        let &[experts, weights] = &at.outputs[..] else { unreachable!("inferred") };
        Self { logits: at.inputs[0], experts, weights }
    }
}

impl RouterTopK {
    /// The scores of the chosen experts, `[R, k]`, before normalisation and factor.
    fn scores(&self, g: &mut Rules, logits: ValueId, experts: ValueId) -> Rule {
        match self.gating.scores {
            Scores::SoftmaxAll => {
                let all = g.apply(Softmax, &[logits])?;
                g.apply(Pick, &[all, experts])
            }
            Scores::SoftmaxChosen => {
                let few = g.apply(Pick, &[logits, experts])?;
                g.apply(Softmax, &[few])
            }
            Scores::Sigmoid => {
                let few = g.apply(Pick, &[logits, experts])?;
                g.apply(Unary::Sigmoid, &[few])
            }
        }
    }

    /// The normalised scores `[R, k]` and their divisor `[R, 1]`; `None` if the router does not normalise scores.
    fn normalised(
        &self,
        g: &mut Rules,
        logits: ValueId,
        experts: ValueId,
    ) -> Rule<Option<(ValueId, ValueId)>> {
        let Some(eps) = self.gating.norm_eps else { return Ok(None) };
        let scores = self.scores(g, logits, experts)?;
        let total = g.sum_of_rows(scores)?;
        let total = g.shifted(total, eps.into())?;
        Ok(Some((g.div(scores, total)?, total)))
    }

    /// `x` times the factor of all weights.
    fn scaled(&self, g: &mut Rules, x: ValueId) -> Rule {
        let factor = self.gating.scale;
        if factor.to_bits() == 1.0_f32.to_bits() { Ok(x) } else { g.scaled(x, factor.into()) }
    }
}

/// A linear layer of each row's chosen experts: `y[r,j,n] = Σ_i x[r,j,i] · w[experts[r,j],n,i] + bias[experts[r,j],n]`.
///
/// Shapes: `x` `[R, k, K]`, or `[R, K]` for one vector that all experts of a row share; `experts` `[R, k]` u32; `w` a
/// weight `[X, N, K]`; optional last operand `bias` `[X, N]` → `[R, k, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinear;

impl Operation for ExpertLinear {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let (&[x, experts, w], bias) = match given {
            [first @ .., bias] if given.len() == 4 => (&operands::<3>(first)?, Some(bias)),
            _ => (&operands::<3>(given)?, None),
        };
        require_floats(&[x, w])?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[2] == width(x)?, || "w must be [X, N, K] for x [.., K]".into())?;
        if let Some(bias) = bias {
            require_floats(&[bias])?;
            require(constant_dims(bias)? == dims[..2], || "bias must be [X, N] for w [X, N, K]".into())?;
        }
        require(experts.dtype == DType::U32 && experts.shape.rank() == 2, || {
            "experts must be u32 [R, k]".into()
        })?;
        let chosen = width(experts)?;
        let fits = match x.shape.rank() {
            2 => true,
            3 => x.shape.0[1].constant() == Some(chosen),
            _ => false,
        };
        require(fits && x.shape.outer() == experts.shape.outer(), || "x must be [R, K] or [R, k, K]".into())?;
        Ok(vec![(DType::F32, Shape::rows(x.shape.outer(), &[chosen, dims[1]]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let &[x, experts, w, ref bias @ ..] = operands else { unreachable!("inferred") };
        let (outputs, inputs) = (w.shape[1], w.shape[2]);
        let chosen = experts.width();
        let mut y = Vec::with_capacity(experts.data.len() * outputs);
        for (slot, &expert) in experts.integers().iter().enumerate() {
            let expert = index(expert, w.outer())?;
            let row = if x.shape.len() == 3 { slot } else { slot / chosen };
            let x = &x.floats()[row * inputs..(row + 1) * inputs];
            let matrix = &w.floats()[expert * outputs * inputs..(expert + 1) * outputs * inputs];
            y.extend(matrix.chunks_exact(inputs).map(|w| sums::dot(x, w)));
            if let [bias] = bias {
                let bias = &bias.floats()[expert * outputs..][..outputs];
                y[slot * outputs..].iter_mut().zip(bias).for_each(|(y, &bias)| *y += bias);
            }
        }
        Ok(vec![Array::of([experts.outer(), chosen, outputs], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let &[x, experts, w, ..] = &at.inputs[..] else { unreachable!("inferred") };
        let by_x = tangents[0].map(|t| g.apply(*self, &[t, experts, w])).transpose()?;
        let by_w = tangents[2].map(|t| g.apply(*self, &[x, experts, t])).transpose()?;
        let product = g.total(by_x, by_w)?;
        let Some(&Some(t)) = tangents.get(3) else { return Ok(vec![product]) };
        // Rows of a table are the products of a matrix of one column with ones.
        let (ones, outputs) = (ones(g, x)?, g.width(t)?);
        let table = g.apply(Reshape { inner: vec![outputs, 1] }, &[t])?;
        let by_bias = g.apply(*self, &[ones, experts, table])?;
        Ok(vec![g.total(product, Some(by_bias))?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let mut terms = vec![None; at.inputs.len()];
        let (&[x, experts, w, ..], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(terms) };
        if wanted[0] {
            let each = g.apply(ExpertLinearTransposed, &[d, experts, w])?;
            let shared = g.shape(x).rank() == 2;
            terms[0] = Some(if shared { g.sum(each, 1)? } else { each });
        }
        let experts_count = g.shape(w).outer().factor;
        let gradient = ExpertLinearGradient { experts: experts_count };
        if wanted[2] {
            terms[2] = Some(g.apply(gradient, &[d, experts, x])?);
        }
        if wanted.get(3) == Some(&true) {
            let ones = ones(g, x)?;
            let columns = g.apply(gradient, &[d, experts, ones])?;
            terms[3] = Some(g.sum(columns, 2)?);
        }
        Ok(terms)
    }
}

/// Ones `[R, 1]` for each row of `x`.
fn ones(g: &mut Rules, x: ValueId) -> Rule {
    let (outer, one) = (g.shape(x).outer(), g.constant(1.0));
    g.spread(one, &Shape::rows(outer, &[1]))
}
