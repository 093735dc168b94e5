//! Functions that compare elements: largest elements, sorting orders, random draws. Their results have no derivatives, so a runner
//! computes them at once.

use std::cmp::Ordering;

use crate::array::wrong;
use crate::{Array, Result, Runner};

impl Runner {
    /// The places of the largest elements along an axis, as whole numbers in an array without that axis (the only axis becomes 1).
    ///
    /// Of equal elements the first is taken. NaN is never the largest, unless all are NaN; then place 0 is taken.
    ///
    /// # Errors
    ///
    /// The errors of [`eval`](Self::eval); [`ArrayError::Operation`](crate::ArrayError::Operation) for an axis that is not there, or one of
    /// more than 2²⁴ elements, whose places f32 cannot hold.
    pub fn argmax(&mut self, array: &Array, axis: usize) -> Result<Array> {
        let largest = |lane: &[f32]| {
            let places = 0..lane.len();
            let best =
                places.reduce(|best, at| if descending(lane[at], lane[best]).is_lt() { at } else { best });
            vec![best.unwrap_or(0) as f32]
        };
        let (found, mut shape) = self.by_lane("argmax", array, axis, 1, largest)?;
        shape.remove(axis);
        if shape.is_empty() {
            shape.push(1);
        }
        Ok(Array::new(found, &shape))
    }

    /// The places of the elements along an axis in ascending order, as whole numbers in an array of the same shape.
    ///
    /// Equal elements keep their order; NaN comes last. `argsort` of `−x` is the descending order.
    ///
    /// # Errors
    ///
    /// The errors of [`argmax`](Self::argmax).
    pub fn argsort(&mut self, array: &Array, axis: usize) -> Result<Array> {
        let count = array.shape().get(axis).copied().unwrap_or(0);
        let (found, shape) = self.by_lane("argsort", array, axis, count, |lane| {
            let mut places: Vec<usize> = (0..lane.len()).collect();
            places.sort_by(|&a, &b| ascending(lane[a], lane[b]));
            places.into_iter().map(|place| place as f32).collect()
        })?;
        Ok(Array::new(found, &shape))
    }

    /// Draws one place of the innermost axis for each of the others, with the probabilities `softmax(logits)`; the places are whole numbers
    /// in an array without that axis (the only axis becomes 1). One seed makes one draw.
    ///
    /// A draw is the place of the largest `logit − ln(−ln u)`, u uniform (Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030).
    ///
    /// # Errors
    ///
    /// The errors of [`argmax`](Self::argmax); [`ArrayError::Operation`](crate::ArrayError::Operation) if the logits of a draw are all −∞, or
    /// if one is NaN.
    pub fn categorical(&mut self, logits: &Array, seed: u64) -> Result<Array> {
        logits.check()?;
        let Some(axis) = logits.shape().len().checked_sub(1) else {
            return Err(wrong("categorical", "logits without axes".into()));
        };
        let values = self.read(logits)?;
        for (draw, lane) in values.chunks(logits.shape()[axis]).enumerate() {
            if lane.iter().any(|logit| logit.is_nan()) || lane.iter().all(|&logit| logit == f32::NEG_INFINITY)
            {
                return Err(wrong(
                    "categorical",
                    format!("draw {draw} has a logit of NaN, or none above −∞"),
                ));
            }
        }
        // u is above 0 and below 1, so that no noise is infinite.
        let uniform = Array::uniform(seed, logits.shape()).clip(f32::MIN_POSITIVE, 1.0 - f32::EPSILON / 2.0);
        let noise = -(-uniform.log()).log();
        self.argmax(&(logits + noise), axis)
    }

    /// `count` numbers for each lane along an axis, in the order of an array, and the shape of that array.
    fn by_lane(
        &mut self,
        operation: &'static str,
        array: &Array,
        axis: usize,
        count: usize,
        lane: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Result<(Vec<f32>, Vec<usize>)> {
        array.check()?;
        let shape = array.shape();
        let Some(&length) = shape.get(axis) else {
            return Err(wrong(operation, format!("axis {axis} of shape {shape:?}")));
        };
        if length > MOST_PLACES {
            return Err(wrong(
                operation,
                format!("an axis of {length} elements, at most {MOST_PLACES} are possible"),
            ));
        }
        let values = self.read(array)?;
        let inner: usize = shape[axis + 1..].iter().product();
        let outer = values.len() / (length * inner);
        let mut found = vec![0.0; outer * count * inner];
        let mut elements = Vec::with_capacity(length);
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            elements.clear();
            elements.extend((0..length).map(|at| values[(o * length + at) * inner + i]));
            for (at, value) in lane(&elements).into_iter().enumerate() {
                found[(o * count + at) * inner + i] = value;
            }
        }
        let mut shape = shape.to_vec();
        shape[axis] = count;
        Ok((found, shape))
    }
}

/// Most elements of an axis whose places are whole numbers in f32.
const MOST_PLACES: usize = 1 << 24;

/// Orders by size, NaN last.
fn ascending(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Orders by size, the largest first and NaN last.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
