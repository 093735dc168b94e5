//! Norms over the last axis.

use crate::Isa;
use crate::context::{Context, Mine, View};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// The formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NormKind {
    /// `w·x / sqrt(mean x² + eps)`.
    Rms,
    /// `w·(x − mean) / sqrt(variance + eps) + b`.
    Layer,
}

/// A norm of vectors of `width` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub kind: NormKind,
    pub eps: f32,
    pub width: usize,
    /// `w` and `b`, if the norm has them.
    pub weights: [Option<Source>; 2],
}

/// `out = norm(x)`.
#[derive(Clone, Debug)]
pub(crate) struct NormOp {
    pub norm: Norm,
    pub x: Source,
    pub out: Out,
}

/// A norm with views of its weights.
pub(crate) struct ReadyNorm<'a> {
    norm: Norm,
    weights: [Option<View<'a>>; 2],
}

impl Norm {
    /// Lists the weights.
    pub(crate) fn operands(&self, list: &mut Operands) {
        let [w, b] = self.weights;
        list.may_read("w", w).may_read("b", b);
    }

    /// Views the weights.
    pub(crate) fn ready<'a>(&self, cx: &Context<'a>) -> ReadyNorm<'a> {
        ReadyNorm { norm: *self, weights: self.weights.map(|source| source.map(|source| cx.view(&source))) }
    }
}

impl ReadyNorm<'_> {
    /// Normalises each vector of `x`.
    pub(crate) fn apply(&self, isa: Isa, x: &[f32], y: &mut [f32]) {
        let [w, b] = [0, 1].map(|i| self.weights[i].as_ref().map(|view| view.row(0)));
        let Norm { kind, eps, width, .. } = self.norm;
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            vectorize(isa, NormVector { kind, eps, w, b, x, y });
        }
    }
}

impl Operation for NormOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x);
        self.norm.operands(list);
        list.writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, x) = (cx.isa, cx.view(&self.x));
        let norm = self.norm.ready(cx);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            norm.apply(isa, x.row(row), out.row(i));
        }
    }
}

struct NormVector<'a> {
    kind: NormKind,
    eps: f32,
    w: Option<&'a [f32]>,
    b: Option<&'a [f32]>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for NormVector<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { kind, eps, w, b, x, y } = self;
        let count = x.len() as f32;
        let mean = match kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => sum(simd, x, 0.0, |x| x) / count,
        };
        let centre = simd.splat(mean);
        let squares = |x| {
            let x = simd.sub(x, centre);
            simd.mul(x, x)
        };
        let scale = 1.0 / (sum(simd, x, mean, squares) / count + eps).sqrt();
        match (w, b) {
            (Some(w), None) => {
                for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                    *y = (x - mean) * scale * w;
                }
            }
            (Some(w), Some(b)) => {
                for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
                    *y = (x - mean) * scale * w + b;
                }
            }
            _ => {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mean) * scale;
                }
            }
        }
    }
}

/// Σ f(x), in an order that depends on the length alone.
///
/// `f` also sees up to 15 times `padding`, of which it must make zero.
#[inline(always)]
fn sum<S: Simd>(simd: S, x: &[f32], padding: f32, f: impl Fn(S::V) -> S::V) -> f32 {
    let (groups, rest) = x.as_chunks::<{ 4 * LANES }>();
    let mut sums = [simd.splat(0.0); 4];
    for group in groups {
        for (sum, x) in sums.iter_mut().zip(group.as_chunks::<LANES>().0) {
            *sum = simd.add(*sum, f(simd.load(x)));
        }
    }
    let (vectors, rest) = rest.as_chunks::<LANES>();
    for (sum, x) in sums.iter_mut().zip(vectors) {
        *sum = simd.add(*sum, f(simd.load(x)));
    }
    if !rest.is_empty() {
        let mut last = [padding; LANES];
        last[..rest.len()].copy_from_slice(rest);
        sums[3] = simd.add(sums[3], f(simd.load(&last)));
    }
    simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}
