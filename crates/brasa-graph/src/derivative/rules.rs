//! The builder to which an operation's rules append the nodes of its derivatives.

use std::collections::BTreeMap;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};

use crate::op::{Binary, Broadcast, Reduce, ReduceFn, Reshape, Unary};
use crate::{Builder, Node, Op, Shape, ValueId, ValueKind, Weight, WeightId, WeightPart};

/// The value that a rule of derivatives built, or the reason why there is none.
pub(crate) type Rule<T = ValueId> = Result<T, String>;

/// The derivatives that a rule yields, one for each result or operand; `None` is zero.
pub(crate) type Terms = Rule<Vec<Option<ValueId>>>;

/// Constants of a derivative's graph; equal ones are made once.
///
/// Constants are weights, so that no device needs an operation for them.
#[derive(Debug, Default)]
pub(super) struct Constants {
    /// Weights that hold one number, by the bits of the number.
    numbers: BTreeMap<u32, ValueId>,
    /// Weights that hold the numbers 0, 1, 2, …: for each count of numbers, the weight `[count]`.
    counts: BTreeMap<usize, ValueId>,
    /// Weights with the opposite sign, by the original weight.
    negatives: BTreeMap<WeightId, ValueId>,
}

/// A builder with helpers for the rules of derivatives.
pub(crate) struct Rules<'a> {
    builder: &'a mut Builder,
    constants: &'a mut Constants,
}

impl<'a> Rules<'a> {
    pub(super) fn new(builder: &'a mut Builder, constants: &'a mut Constants) -> Self {
        Self { builder, constants }
    }

    /// The first result of `op`.
    pub(crate) fn apply(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Rule {
        Ok(self.apply_all(op, inputs)?[0])
    }

    /// All results of `op`.
    pub(crate) fn apply_all(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Rule<Vec<ValueId>> {
        let results = self.builder.apply(op, inputs);
        self.builder.check().map_err(|error| error.to_string())?;
        Ok(results)
    }

    /// `op` with `term` instead of operand `place`: a term of the derivative if `op` is linear in that operand. `None` without a
    /// term.
    pub(crate) fn instead(
        &mut self,
        term: Option<ValueId>,
        op: impl Into<Op>,
        at: &Node,
        place: usize,
    ) -> Rule<Option<ValueId>> {
        let Some(term) = term else { return Ok(None) };
        let mut inputs = at.inputs.clone();
        inputs[place] = term;
        self.apply(op, &inputs).map(Some)
    }

    /// The innermost dimension of a value, which must be constant.
    pub(crate) fn width(&self, value: ValueId) -> Rule<usize> {
        let shape = &self.builder.graph().value(value).shape;
        shape.width().ok_or_else(|| format!("{value} {shape} has no constant width"))
    }

    /// The shape of a value.
    pub(crate) fn shape(&self, value: ValueId) -> Shape {
        self.builder.graph().value(value).shape.clone()
    }

    /// The number `x` as a weight, `[1]`.
    pub(crate) fn constant(&mut self, x: f32) -> ValueId {
        let builder = &mut *self.builder;
        *self
            .constants
            .numbers
            .entry(x.to_bits())
            .or_insert_with(|| builder.weight(Ok(stored(x.to_string(), &[1], x.to_le_bytes().into()))))
    }

    /// A weight `[count]` that holds the numbers from 0 to `count − 1` as f32, exact up to 2²⁴.
    pub(crate) fn numbers(&mut self, count: usize) -> ValueId {
        let builder = &mut *self.builder;
        *self.constants.counts.entry(count).or_insert_with(|| {
            let bytes = (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect();
            builder.weight(Ok(stored(format!("numbers below {count}"), &[count], bytes)))
        })
    }

    /// The value of `weight` with the opposite sign, as another weight.
    pub(crate) fn negative(&mut self, weight: ValueId) -> Rule {
        let ValueKind::Weight(id) = self.builder.graph().value(weight).kind else {
            return self.negated(weight);
        };
        if let Some(&found) = self.constants.negatives.get(&id) {
            return Ok(found);
        }
        let of = self.builder.graph().weight(id).clone();
        let values = of.decode("gradient").map_err(|error| error.to_string())?;
        let bytes = values.iter().flat_map(|x| (-x).to_le_bytes()).collect();
        let made = self.builder.weight(Ok(stored(format!("{}.negative", of.name), &of.shape, bytes)));
        self.constants.negatives.insert(id, made);
        Ok(made)
    }

    /// `x` repeated until its shape is `shape`.
    pub(crate) fn spread(&mut self, x: ValueId, shape: &Shape) -> Rule {
        if self.shape(x) == *shape { Ok(x) } else { self.apply(Broadcast { shape: shape.clone() }, &[x]) }
    }

    /// Zeros of a shape.
    pub(crate) fn zeros(&mut self, shape: &Shape) -> Rule {
        let zero = self.constant(0.0);
        self.spread(zero, shape)
    }

    /// `x`, or zeros of the shape of `like`.
    pub(crate) fn or_zeros(&mut self, x: Option<ValueId>, like: ValueId) -> Rule {
        let shape = self.shape(like);
        x.map_or_else(|| self.zeros(&shape), Ok)
    }

    /// The sum of `x` along all axes along which `shape` is repeated to the shape of `x`: the transpose of
    /// [`spread`](Self::spread).
    pub(crate) fn gathered(&mut self, mut x: ValueId, shape: &Shape) -> Rule {
        while self.shape(x).rank() > shape.rank() {
            x = self.sum(x, 0)?;
        }
        for axis in 0..shape.rank() {
            let dims = self.shape(x).0;
            if dims == shape.0 {
                break;
            }
            if dims[axis] != shape.0[axis] {
                let mut kept = dims;
                kept[axis] = 1.into();
                x = self.sum(x, axis)?;
                x = self.with_shape(x, &Shape(kept))?;
            }
        }
        self.with_shape(x, shape)
    }

    /// The elements of `x` in a shape that differs by axes of length 1.
    fn with_shape(&mut self, x: ValueId, shape: &Shape) -> Rule {
        let found = self.shape(x);
        match shape.inner() {
            _ if found == *shape => Ok(x),
            Some(inner) if found.outer() == shape.outer() => self.apply(Reshape { inner }, &[x]),
            _ => self.apply(Broadcast { shape: shape.clone() }, &[x]),
        }
    }

    /// Repeats `x`, the result of a reduction that removed `axis`, along that axis to `shape`.
    pub(crate) fn spread_along(&mut self, x: ValueId, axis: usize, shape: &Shape) -> Rule {
        let mut dims = shape.0.clone();
        dims[axis] = 1.into();
        let x = self.with_shape(x, &Shape(dims))?;
        self.spread(x, shape)
    }

    /// The sum along one axis, which disappears.
    pub(crate) fn sum(&mut self, x: ValueId, axis: usize) -> Rule {
        self.apply(Reduce { function: ReduceFn::Sum, axis }, &[x])
    }

    /// The sum along the innermost axis, which stays with length 1.
    pub(crate) fn sum_of_rows(&mut self, x: ValueId) -> Rule {
        let mut shape = self.shape(x);
        let axis = shape.rank().saturating_sub(1);
        let sum = self.sum(x, axis)?;
        if let Some(last) = shape.0.last_mut() {
            *last = 1.into();
        }
        self.with_shape(sum, &shape)
    }

    /// `a + b`, where the shape of `b` repeats to that of `a`.
    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Rule {
        self.apply(Binary::Add, &[a, b])
    }

    /// `a − b`, where the shape of `b` repeats to that of `a`.
    pub(crate) fn sub(&mut self, a: ValueId, b: ValueId) -> Rule {
        self.apply(Binary::Sub, &[a, b])
    }

    /// `a · b`, where the shape of `b` repeats to that of `a`.
    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> Rule {
        self.apply(Binary::Mul, &[a, b])
    }

    /// `a / b`, where the shape of `b` repeats to that of `a`.
    pub(crate) fn div(&mut self, a: ValueId, b: ValueId) -> Rule {
        self.apply(Binary::Div, &[a, b])
    }

    /// `factor · x`. A factor that f32 does not represent exactly is split into the sum of two f32 numbers, so that derivatives
    /// in f64 do not suffer from its rounding.
    pub(crate) fn scaled(&mut self, x: ValueId, factor: f64) -> Rule {
        let near = factor as f32;
        let rest = (factor - f64::from(near)) as f32;
        let first = self.apply(Unary::Scale(near), &[x])?;
        if rest == 0.0 {
            return Ok(first);
        }
        let second = self.apply(Unary::Scale(rest), &[x])?;
        self.add(first, second)
    }

    /// `x + offset`. An offset that f32 does not represent exactly is split into the sum of two f32 numbers.
    pub(crate) fn shifted(&mut self, x: ValueId, offset: f64) -> Rule {
        let near = offset as f32;
        let rest = (offset - f64::from(near)) as f32;
        let offset = self.constant(near);
        let sum = self.add(x, offset)?;
        if rest == 0.0 {
            return Ok(sum);
        }
        let rest = self.constant(rest);
        self.add(sum, rest)
    }

    /// `factor · x + offset`.
    pub(crate) fn affine(&mut self, x: ValueId, factor: f64, offset: f64) -> Rule {
        let scaled = self.scaled(x, factor)?;
        self.shifted(scaled, offset)
    }

    /// `−x`.
    pub(crate) fn negated(&mut self, x: ValueId) -> Rule {
        self.apply(Unary::Scale(-1.0), &[x])
    }

    /// The sum of two terms of one shape; `None` is zero.
    pub(crate) fn total(&mut self, a: Option<ValueId>, b: Option<ValueId>) -> Rule<Option<ValueId>> {
        match (a, b) {
            (Some(a), Some(b)) => self.add(a, b).map(Some),
            (only, None) | (None, only) => Ok(only),
        }
    }

    /// The number of elements along `axis` of `shape`, as floats, `[1]`.
    pub(crate) fn length(&mut self, shape: &Shape, axis: usize) -> Rule {
        let dim = shape.0[axis];
        if let Some(length) = dim.constant() {
            return Ok(self.constant(length as f32));
        }
        let one = self.constant(1.0);
        let ones = self.spread(one, &Shape(vec![dim]))?;
        self.sum(ones, 0)
    }
}

/// A weight of `shape` stored as f32, from little-endian bytes.
pub(super) fn stored(name: String, shape: &[usize], bytes: Vec<u8>) -> Weight {
    let payload = Payload::Blocks(Bytes::from(bytes));
    let tensor = Tensor { name: name.clone(), shape: shape.to_vec(), format: StorageFormat::F32, payload };
    Weight::new(name, shape, vec![WeightPart::whole(tensor)]).expect("one whole part")
}
