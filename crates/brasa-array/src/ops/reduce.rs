//! Reductions and softmax.

use brasa_graph::op::{Reduce, ReduceFn, Softmax};

use crate::Array;
use crate::array::wrong;

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $(#[$all_doc:meta])* $all:ident: $function:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// The axis is counted from the outermost, and disappears; the only one becomes 1.
        #[must_use]
        pub fn $name(&self, axis: usize) -> Self {
            self.reduce(stringify!($name), ReduceFn::$function, axis)
        }

        $(#[$all_doc])*
        #[must_use]
        pub fn $all(&self) -> Self {
            let axes = self.shape().len().max(1);
            (0..axes).rev().fold(self.clone(), |array, axis| array.$name(axis))
        }
    )* } };
}

reductions! {
    /// Sums along an axis.
    sum,
    /// The sum of all elements, `[1]`.
    sum_all: Sum;
    /// Means along an axis.
    mean,
    /// The mean of all elements, `[1]`.
    mean_all: Mean;
    /// The largest elements along an axis. Equal ones share the gradient.
    max,
    /// The largest element, `[1]`.
    max_all: Max;
    /// `ln Σ exp(x)` along an axis.
    logsumexp,
    /// `ln Σ exp(x)` of all elements, `[1]`.
    logsumexp_all: LogSumExp;
}

impl Array {
    /// Softmax over the innermost axis.
    #[must_use]
    pub fn softmax(&self) -> Self {
        Self::result(Softmax, &[self], self.shape().to_vec())
    }

    fn reduce(&self, name: &'static str, function: ReduceFn, axis: usize) -> Self {
        let mut shape = self.shape().to_vec();
        if axis >= shape.len() {
            return Self::result_or(wrong(name, format!("axis {axis} of shape {shape:?}")), self);
        }
        shape.remove(axis);
        if shape.is_empty() {
            shape.push(1);
        }
        Self::result(Reduce { function, axis }, &[self], shape)
    }
}
