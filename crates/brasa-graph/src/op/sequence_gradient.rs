//! Derivatives of operations along the rows of a sequence.

use super::{MeanPool, Operation, Type, operands, require, require_floats, sequence::Unfold, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Dim, Node, Shape, Symbol, Value, ValueId};

/// Sums the overlapping rows that [`Unfold`] makes: its transpose.
///
/// `x[t, c] = Σ y[s, c·taps + i]` over all `s`, `i` with `stride·s + i − padding = t`.
///
/// Shapes: `y` `[R, C·taps]` → `[R · stride, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The operation that this is the transpose of.
    pub unfold: Unfold,
}

impl Operation for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn attributes(&self) -> String {
        self.unfold.attributes()
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [y] = operands(given)?;
        require_floats(given)?;
        require(y.shape.rank() == 2, || "y must be [R, C·taps]".into())?;
        let (rows, Unfold { taps, stride, .. }) = (y.shape.outer(), self.unfold);
        require(taps > 0 && width(y)?.is_multiple_of(taps), || {
            format!("{taps} taps, expected a divisor of the width")
        })?;
        let factor = rows.factor.checked_mul(stride).filter(|&factor| factor > 0);
        let factor = factor.ok_or_else(|| format!("a stride of {stride}"))?;
        Ok(vec![(DType::F32, Shape::rows(Dim { factor, symbol: rows.symbol }, &[width(y)? / taps]))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [y] = *operands else { unreachable!("inferred") };
        let Unfold { taps, stride, padding } = self.unfold;
        let (outer, channels) = (y.outer() * stride, y.width() / taps);
        let mut x = vec![T::default(); outer * channels];
        for rows in env.segments_of(outer)? {
            for t in 0..rows.len() / stride {
                let y = &y.floats()[(rows.start / stride + t) * channels * taps..][..channels * taps];
                for (at, &y) in y.iter().enumerate() {
                    // Row numbers before the first wrap beyond the last: both were zeros.
                    let row = (stride * t + at % taps).wrapping_sub(padding);
                    if row < rows.len() {
                        x[(rows.start + row) * channels + at / taps] += y;
                    }
                }
            }
        }
        Ok(vec![Array::of([outer, channels], x)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, _: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0].map(|d| g.apply(self.unfold, &[d])).transpose()?])
    }
}

/// Gives each row its share of its segment's mean: the transpose of [`MeanPool`].
///
/// `x[r] = y[segment(r)] / rows(segment(r))`.
///
/// Shapes: `y` `[Segments, D]` → `[R, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeanPoolTransposed {
    /// R, a multiple of the step's rows.
    pub rows: Dim,
}

impl Operation for MeanPoolTransposed {
    fn name(&self) -> &'static str {
        "mean_pool_transposed"
    }

    fn attributes(&self) -> String {
        format!("rows={}", self.rows)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [y] = operands(given)?;
        require_floats(given)?;
        require(y.shape.rank() == 2 && y.shape.outer() == Dim::SEGMENTS, || {
            "y must be [Segments, D]".into()
        })?;
        require(self.rows.symbol == Some(Symbol::Rows), || format!("{} rows", self.rows))?;
        Ok(vec![(DType::F32, Shape::rows(self.rows, &[width(y)?]))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [y] = *operands else { unreachable!("inferred") };
        let outer = self.rows.resolve(&env.sizes);
        let mut x = Vec::with_capacity(outer * y.width());
        for (rows, y) in env.segments_of(outer)?.into_iter().zip(y.rows()) {
            let length = T::constant(rows.len() as f64);
            for _ in rows {
                x.extend(y.iter().map(|&y| y / length));
            }
        }
        Ok(vec![Array::of([outer, y.width()], x)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, _: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0].map(|d| g.apply(MeanPool, &[d])).transpose()?])
    }
}
