//! Derivatives of functions of arrays.
//!
//! A function is called once with arrays that stand for its arguments; what it makes of them is differentiated as a graph
//! ([`brasa_graph::derivative`]). So a function must not depend on values: it may read none that depend on its arguments. The results
//! are arrays like any others, and may be differentiated again, as often as wanted, through every operation of [`Array`].
//! The product of a Hessian and a direction is [`jvp`] of a function that returns a gradient.
//!
//! ```
//! # use std::sync::Arc;
//! use brasa_array::{Array, Result, Runner, grad};
//! # use brasa_cpu::{CpuBackend, CpuOptions};
//!
//! // Σ exp(x): the Hessian is diagonal, exp(x).
//! let gradient = |x: &[Array]| -> Result<Vec<Array>> { Ok(grad::value_and_grad(|x| Ok(x[0].exp().sum_all()))(x)?.1) };
//! let (x, v) = ([Array::new([0.0, 1.0], &[2])], [Array::new([3.0, 1.0], &[2])]);
//! let (_, products) = grad::jvp(gradient, &x, &v)?;
//! # let mut runner = Runner::new(Arc::new(CpuBackend::new(CpuOptions::default())?))?;
//! let found = runner.read(&products[0])?;
//! assert!((found[0] - 3.0).abs() < 1e-5 && (found[1] - std::f32::consts::E).abs() < 1e-5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod custom;

pub use custom::{checkpoint, custom_vjp, stop_gradient};

use std::collections::{BTreeSet, HashMap};

use brasa_graph::ValueId;
use brasa_graph::derivative::{self, Wrt};

use crate::array::Role;
use crate::lower::{Lowered, Purpose, lift, lower};
use crate::{Array, ArrayError, Result};
use custom::{custom_calls, depends_on};

/// The results of `function` of `primals`, and the gradients: of each primal, `Jᵀ·w`, where `w` are the `cotangents`, one for each result.
///
/// A primal that no result depends on has a gradient of zeros.
///
/// # Errors
///
/// The function's own error; mistakes that arrays note; cotangents of other number or shape than the results;
/// [`ArrayError::Graph`] for an operation without a derivative.
pub fn vjp(
    function: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
    primals: &[Array],
    cotangents: &[Array],
) -> Result<(Vec<Array>, Vec<Array>)> {
    let arguments = arguments(primals)?;
    let results = function(&arguments)?;
    check_shapes("cotangents", cotangents, &results)?;
    let gradients = pull_back(&results, cotangents, &arguments)?;
    Ok((results, gradients))
}

/// Computes the results of `function` at `primals`, and their change along a direction: `J·v` for each result, where `v` are the
/// `tangents`, one for each primal.
///
/// # Errors
///
/// The errors of [`vjp`], of tangents instead of cotangents; [`ArrayError::Derivative`] for a function with [a derivative of its
/// own](custom_vjp), which has no forward mode.
pub fn jvp(
    function: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
    primals: &[Array],
    tangents: &[Array],
) -> Result<(Vec<Array>, Vec<Array>)> {
    let arguments = arguments(primals)?;
    check_shapes("tangents", tangents, primals)?;
    let results = function(&arguments)?;
    if custom_calls(&results, &arguments).iter().any(|call| depends_on(call, &arguments)) {
        let what = "a function with a gradient of its own has no forward mode";
        return Err(ArrayError::Derivative { what: what.into() });
    }
    let lowered = lower(&results, &arguments, Purpose::Derivative)?;
    let (ids, directions): (Vec<ValueId>, Vec<&Array>) =
        arguments.iter().zip(tangents).filter_map(|(of, t)| Some((*lowered.ids.get(&of.key())?, t))).unzip();
    let wrt = Wrt::new(ids).stopping_at(lowered.stopped.iter().copied());
    let computed = derivative::jvp(&lowered.graph, &wrt)?;
    let mut known = lowered.arrays;
    known.extend(computed.directions.into_iter().zip(directions.into_iter().cloned()));
    let wanted: Vec<ValueId> = computed.tangents.iter().copied().flatten().collect();
    let mut lifted = lift(&computed.graph, known, &wanted)?.into_iter();
    let changes = computed.tangents.iter().zip(&results).map(|(tangent, result)| {
        tangent.and_then(|_| lifted.next()).unwrap_or_else(|| Array::zeros(result.shape()))
    });
    let changes = changes.collect();
    Ok((results, changes))
}

/// The function that also computes the gradient of its result, `[1]`, with respect to every argument.
///
/// An array that the closure captures, and that is no argument, is a constant.
///
/// # Errors
///
/// The function that is returned fails as [`vjp`] does, and for a result of another shape than `[1]`.
pub fn value_and_grad(
    function: impl Fn(&[Array]) -> Result<Array>,
) -> impl Fn(&[Array]) -> Result<(Array, Vec<Array>)> {
    move |primals| {
        let one = [Array::scalar(1.0)];
        let (mut results, gradients) = vjp(|arguments| Ok(vec![function(arguments)?]), primals, &one)?;
        Ok((results.remove(0), gradients))
    }
}

/// Arrays that stand for the arguments of a function.
fn arguments(primals: &[Array]) -> Result<Vec<Array>> {
    primals.iter().map(|primal| primal.check().map(|()| primal.same(Role::Argument))).collect()
}

fn check_shapes(what: &'static str, given: &[Array], of: &[Array]) -> Result<()> {
    for array in given.iter().chain(of) {
        array.check()?;
    }
    let shapes = |arrays: &[Array]| arrays.iter().map(|array| array.shape().to_vec()).collect::<Vec<_>>();
    let (found, expected) = (shapes(given), shapes(of));
    if found == expected {
        return Ok(());
    }
    Err(ArrayError::Derivative { what: format!("{what} of shapes {found:?}, expected {expected:?}") })
}

/// Sums of contributions to cotangents, by array.
#[derive(Default)]
struct Sums(HashMap<usize, Array>);

impl Sums {
    fn add(&mut self, of: &[Array], found: Vec<Option<Array>>) {
        for (array, term) in of.iter().zip(found) {
            let Some(term) = term else { continue };
            let sum = self.0.get(&array.key()).map(|sum| sum + &term);
            self.0.insert(array.key(), sum.unwrap_or(term));
        }
    }

    fn of(&self, array: &Array) -> Option<&Array> {
        self.0.get(&array.key())
    }
}

/// The gradients of `arguments`.
///
/// Functions with gradients of their own end the gradients of graphs; each then passes on what reached its results, the last one
/// first.
fn pull_back(results: &[Array], cotangents: &[Array], arguments: &[Array]) -> Result<Vec<Array>> {
    let calls = custom_calls(results, arguments);
    let of_calls = calls.iter().flat_map(|call| call.results());
    let wrt: Vec<Array> = arguments.iter().cloned().chain(of_calls).collect();
    let mut sums = Sums::default();
    sums.add(&wrt, contributions(results, cotangents, &wrt, arguments)?);
    for call in calls.iter().rev() {
        let results = call.results();
        if results.iter().all(|result| sums.of(result).is_none()) {
            continue;
        }
        let reached = results
            .iter()
            .map(|result| sums.of(result).cloned().unwrap_or_else(|| Array::zeros(result.shape())));
        let passed = call.pass(&reached.collect::<Vec<_>>())?;
        check_shapes("gradients of a custom function", &passed, call.inputs())?;
        sums.add(&wrt, contributions(call.inputs(), &passed, &wrt, arguments)?);
    }
    let gradient =
        |argument: &Array| sums.of(argument).cloned().unwrap_or_else(|| Array::zeros(argument.shape()));
    Ok(arguments.iter().map(gradient).collect())
}

/// The terms that `results` add to the cotangents of the arrays `wrt`; `None` for an array that no result depends on.
fn contributions(
    results: &[Array],
    cotangents: &[Array],
    wrt: &[Array],
    arguments: &[Array],
) -> Result<Vec<Option<Array>>> {
    let Lowered { graph, ids, arrays: mut known, stopped, recomputed, .. } =
        lower(results, arguments, Purpose::Derivative)?;
    let mut seen = BTreeSet::new();
    let of_wrt = wrt.iter().map(|array| ids.get(&array.key()).copied().filter(|&id| seen.insert(id)));
    let of_wrt: Vec<Option<ValueId>> = of_wrt.collect();
    let values = of_wrt.iter().copied().flatten();
    let varying = Wrt::new(values).stopping_at(stopped).recomputing(recomputed);
    let computed = derivative::vjp(&graph, &varying)?;
    for (cotangent, array) in computed.cotangents.iter().zip(cotangents) {
        known.extend(cotangent.map(|id| (id, array.clone())));
    }
    let wanted: Vec<ValueId> = computed.gradients.iter().copied().flatten().collect();
    let mut lifted = lift(&computed.graph, known, &wanted)?.into_iter();
    let mut gradients = computed.gradients.iter();
    Ok(of_wrt
        .iter()
        .map(|id| id.and_then(|_| gradients.next()).and_then(|found| found.and_then(|_| lifted.next())))
        .collect())
}
