//! `value[start:stop:step]` as in Python.
//!
//! The engine's own slices panic on an empty text with a negative step and on the smallest integer as a step. With a negative
//! step, they take a stop of 0 for none.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::budget;
use super::operations::scan;
use super::values::list;

/// The items or characters of a slice. A bound that is `none` is omitted.
pub fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let number =
        |bound: &Value| Some(bound.clone()).filter(|bound| !bound.is_none()).map(i128::try_from).transpose();
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "cannot slice by step size of 0"));
    }
    if value.is_undefined() || value.is_none() {
        return list(Vec::new());
    }
    scan(value)?;
    if let Some(text) = value.as_str() {
        let picked = Picked::of(text.chars().count(), start, stop, step);
        budget::memory(picked.count.saturating_mul(4).min(text.len()) as u64)?;
        let picked: String = if step > 0 {
            picked.from(text.chars()).collect()
        } else {
            picked.from(text.chars().rev()).collect()
        };
        return Ok(Value::from(picked));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let problem = format!("value of type {} cannot be sliced", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let picked = Picked::of(items.len(), start, stop, step);
    list(if step > 0 {
        picked.from(items.into_iter()).collect()
    } else {
        picked.from(items.into_iter().rev()).collect()
    })
}

/// The items of a slice, counted in the direction of its step.
struct Picked {
    first: usize,
    step: usize,
    count: usize,
}

impl Picked {
    /// The items that `start:stop:step` selects out of `len` items.
    fn of(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> Self {
        let len = len as i128;
        let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |bound: i128| {
            let from_start = if bound < 0 { bound.saturating_add(len) } else { bound };
            from_start.clamp(lowest, highest)
        };
        let (from, to) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
        let (start, stop) = (start.map_or(from, bound), stop.map_or(to, bound));
        let distance = if step > 0 { stop - start } else { start - stop };
        let step_size = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
        if distance <= 0 {
            return Self { first: 0, step: step_size, count: 0 };
        }
        let first = if step > 0 { start } else { len - 1 - start };
        Self { first: first as usize, step: step_size, count: (distance as usize).div_ceil(step_size) }
    }

    fn from<T>(self, items: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        items.skip(self.first).step_by(self.step).take(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::Picked;

    /// Every slice of a short list, by what Python says of it (`list(range(n))[start:stop:step]`).
    #[test]
    fn slices_pick_what_pythons_do() {
        let picked = |len: i128, start, stop, step| -> Vec<i128> {
            let picked = Picked::of(len as usize, start, stop, step);
            if step > 0 { picked.from(0..len).collect() } else { picked.from((0..len).rev()).collect() }
        };
        for (len, start, stop, step, expected) in [
            (4, None, None, 1, &[0, 1, 2, 3][..]),
            (4, None, None, -1, &[3, 2, 1, 0]),
            (4, None, None, 3, &[0, 3]),
            (4, None, None, -3, &[3, 0]),
            (4, Some(1), Some(3), 1, &[1, 2]),
            (4, Some(-3), Some(-1), 1, &[1, 2]),
            (4, Some(3), Some(0), -1, &[3, 2, 1]),
            (4, None, Some(-2), -1, &[3]),
            (4, Some(0), Some(2), -1, &[]),
            (4, Some(2), Some(1), 1, &[]),
            (4, Some(9), None, -2, &[3, 1]),
            (4, Some(-9), None, -1, &[]),
            (4, Some(-9), Some(9), 1, &[0, 1, 2, 3]),
            (4, Some(i128::MIN), Some(i128::MAX), i128::MAX, &[0]),
            (4, Some(i128::MAX), Some(i128::MIN), i128::MIN, &[3]),
            (0, None, None, 1, &[]),
            (0, None, None, -1, &[]),
            (0, Some(5), Some(-5), -1, &[]),
        ] {
            assert_eq!(picked(len, start, stop, step), expected, "{len}: {start:?} {stop:?} {step}");
        }
    }
}
