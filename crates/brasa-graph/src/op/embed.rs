//! Rows looked up by number.

use super::{IndexAdd, Operation, Place, Type, constant_dims, index, operands, require, require_floats};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// Token embedding: `y[r] = table[ids[r]]`.
///
/// If a step brings [embeddings](crate::step::Segment::embeddings) for its rows, the graph's [token
/// embedding](crate::Graph::token_embedding) returns them unchanged.
///
/// Shapes: `ids` `[R]` u32, `table` a weight `[V, D]` in any storage → `[R, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed;

impl Operation for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [ids, table] = operands(given)?;
        require(ids.dtype == DType::U32 && ids.shape.rank() == 1, || "ids must be u32 [R]".into())?;
        require_floats(&given[1..])?;
        let dims = constant_dims(table)?;
        require(dims.len() == 2, || "table must be [V, D]".into())?;
        Ok(vec![(DType::F32, Shape::rows(ids.shape.outer(), &dims[1..]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [ids, table] = *operands else { unreachable!("inferred") };
        let mut y = Vec::with_capacity(ids.data.len() * table.width());
        for &id in ids.integers() {
            let row = index(id, table.outer())?;
            y.extend_from_slice(&table.floats()[row * table.width()..(row + 1) * table.width()]);
        }
        Ok(vec![Array::of([ids.outer(), table.width()], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[1], *self, at, 1)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let zeros = g.zeros(&g.shape(at.inputs[1]))?;
        Ok(vec![None, Some(g.apply(IndexAdd, &[zeros, at.inputs[0], d])?)])
    }
}

/// Scalars looked up by number: `y[r,j] = table[indices[r,j]]`.
///
/// Shapes: `table` a weight `[X]`, `indices` `[R, k]` u32 → `[R, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather;

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [table, indices] = operands(given)?;
        require(constant_dims(table)?.len() == 1, || "table must be [X]".into())?;
        require_floats(&given[..1])?;
        require(indices.dtype == DType::U32, || "indices must be u32".into())?;
        Ok(vec![(DType::F32, indices.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [table, indices] = *operands else { unreachable!("inferred") };
        let look_up = |&i: &u32| Ok(table.floats()[index(i, table.outer())?]);
        let y = indices.integers().iter().map(look_up).collect::<Result<_, String>>()?;
        Ok(vec![Array::of(indices.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let width = g.width(at.inputs[0])?;
        let placed = g.apply(Place { width }, &[d, at.inputs[1]])?;
        Ok(vec![Some(g.sum(placed, 0)?), None])
    }
}

/// Rows picked out of a step: `y[o] = x[rows[o]]`.
///
/// Shapes: `x` `[R, …]`, `rows` `[O]` u32 → `[O, …]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectRows;

impl Operation for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, rows] = operands(given)?;
        require(rows.dtype == DType::U32 && rows.shape.rank() == 1, || "rows must be u32 [O]".into())?;
        let mut shape = x.shape.clone();
        *shape.0.first_mut().ok_or("a scalar has no rows")? = rows.shape.outer();
        Ok(vec![(x.dtype, shape)])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, rows] = *operands else { unreachable!("inferred") };
        let picked =
            rows.integers().iter().map(|&row| index(row, x.outer())).collect::<Result<Vec<_>, String>>()?;
        let mut shape = x.shape.clone();
        shape[0] = picked.len();
        let width = x.row_elements();
        Ok(vec![x.gathered(shape, |i| picked[i / width] * width + i % width)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let zeros = g.zeros(&g.shape(at.inputs[0]))?;
        Ok(vec![Some(g.apply(IndexAdd, &[zeros, at.inputs[1], d])?), None])
    }
}
