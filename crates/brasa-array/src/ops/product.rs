//! Products of matrices, alone and in batches.

use brasa_graph::op::Matmul;

use crate::array::wrong;
use crate::{Array, Result};

/// Most products of one batch. Each is an operation of its own in the graph.
const MOST_PRODUCTS: usize = 4096;

impl Array {
    /// The product of two matrices, or of two batches of matrices: `[…, M, K] × […, K, N]` → `[…, M, N]`.
    ///
    /// The axes in front of the matrices are aligned from the right; an axis of 1, or one that is missing, repeats. At most 4,096 products
    /// are made of one call, except that any number of matrices on the left may meet one matrix on the right.
    #[must_use]
    pub fn matmul(&self, other: &Self) -> Self {
        self.product(other).unwrap_or_else(Self::wrong)
    }

    fn product(&self, other: &Self) -> Result<Self> {
        self.check()?;
        other.check()?;
        let mistake = || {
            let (a, b) = (self.shape(), other.shape());
            wrong("matmul", format!("shapes {a:?} and {b:?}, expected […, M, K] and […, K, N]"))
        };
        let ([front_a @ .., m, k], [front_b @ .., inner, n]) = (self.shape(), other.shape()) else {
            return Err(mistake());
        };
        if k != inner {
            return Err(mistake());
        }
        let (m, k, n) = (*m, *k, *n);
        if front_b.iter().all(|&axis| axis == 1) && front_b.len() <= front_a.len() {
            // All matrices on the left are rows of one.
            let rows = self.size() / k;
            let flat = self.reshape(&[rows, k]).plain_product(&other.reshape(&[k, n]), rows, n);
            return Ok(flat.reshape(&[front_a, &[m, n]].concat()));
        }
        let front = super::elementwise::joined_shapes("matmul", front_a, front_b).map_err(|_| mistake())?;
        let products: usize = front.iter().product();
        if products > MOST_PRODUCTS {
            let what = format!("{products} products of matrices, at most {MOST_PRODUCTS} are possible");
            return Err(wrong("matmul", what));
        }
        let a = self.broadcast_to(&[&front, &[m, k][..]].concat()).reshape(&[products, m, k]);
        let b = other.broadcast_to(&[&front, &[k, n][..]].concat()).reshape(&[products, k, n]);
        let matrix = |array: &Self, at: usize, shape: [usize; 2]| array.slice(0, at..at + 1).reshape(&shape);
        let each = (0..products).map(|at| {
            matrix(&a, at, [m, k]).plain_product(&matrix(&b, at, [k, n]), m, n).reshape(&[1, m, n])
        });
        Ok(joined(each.collect()).reshape(&[&front, &[m, n][..]].concat()))
    }

    /// The product of two matrices whose shapes fit.
    fn plain_product(&self, other: &Self, m: usize, n: usize) -> Self {
        Self::result(Matmul { transpose_a: false, transpose_b: false }, &[self, other], vec![m, n])
    }
}

/// Concatenates arrays along the outermost axis, by pairs of neighbours, so that each element is copied once per level.
fn joined(mut arrays: Vec<Array>) -> Array {
    while arrays.len() > 1 {
        arrays = arrays
            .chunks(2)
            .map(|pair| match pair {
                [first, second] => Array::concat(&[first, second], 0),
                _ => pair[0].clone(),
            })
            .collect();
    }
    arrays.pop().unwrap_or_else(|| Array::wrong(wrong("matmul", "no products".into())))
}
