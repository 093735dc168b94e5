//! Running sums.

use crate::Array;
use crate::array::wrong;

impl Array {
    /// Sums of all elements up to each, along an axis that is counted from the outermost: `y[i] = Σ_{j ≤ i} x[j]`.
    ///
    /// Sums of 1, 2, 4, … neighbours are added in turn (Hillis & Steele 1986), so an axis of N elements takes log₂ N additions of the whole
    /// array, on every device, and has gradients.
    #[must_use]
    pub fn cumsum(&self, axis: usize) -> Self {
        let Some(&count) = self.shape().get(axis) else {
            let what = format!("axis {axis} of shape {:?}", self.shape());
            return Self::result_or(wrong("cumsum", what), self);
        };
        let mut sums = self.clone();
        let mut reach = 1;
        while reach < count {
            let mut front = self.shape().to_vec();
            front[axis] = reach;
            let earlier = Self::concat(&[&Self::zeros(&front), &sums.slice(axis, 0..count - reach)], axis);
            sums = &sums + &earlier;
            reach *= 2;
        }
        sums
    }
}
