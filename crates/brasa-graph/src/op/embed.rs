//! Rows looked up by number.

use super::{Operation, Type, constant_dims, index, operands, require, require_floats};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Shape, Value};

/// Token embedding: `y[r] = table[ids[r]]`.
///
/// Where a step gives [embeddings](crate::step::Segment::embeddings) for its rows, the graph's
/// [token embedding](crate::Graph::token_embedding) yields those rows as they are given.
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
}
