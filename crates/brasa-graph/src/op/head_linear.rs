//! A linear layer of each head.

use super::{
    Broadcast, Cast, ExpertLinearGradient, ExpertLinearTransposed, Operation, Type, constant_dims, operands,
    require, require_floats, width,
};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// A linear layer with a matrix for each head: `y[r,h,n] = Σ_k x[r,h,k] · w[h,n,k]`, summed in f32.
///
/// Shapes: `x` `[R, H, K]`, `w` a weight `[H, N, K]` in any storage → `[R, H, N]`.
///
/// Multi-head latent attention in its absorbed form has two such layers (DeepSeek-AI 2024, arXiv:2405.04434). The first
/// takes queries into the space of the latents, `W_kᵀ·q`. The second makes values of the latents that attention
/// returns, `W_v·o`.
///
/// The layer equals an [`ExpertLinear`](super::ExpertLinear) in which head h always uses expert h, and has the
/// gradients of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLinear;

impl Operation for HeadLinear {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w] = operands(given)?;
        require_floats(given)?;
        let dims = constant_dims(w)?;
        require(x.shape.rank() == 3, || "x must be [R, H, K]".into())?;
        let heads = x.shape.0[1].constant();
        require(dims.len() == 3 && heads == Some(dims[0]) && dims[2] == width(x)?, || {
            "w must be [H, N, K] for x [R, H, K]".into()
        })?;
        Ok(vec![(DType::F32, Shape::rows(x.shape.outer(), &dims[..2]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, w] = *operands else { unreachable!("inferred") };
        let (heads, outputs, inputs) = (w.shape[0], w.shape[1], w.shape[2]);
        let mut y = Vec::with_capacity(x.outer() * heads * outputs);
        for (vector, x) in x.floats().chunks_exact(inputs).enumerate() {
            let first = vector % heads * outputs * inputs;
            let matrix = &w.floats()[first..first + outputs * inputs];
            y.extend(matrix.chunks_exact(inputs).map(|w| sums::dot(x, w)));
        }
        Ok(vec![Array::of([x.outer(), heads, outputs], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let terms = [0, 1].map(|place| g.instead(tangents[place], *self, at, place));
        let [first, second] = terms;
        Ok(vec![g.total(first?, second?)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[x, w], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let heads = numbers_of_heads(g, x)?;
        let by_x = wanted[0].then(|| g.apply(ExpertLinearTransposed, &[d, heads, w])).transpose()?;
        let by_w = wanted[1].then(|| {
            let experts = g.shape(w).outer().factor;
            g.apply(ExpertLinearGradient { experts }, &[d, heads, x])
        });
        Ok(vec![by_x, by_w.transpose()?])
    }
}

/// The heads' numbers 0, 1, … for each row of `x` `[R, H, K]`: u32 `[R, H]`. They are the `experts` of an
/// [`ExpertLinear`](super::ExpertLinear) that computes the layer.
fn numbers_of_heads(g: &mut Rules, x: ValueId) -> Rule {
    let shape = g.shape(x);
    let heads = shape.0[1].factor;
    let numbers = g.numbers(heads);
    let every = Shape::rows(shape.outer(), &[heads]);
    let spread = g.apply(Broadcast { shape: every }, &[numbers])?;
    g.apply(Cast { dtype: DType::U32 }, &[spread])
}
