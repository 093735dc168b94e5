//! Arrays: values, or how they are computed.

use std::fmt;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use brasa_graph::{Op, Shape};

use crate::{ArrayError, Result};

/// Most axes of an array.
pub const MOST_AXES: usize = 5;

/// An array of f32: its values, or the operation that computes them. Cheap to clone; a clone is the same array.
///
/// Operations compute nothing: they record expressions, which a [`Runner`](crate::Runner) computes. A mistake, such as shapes
/// that do not fit, is recorded too; the runner reports it for every array that is computed from the faulty one.
///
/// A scalar has the shape `[1]`. Once an array has its values it forgets what it was computed of.
#[derive(Clone)]
pub struct Array(pub(crate) Arc<Inner>);

/// The part of an array that all its clones point to.
pub(crate) struct Inner {
    pub shape: Vec<usize>,
    source: Mutex<Source>,
    /// True if gradients compute the array again instead of keeping it.
    pub recomputed: AtomicBool,
}

/// The source of an array's elements.
#[derive(Clone)]
pub(crate) enum Source {
    /// The array's elements are in memory.
    Values(Arc<Held>),
    /// The array is a result of an operation; the number is that of the result.
    Result(Arc<Applied>, usize),
    /// The array has the elements of another array. The role says how derivatives treat this array.
    Same(Array, Role),
    /// The array has no elements, because of a mistake in its expression.
    Wrong(ArrayError),
}

/// How a derivative treats an array that has the elements of another array.
#[derive(Clone)]
pub(crate) enum Role {
    /// The array is an argument of a function that is differentiated.
    Argument,
    /// The array is a constant: no derivative passes through it.
    Stopped,
    /// The array is a result of a function with a derivative of its own.
    Custom(Arc<CustomCall>),
}

/// An operation and its operands.
pub(crate) struct Applied {
    pub op: Op,
    pub inputs: Vec<Array>,
}

/// The rule of a function with a gradient of its own: from the arguments, the results and a cotangent of each result to a gradient
/// of each argument.
pub(crate) type GradientRule = dyn Fn(&[Array], &[Array], &[Array]) -> Result<Vec<Array>> + Send + Sync;

/// A call of a function with a gradient of its own.
pub(crate) struct CustomCall {
    inputs: Vec<Array>,
    /// The results as `function` computed them.
    computed: Vec<Array>,
    rule: Arc<GradientRule>,
    /// The results as they were returned to the caller. They own the call.
    keys: OnceLock<Vec<Weak<Inner>>>,
}

impl CustomCall {
    /// The call of a function with these arguments, which computed these results.
    pub fn new(inputs: Vec<Array>, computed: Vec<Array>, rule: Arc<GradientRule>) -> Arc<Self> {
        Arc::new(Self { inputs, computed, rule, keys: OnceLock::new() })
    }

    /// The results for the caller: arrays that have the computed elements, and through which derivatives pass by the rule.
    pub fn hand_out(self: &Arc<Self>) -> Vec<Array> {
        let result = |array: &Array| array.same(Role::Custom(Arc::clone(self)));
        let results: Vec<Array> = self.computed.iter().map(result).collect();
        let _ = self.keys.set(results.iter().map(|result| Arc::downgrade(&result.0)).collect());
        results
    }

    /// The arguments.
    pub fn inputs(&self) -> &[Array] {
        &self.inputs
    }

    /// The results as they were returned. A result that was dropped since is replaced by the computed array.
    pub fn results(&self) -> Vec<Array> {
        let living = self.keys.get().into_iter().flatten();
        living.zip(&self.computed).map(|(key, own)| key.upgrade().map_or(own.clone(), Array)).collect()
    }

    /// The gradients of the arguments.
    pub fn pass(&self, cotangents: &[Array]) -> Result<Vec<Array>> {
        (self.rule)(&self.inputs, &self.computed, cotangents)
    }
}

/// Elements in memory.
pub(crate) struct Held {
    pub values: Vec<f32>,
    /// The counter of bytes held by a runner's arrays.
    counted: Option<Arc<AtomicU64>>,
}

impl Held {
    pub fn bytes(&self) -> u64 {
        4 * self.values.len() as u64
    }

    /// Elements that count in `account` while they live.
    pub fn counted(values: Vec<f32>, account: &Arc<AtomicU64>) -> Self {
        let held = Self { values, counted: Some(Arc::clone(account)) };
        account.fetch_add(held.bytes(), Ordering::Relaxed);
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(account) = &self.counted {
            account.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for Inner {
    /// Drops long chains of operations one by one: dropping each operation inside the drop of its user would need a stack as deep
    /// as the chain.
    fn drop(&mut self) {
        let gone = || Source::Wrong(ArrayError::Derivative { what: String::new() });
        let mut rest = vec![replace(self.source.get_mut().unwrap_or_else(PoisonError::into_inner), gone())];
        while let Some(source) = rest.pop() {
            let inputs = match source {
                Source::Result(applied, _) => {
                    Arc::into_inner(applied).map_or(Vec::new(), |applied| applied.inputs)
                }
                Source::Same(array, _) => vec![array],
                Source::Values(_) | Source::Wrong(_) => continue,
            };
            for input in inputs {
                if let Some(mut inner) = Arc::into_inner(input.0) {
                    let source = inner.source.get_mut().unwrap_or_else(PoisonError::into_inner);
                    rest.push(replace(source, gone()));
                }
            }
        }
    }
}

impl Array {
    /// An array of `values`, the last axis innermost.
    pub fn new(values: impl Into<Vec<f32>>, shape: &[usize]) -> Self {
        let values = values.into();
        let made = check_shape("new", shape).and_then(|elements| {
            let what = || format!("{} values for shape {shape:?}", values.len());
            if elements == values.len() { Ok(()) } else { Err(wrong("new", what())) }
        });
        match made {
            Ok(()) => Self::of(shape.to_vec(), Source::Values(Arc::new(Held { values, counted: None }))),
            Err(error) => Self::wrong(error),
        }
    }

    /// A scalar, `[1]`.
    pub fn scalar(value: f32) -> Self {
        Self::new([value], &[1])
    }

    /// An array of one value.
    pub fn full(value: f32, shape: &[usize]) -> Self {
        match check_shape("full", shape) {
            Ok(elements) => Self::new(vec![value; elements], shape),
            Err(error) => Self::wrong(error),
        }
    }

    /// An array of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self::full(0.0, shape)
    }

    /// An array of ones.
    pub fn ones(shape: &[usize]) -> Self {
        Self::full(1.0, shape)
    }

    /// `count` numbers from `start` on, `step` apart.
    pub fn range(start: f32, step: f32, count: usize) -> Self {
        Self::new((0..count).map(|i| start + i as f32 * step).collect::<Vec<_>>(), &[count])
    }

    /// Elements of each axis; empty for a mistake.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        if self.0.shape.is_empty() { 0 } else { self.0.shape.iter().product() }
    }

    /// The elements, if they have been computed.
    pub fn values(&self) -> Option<Vec<f32>> {
        Some(self.held()?.values.clone())
    }

    /// The mistake in the array's expression; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The mistake of an array that has one.
    pub fn check(&self) -> Result<()> {
        match &*self.source() {
            Source::Wrong(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    pub(crate) fn of(shape: Vec<usize>, source: Source) -> Self {
        let (source, recomputed) = (Mutex::new(source), AtomicBool::new(false));
        Self(Arc::new(Inner { shape, source, recomputed }))
    }

    pub(crate) fn wrong(error: ArrayError) -> Self {
        Self::of(Vec::new(), Source::Wrong(error))
    }

    /// The only result of an operation. A mistake among the operands is a mistake of the result.
    pub(crate) fn result(op: impl Into<Op>, inputs: &[&Self], shape: Vec<usize>) -> Self {
        if let Some(error) = inputs.iter().find_map(|input| input.check().err()) {
            return Self::wrong(error);
        }
        let applied = Applied { op: op.into(), inputs: inputs.iter().map(|&input| input.clone()).collect() };
        Self::of(shape, Source::Result(Arc::new(applied), 0))
    }

    /// An array with the elements of this one.
    pub(crate) fn same(&self, role: Role) -> Self {
        Self::of(self.0.shape.clone(), Source::Same(self.clone(), role))
    }

    pub(crate) fn source(&self) -> MutexGuard<'_, Source> {
        self.0.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The elements, if they are there.
    pub(crate) fn held(&self) -> Option<Arc<Held>> {
        match &*self.source() {
            Source::Values(held) => Some(Arc::clone(held)),
            _ => None,
        }
    }

    /// Gives the array its elements, and drops the operation that computed them.
    pub(crate) fn settle(&self, held: Arc<Held>) {
        // Dropped without the lock, since that may take other arrays along.
        let before = replace(&mut *self.source(), Source::Values(held));
        drop(before);
    }

    /// A key that identifies the array.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Array");
        shown.field("shape", &self.shape());
        match &*self.source() {
            Source::Values(held) => shown.field("values", &held.values).finish(),
            Source::Wrong(error) => shown.field("wrong", error).finish(),
            Source::Result(..) | Source::Same(..) => shown.finish_non_exhaustive(),
        }
    }
}

/// A mistake in an operation's operands.
pub(crate) fn wrong(operation: &'static str, what: String) -> ArrayError {
    ArrayError::Operation { operation, what }
}

/// The elements of a shape; a mistake for one that arrays do not have.
pub(crate) fn check_shape(operation: &'static str, shape: &[usize]) -> Result<usize> {
    if shape.is_empty() || shape.len() > MOST_AXES {
        return Err(wrong(operation, format!("shape {shape:?}, expected 1 to {MOST_AXES} axes")));
    }
    let elements = shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim));
    match elements.filter(|&elements| elements <= MOST_ELEMENTS) {
        Some(0) => Err(wrong(operation, format!("shape {shape:?} has an axis of 0"))),
        Some(elements) => Ok(elements),
        None => Err(wrong(operation, format!("shape {shape:?} has more than {MOST_ELEMENTS} elements"))),
    }
}

/// Most elements of an array.
const MOST_ELEMENTS: usize = 1 << 32;

/// A graph's shape of constants.
pub(crate) fn shape_of(shape: &[usize]) -> Shape {
    Shape::new(shape.iter().copied())
}
