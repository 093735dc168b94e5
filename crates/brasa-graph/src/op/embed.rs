//! Rows looked up by number.

use super::{Operation, Type, constant_dims, operands, require};
use crate::{CacheSpec, DType, Shape, Value};

/// Token embedding: `y[r] = table[ids[r]]`.
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
        let dims = constant_dims(table)?;
        require(dims.len() == 2, || "table must be [V, D]".into())?;
        Ok(vec![(DType::F32, Shape::rows(ids.shape.outer(), &dims[1..]))])
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
        require(indices.dtype == DType::U32, || "indices must be u32".into())?;
        Ok(vec![(DType::F32, indices.shape.clone())])
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
}
