//! A factor that grows with the position.

use super::{Operation, Type, operands, require, require_floats};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// Scales rows by their positions: `y[r] = x[r] · (1 + β·ln(1 + ⌊p/n⌋))`, with `p = positions[r]`.
///
/// Rows at positions below `n` do not change. Llama 4 and Ministral 3 scale the queries of long contexts by this
/// factor.
///
/// Shapes: `x` `[R, …]`, `positions` `[R]` u32 → as `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// β, the slope of the factor in `ln(1 + ⌊p/n⌋)`; 0 leaves all rows as they are.
    pub beta: f32,
    /// `n`, the number of neighbouring positions that have one factor; at least 1.
    pub positions: u32,
}

impl PositionScale {
    /// The factor `1 + β·ln(1 + ⌊position/n⌋)` of a row at `position`.
    pub fn factor<T: Number>(&self, position: u32) -> T {
        let steps = T::constant(f64::from(position / self.positions));
        let one = T::constant(1.0);
        one + T::constant(self.beta.into()) * (one + steps).ln()
    }
}

impl Operation for PositionScale {
    fn name(&self) -> &'static str {
        "position_scale"
    }

    fn attributes(&self) -> String {
        format!("beta={} positions={}", self.beta, self.positions)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, positions] = operands(given)?;
        require_floats(&[x])?;
        require(positions.dtype == DType::U32 && positions.shape.0 == [x.shape.outer()], || {
            "positions must be u32 [R]".into()
        })?;
        require(self.positions > 0 && self.beta.is_finite(), || {
            format!("β = {} and steps of {} positions", self.beta, self.positions)
        })?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, positions] = *operands else { unreachable!("inferred") };
        let mut y = x.floats().to_vec();
        for (row, &position) in y.chunks_exact_mut(x.row_elements().max(1)).zip(positions.integers()) {
            let factor: T = self.factor(position);
            for x in row {
                *x *= factor;
            }
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let by_x = cotangents[0].map(|d| g.apply(*self, &[d, at.inputs[1]])).transpose()?;
        Ok(vec![by_x, None])
    }
}
