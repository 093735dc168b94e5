//! Elements of each row, looked up by number and put back.

use super::{Operation, Type, index, operands, require, require_floats, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// Elements of each row looked up by number: `y[r,j] = x[r, indices[r,j]]`.
///
/// Shapes: `x` `[R, D]`, `indices` `[R, k]` u32 → `[R, k]`; or `indices` `[R]` → `[R]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick;

impl Operation for Pick {
    fn name(&self) -> &'static str {
        "pick"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, indices] = operands(given)?;
        require_floats(&given[..1])?;
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        width(x)?;
        require_indices(indices, x)?;
        Ok(vec![(DType::F32, indices.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, indices] = *operands else { unreachable!("inferred") };
        let each = indices.row_elements();
        let look_up = |(slot, &number): (usize, &u32)| {
            Ok(x.floats()[slot / each * x.width() + index(number, x.width())?])
        };
        let y = indices.integers().iter().enumerate().map(look_up).collect::<Result<_, String>>()?;
        Ok(vec![Array::of(indices.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let width = g.width(at.inputs[0])?;
        Ok(vec![cotangents[0].map(|d| g.apply(Place { width }, &[d, at.inputs[1]])).transpose()?, None])
    }
}

/// Elements put at numbered places of rows of zeros: `y[r,i] = Σ_j [indices[r,j] = i] · x[r,j]`. The transpose of [`Pick`].
///
/// Shapes: `x` `[R, k]`, `indices` `[R, k]` u32 → `[R, width]`; or both `[R]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Elements of a row of the result.
    pub width: usize,
}

impl Operation for Place {
    fn name(&self) -> &'static str {
        "place"
    }

    fn attributes(&self) -> String {
        format!("width={}", self.width)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, indices] = operands(given)?;
        require_floats(&given[..1])?;
        require_indices(indices, x)?;
        require(x.shape == indices.shape, || "x and indices differ in shape".into())?;
        Ok(vec![(DType::F32, Shape::rows(x.shape.outer(), &[self.width]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, indices] = *operands else { unreachable!("inferred") };
        let each = x.row_elements();
        let mut y = vec![T::default(); x.outer() * self.width];
        for (slot, (&x, &number)) in x.floats().iter().zip(indices.integers()).enumerate() {
            y[slot / each * self.width + index(number, self.width)?] += x;
        }
        Ok(vec![Array::of([x.outer(), self.width], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0].map(|d| g.apply(Pick, &[d, at.inputs[1]])).transpose()?, None])
    }
}

/// Fails unless `indices` can hold element numbers of the rows of `x`: u32, with the same leading dimensions.
fn require_indices(indices: &Value, x: &Value) -> Result<(), String> {
    require(
        indices.dtype == DType::U32
            && (1..=2).contains(&indices.shape.rank())
            && indices.shape.outer() == x.shape.outer()
            && indices.shape.row_elements().is_some_and(|each| each > 0),
        || "indices must be u32 [R, k] or [R]".into(),
    )
}
