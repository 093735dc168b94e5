//! Runs one operation on given arrays.

use crate::{CacheId, Op, Sizes, StateId};

use super::{Array, Env, Kv, Number, SegmentRows};

/// Computes `op` on `operands` in the simplest way, as the reference for kernels. Operands must have shapes that `op` accepts.
/// `segments` are the step's segments of the rows.
///
/// # Errors
///
/// An operand with a value that is not allowed, or an operation on a cache or a state, since these need a pool.
pub fn apply<T: Number>(
    op: &Op,
    operands: &[&Array<T>],
    segments: &[SegmentRows],
) -> Result<Vec<Array<T>>, String> {
    if op.memory_access().is_some() {
        return Err(format!("{} of a cache or state needs a pool: run a graph", op.name()));
    }
    let rows = segments.last().map_or(0, |segment| segment.rows.end);
    let sizes = Sizes { rows, outs: rows, segments: segments.len() };
    op.reference(operands, &mut Env { sizes, segments, kv: &mut NoCaches })
}

/// Keys and values for operations that use no cache; every access is a bug.
struct NoCaches;

impl<T> Kv<T> for NoCaches {
    fn write(&mut self, cache: CacheId, _: usize, _: usize, _: &[T], _: &[T]) {
        unreachable!("{cache:?} was refused")
    }

    fn position_elements(&self, cache: CacheId) -> [usize; 2] {
        unreachable!("{cache:?} was refused")
    }

    fn read(&self, cache: CacheId, _: usize, _: usize, _: &mut [T], _: &mut [T]) {
        unreachable!("{cache:?} was refused")
    }

    fn state(&self, state: StateId, _: usize, _: usize) -> Vec<T> {
        unreachable!("{state:?} was refused")
    }

    fn set_states(&mut self, state: StateId, _: usize, _: &[Vec<T>]) {
        unreachable!("{state:?} was refused")
    }
}
