//! Mixture of experts: choosing experts, and linear layers of the chosen ones.

use super::reduce::softmax_gradient;
use super::{
    ExpertLinearGradient, ExpertLinearTransposed, Operation, Pick, Place, Softmax, Type, constant_dims,
    index, operands, require, require_floats, width,
};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// The function that turns router logits into weights of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts; the weights of the chosen experts are not renormalised.
    SoftmaxAll,
    /// Softmax over the chosen experts alone (equal to renormalising the weights of the chosen ones).
    SoftmaxChosen,
}

/// Chooses `k` experts per row, largest logit first, ties to the lowest expert. A NaN is behind every number.
///
/// `experts[r]` = the `k` largest of `logits[r]`; `weights[r]` as [`Gating`] says. If a logit of a row is NaN, all weights of that row are NaN.
///
/// Shapes: `logits` `[R, X]` → `experts` `[R, k]` u32, `weights` `[R, k]`.
/// Shazeer et al. 2017, arXiv:1701.06538.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterTopK {
    /// Experts per row.
    pub k: usize,
    /// The function that turns logits into weights.
    pub gating: Gating,
}

impl RouterTopK {
    /// The experts of one row and their weights.
    ///
    /// # Panics
    ///
    /// If there are fewer than `k` logits.
    pub fn choose<T: Number>(&self, logits: &[T]) -> Vec<(u32, T)> {
        let mut chosen: Vec<usize> = Vec::with_capacity(self.k);
        for _ in 0..self.k {
            let free = |x: &usize| !chosen.contains(x);
            let first =
                |best: usize, x: usize| if Self::is_before(&logits[x], &logits[best]) { x } else { best };
            chosen.push((0..logits.len()).filter(free).reduce(first).expect("k is at most X"));
        }
        let shares: Vec<T> = match self.gating {
            _ if logits.iter().any(Self::is_nan) => vec![T::constant(f64::NAN); self.k],
            Gating::SoftmaxAll => {
                let mut all = logits.to_vec();
                sums::softmax(&mut all);
                chosen.iter().map(|&x| all[x]).collect()
            }
            Gating::SoftmaxChosen => {
                let mut few: Vec<T> = chosen.iter().map(|&x| logits[x]).collect();
                sums::softmax(&mut few);
                few
            }
        };
        chosen.into_iter().map(|x| x as u32).zip(shares).collect()
    }

    /// True if an expert with logit `a` is chosen before one with logit `b`, unless both are chosen.
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
        let gating = match self.gating {
            Gating::SoftmaxAll => "softmax_all",
            Gating::SoftmaxChosen => "softmax_chosen",
        };
        format!("k={} {gating}", self.k)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [logits] = operands(given)?;
        require_floats(given)?;
        require(logits.shape.rank() == 2, || "logits must be [R, X]".into())?;
        let experts = width(logits)?;
        require((1..=experts).contains(&self.k), || format!("k = {} of {experts} experts", self.k))?;
        let shape = Shape::rows(logits.shape.outer(), &[self.k]);
        Ok(vec![(DType::U32, shape.clone()), (DType::F32, shape)])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [logits] = *operands else { unreachable!("inferred") };
        let chosen = logits.rows().flat_map(|row| self.choose(row));
        let (experts, weights): (Vec<_>, Vec<_>) = chosen.unzip();
        let shape = [logits.outer(), self.k];
        Ok(vec![Array::u32(shape, experts), Array::of(shape, weights)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (&[logits], &[experts, weights]) = (&at.inputs[..], &at.outputs[..]) else {
            unreachable!("inferred")
        };
        let Some(t) = tangents[0] else { return Ok(vec![None; 2]) };
        let t = match self.gating {
            Gating::SoftmaxAll => {
                let all = g.apply(Softmax, &[logits])?;
                let t = softmax_gradient(g, all, t)?;
                g.apply(Pick, &[t, experts])?
            }
            Gating::SoftmaxChosen => {
                let t = g.apply(Pick, &[t, experts])?;
                softmax_gradient(g, weights, t)?
            }
        };
        Ok(vec![None, Some(t)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let (&[logits], &[experts, weights]) = (&at.inputs[..], &at.outputs[..]) else {
            unreachable!("inferred")
        };
        let Some(d) = cotangents[1] else { return Ok(vec![None]) };
        let place = Place { width: g.width(logits)? };
        let d = match self.gating {
            Gating::SoftmaxAll => {
                let all = g.apply(Softmax, &[logits])?;
                let d = g.apply(place, &[d, experts])?;
                softmax_gradient(g, all, d)?
            }
            Gating::SoftmaxChosen => {
                let d = softmax_gradient(g, weights, d)?;
                g.apply(place, &[d, experts])?
            }
        };
        Ok(vec![Some(d)])
    }
}

/// A linear layer of each row's chosen experts: `y[r,j,n] = Σ_k x[r,(j),k] · w[experts[r,j],n,k]`.
///
/// Shapes: `x` `[R, K]` (shared by the experts) or `[R, k, K]`, `experts` `[R, k]` u32, `w` a weight `[X, N, K]`
/// → `[R, k, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinear;

impl Operation for ExpertLinear {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, experts, w] = operands(given)?;
        require_floats(&[x, w])?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[2] == width(x)?, || "w must be [X, N, K] for x [.., K]".into())?;
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
        let [x, experts, w] = *operands else { unreachable!("inferred") };
        let (outputs, inputs) = (w.shape[1], w.shape[2]);
        let chosen = experts.width();
        let mut y = Vec::with_capacity(experts.data.len() * outputs);
        for (slot, &expert) in experts.integers().iter().enumerate() {
            let expert = index(expert, w.outer())?;
            let row = if x.shape.len() == 3 { slot } else { slot / chosen };
            let x = &x.floats()[row * inputs..(row + 1) * inputs];
            let matrix = &w.floats()[expert * outputs * inputs..(expert + 1) * outputs * inputs];
            y.extend(matrix.chunks_exact(inputs).map(|w| sums::dot(x, w)));
        }
        Ok(vec![Array::of([experts.outer(), chosen, outputs], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let by_x = g.instead(tangents[0], *self, at, 0)?;
        let by_w = g.instead(tangents[2], *self, at, 2)?;
        Ok(vec![g.total(by_x, by_w)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[x, experts, w], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 3]) };
        let (mut by_x, mut by_w) = (None, None);
        if wanted[0] {
            let each = g.apply(ExpertLinearTransposed, &[d, experts, w])?;
            let shared = g.shape(x).rank() == 2;
            by_x = Some(if shared { g.sum(each, 1)? } else { each });
        }
        if wanted[2] {
            let count = g.shape(w).outer().factor;
            by_w = Some(g.apply(ExpertLinearGradient { experts: count }, &[d, experts, x])?);
        }
        Ok(vec![by_x, None, by_w])
    }
}
