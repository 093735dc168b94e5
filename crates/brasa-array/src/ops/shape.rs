//! Other shapes, parts, and elements by number.

use std::ops::Range;

use brasa_graph::op::{Broadcast, Concat, Narrow, Reduce, ReduceFn, Reshape, Transpose};

use crate::array::{check_shape, shape_of, wrong};
use crate::{Array, ArrayError};

impl Array {
    /// An array with the elements of this one, in the same order, in another shape.
    #[must_use]
    pub fn reshape(&self, shape: &[usize]) -> Self {
        match check_shape("reshape", shape) {
            Ok(elements) if elements == self.size() => {}
            Ok(_) => {
                let what = format!("shape {:?} does not rearrange to {shape:?}", self.shape());
                return Self::result_or(wrong("reshape", what), self);
            }
            Err(error) => return Self::result_or(error, self),
        }
        if self.shape() == shape {
            return self.clone();
        }
        // Graphs rearrange within rows: the whole is one row for as long as that takes.
        let with_row = |shape: &[usize]| [&[1], shape].concat();
        let row = with_row(self.shape());
        let row = Self::result(Broadcast { shape: shape_of(&row) }, &[self], row);
        let other = Self::result(Reshape { inner: shape.to_vec() }, &[&row], with_row(shape));
        Self::result(Reduce { function: ReduceFn::Sum, axis: 0 }, &[&other], shape.to_vec())
    }

    /// The axes in another order: axis `i` of the result is axis `axes[i]` of the array.
    #[must_use]
    pub fn transpose(&self, axes: &[usize]) -> Self {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape().len()) {
            let what = format!("{axes:?} is no order of the axes of {:?}", self.shape());
            return Self::result_or(wrong("transpose", what), self);
        }
        let shape = axes.iter().map(|&axis| self.shape()[axis]).collect();
        Self::result(Transpose { axes: axes.to_vec() }, &[self], shape)
    }

    /// The transpose of a matrix.
    #[must_use]
    pub fn t(&self) -> Self {
        self.transpose(&[1, 0])
    }

    /// Elements `range` along an axis, which is counted from the outermost.
    #[must_use]
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Self {
        let mut shape = self.shape().to_vec();
        match shape.get_mut(axis) {
            Some(len) if range.start < range.end && range.end <= *len => *len = range.len(),
            _ => {
                let what = format!("{range:?} along axis {axis} of {:?}", self.shape());
                return Self::result_or(wrong("slice", what), self);
            }
        }
        let op = Narrow { axis, start: range.start.into(), len: range.len().into() };
        Self::result(op, &[self], shape)
    }

    /// Concatenates arrays along an axis, which is counted from the outermost.
    #[must_use]
    pub fn concat(arrays: &[&Self], axis: usize) -> Self {
        let Some((&first, rest)) = arrays.split_first() else {
            return Self::wrong(wrong("concat", "no arrays".into()));
        };
        rest.iter().fold(first.clone(), |before, next| {
            let fits = |a: &[usize], b: &[usize]| {
                let others = |shape: &[usize]| [&shape[..axis], &shape[axis + 1..]].concat();
                a.len() == b.len() && axis < a.len() && others(a) == others(b)
            };
            let (a, b) = (before.shape(), next.shape());
            if !fits(a, b) {
                let error = wrong("concat", format!("shapes {a:?} and {b:?} along axis {axis}"));
                return Self::wrong(before.check().and(next.check()).err().unwrap_or(error));
            }
            let mut shape = a.to_vec();
            shape[axis] += b[axis];
            Self::result(Concat { axis }, &[&before, next], shape)
        })
    }

    /// Rows by number, along the outermost axis: `y[i] = x[rows[i]]`. A number may come several times.
    ///
    /// Rows are picked by a product with a matrix of ones and zeros, so this costs as much as a product of matrices.
    #[must_use]
    pub fn take(&self, rows: &[usize]) -> Self {
        let Some((&count, inner)) = self.shape().split_first() else {
            return self.clone();
        };
        let outside = rows.iter().find(|&&row| row >= count);
        let picked = rows.len().checked_mul(count).filter(|&elements| elements > 0 && outside.is_none());
        let Some(elements) = picked else {
            return Self::result_or(no_rows(rows, count), self);
        };
        let mut ones = vec![0.0; elements];
        for (at, &row) in rows.iter().enumerate() {
            ones[at * count + row] = 1.0;
        }
        let flat = self.reshape(&[count, inner.iter().product()]);
        let taken = Self::new(ones, &[rows.len(), count]).matmul(&flat);
        taken.reshape(&[&[rows.len()], inner].concat())
    }
}

fn no_rows(rows: &[usize], count: usize) -> ArrayError {
    match rows.iter().find(|&&row| row >= count) {
        Some(row) => wrong("take", format!("row {row} of {count}")),
        None => wrong("take", format!("{} rows of {count}", rows.len())),
    }
}
