//! Changes passed through functions of each element and through norms.

use brasa_graph::op::{NormKind, Unary};

use crate::context::{Context, Mine};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// `out = f'(x) · t`.
#[derive(Clone, Debug)]
pub(crate) struct UnaryGradientOp {
    pub function: Unary,
    pub x: Source,
    pub t: Source,
    pub out: Out,
}

/// `out = s · (t − x̂ · mean(t · x̂))` for vectors of `width` elements.
#[derive(Clone, Debug)]
pub(crate) struct NormGradientOp {
    pub kind: NormKind,
    pub eps: f32,
    pub width: usize,
    pub x: Source,
    pub t: Source,
    pub out: Out,
}

impl Operation for UnaryGradientOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("t", self.t).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, x, t) = (cx.isa, cx.view(&self.x), cx.view(&self.t));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let (x, t) = (&x.row(row)[columns.clone()], &t.row(row)[columns.clone()]);
            vectorize(isa, Slopes { function: self.function, x, t, out: out.row(i) });
        }
    }
}

struct Slopes<'a> {
    function: Unary,
    x: &'a [f32],
    t: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, x, t, out } = self;
        let (vectors, rest) = out.as_chunks_mut::<LANES>();
        let ((x, x_rest), (t, t_rest)) = (x.as_chunks::<LANES>(), t.as_chunks::<LANES>());
        for ((out, x), t) in vectors.iter_mut().zip(x).zip(t) {
            simd.store(simd.mul(slope(simd, function, simd.load(x)), simd.load(t)), out);
        }
        if !rest.is_empty() {
            // Ones, where every function has a slope.
            let (mut x, mut t) = ([1.0; LANES], [0.0; LANES]);
            x[..x_rest.len()].copy_from_slice(x_rest);
            t[..t_rest.len()].copy_from_slice(t_rest);
            let y = simd.mul(slope(simd, function, simd.load(&x)), simd.load(&t));
            simd.store(y, &mut t);
            rest.copy_from_slice(&t[..rest.len()]);
        }
    }
}

/// `f'(x)`.
#[inline(always)]
fn slope<S: Simd>(simd: S, function: Unary, x: S::V) -> S::V {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    match function {
        Unary::Scale(factor) => simd.splat(factor),
        Unary::Clamp { low, high } => {
            let inside = simd.less(x, simd.splat(low), zero, one);
            simd.less(simd.splat(high), x, zero, inside)
        }
        Unary::Softcap(cap) => {
            let y = simd.tanh(simd.div(x, simd.splat(cap)));
            simd.sub(one, simd.mul(y, y))
        }
        Unary::Exp => simd.exp(x),
        Unary::Log => simd.div(one, x),
        Unary::Rsqrt => {
            let mut lanes = [0.0; LANES];
            simd.store(x, &mut lanes);
            for x in &mut lanes {
                *x = -0.5 / (*x * x.sqrt());
            }
            simd.load(&lanes)
        }
        Unary::Tanh => {
            let y = simd.tanh(x);
            simd.sub(one, simd.mul(y, y))
        }
        Unary::Sigmoid => {
            let y = simd.sigmoid(x);
            simd.mul(y, simd.sub(one, y))
        }
        Unary::Softplus => simd.sigmoid(x),
        Unary::Silu => {
            let gate = simd.sigmoid(x);
            simd.mul(gate, simd.mul_add(x, simd.sub(one, gate), one))
        }
        Unary::GeluTanh => {
            // y/2·(1 + tanh u) is y · sigmoid(2u).
            const FACTOR: f32 = 2.0 * 0.797_884_6;
            const CUBIC: f32 = 0.044_715;
            let square = simd.mul(x, x);
            let cubic = simd.mul_add(square, simd.splat(CUBIC), one);
            let gate = simd.sigmoid(simd.mul(simd.mul(x, simd.splat(FACTOR)), cubic));
            let inner = simd.mul_add(square, simd.splat(3.0 * CUBIC), one);
            let along = simd.mul(simd.mul(x, simd.splat(FACTOR)), inner);
            simd.mul(gate, simd.mul_add(along, simd.sub(one, gate), one))
        }
        Unary::GeluErf => {
            // Φ(x) = gelu(x) / x, and 1/2 near zero.
            let square = simd.mul(x, x);
            let share = simd.div(simd.gelu_erf(x), x);
            let share = simd.less(square, simd.splat(1e-12), simd.splat(0.5), share);
            let density = simd.exp(simd.mul(square, simd.splat(-0.5)));
            simd.mul_add(x, simd.mul(density, simd.splat(0.398_942_3)), share)
        }
        Unary::SquaredRelu => simd.less(x, zero, zero, simd.add(x, x)),
    }
}

impl Operation for NormGradientOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("t", self.t).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, x, t) = (cx.isa, cx.view(&self.x), cx.view(&self.t));
        let Self { kind, eps, width, .. } = *self;
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let vectors = x.row(row).chunks_exact(width).zip(t.row(row).chunks_exact(width));
            for ((x, t), out) in vectors.zip(out.row(i).chunks_exact_mut(width)) {
                vectorize(isa, NormGradientVector { kind, eps, x, t, out });
            }
        }
    }
}

struct NormGradientVector<'a> {
    kind: NormKind,
    eps: f32,
    x: &'a [f32],
    t: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for NormGradientVector<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { kind, eps, x, t, out } = self;
        let count = x.len() as f32;
        let [x_mean, t_mean] = match kind {
            NormKind::Rms => [0.0; 2],
            NormKind::Layer => sums(simd, x, t, [0.0; 2], |x, t| [x, t]).map(|sum| sum / count),
        };
        let (x_centre, t_centre) = (simd.splat(x_mean), simd.splat(t_mean));
        let [squares, along] = sums(simd, x, t, [x_mean, t_mean], |x, t| {
            let (x, t) = (simd.sub(x, x_centre), simd.sub(t, t_centre));
            [simd.mul(x, x), simd.mul(x, t)]
        });
        let scale = 1.0 / (squares / count + eps).sqrt();
        // x̂ · mean(t · x̂) is (x − mean) · s² · mean(t · (x − mean)).
        let along = scale * scale * along / count;
        for ((out, x), t) in out.iter_mut().zip(x).zip(t) {
            *out = scale * ((t - t_mean) - (x - x_mean) * along);
        }
    }
}

/// Two sums over pairs of elements, in an order that depends on the length alone. `f` also sees `padding`, of which it must make
/// zeros.
#[inline(always)]
fn sums<S: Simd>(
    simd: S,
    x: &[f32],
    t: &[f32],
    padding: [f32; 2],
    f: impl Fn(S::V, S::V) -> [S::V; 2],
) -> [f32; 2] {
    let ((x, x_rest), (t, t_rest)) = (x.as_chunks::<LANES>(), t.as_chunks::<LANES>());
    let (mut x_last, mut t_last) = ([padding[0]; LANES], [padding[1]; LANES]);
    x_last[..x_rest.len()].copy_from_slice(x_rest);
    t_last[..t_rest.len()].copy_from_slice(t_rest);
    let last = [(&x_last, &t_last)];
    // One loop: a closure that is called in two places is not inlined, and its instructions are calls then.
    let mut sums = [[simd.splat(0.0); 2]; 2];
    for (at, (x, t)) in x.iter().zip(t).chain(last).enumerate() {
        let [first, second] = f(simd.load(x), simd.load(t));
        let [a, b] = &mut sums[at % 2];
        (*a, *b) = (simd.add(*a, first), simd.add(*b, second));
    }
    let [[a, b], [c, d]] = sums;
    [simd.sum(simd.add(a, c)), simd.sum(simd.add(b, d))]
}
