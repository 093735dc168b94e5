//! Functions that decide their own derivative: constants, recomputation, gradients given by the caller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::array::{CustomCall, GradientRule, Role, Source};
use crate::{Array, Result};

/// Makes the array a constant: no derivative passes through it.
pub fn stop_gradient(array: &Array) -> Array {
    match array.check() {
        Ok(()) => array.same(Role::Stopped),
        Err(error) => Array::wrong(error),
    }
}

/// Makes `function` recompute its inner results for gradients instead of keeping them: less memory for more time (Chen et al. 2016,
/// arXiv:1604.06174). Values and gradients have the same bits.
///
/// All values between the arguments and the results are computed again.
///
/// # Errors
///
/// The returned function fails as `function` does.
pub fn checkpoint(
    function: impl Fn(&[Array]) -> Result<Vec<Array>>,
) -> impl Fn(&[Array]) -> Result<Vec<Array>> {
    move |inputs| {
        let results = function(inputs)?;
        let ends: BTreeSet<usize> = inputs.iter().chain(&results).map(Array::key).collect();
        let mut seen = BTreeSet::new();
        let mut rest = results.clone();
        while let Some(array) = rest.pop() {
            let source = array.source().clone();
            if !ends.contains(&array.key()) {
                array.0.recomputed.store(true, Ordering::Relaxed);
            }
            let operands = match source {
                Source::Result(applied, _) => applied.inputs.clone(),
                Source::Same(of, _) => vec![of],
                Source::Values(_) | Source::Wrong(_) => Vec::new(),
            };
            // What was there before the function is kept.
            let new = operands.into_iter().filter(|operand| {
                inputs.iter().all(|input| input.key() != operand.key()) && seen.insert(operand.key())
            });
            rest.extend(new.collect::<Vec<_>>());
        }
        Ok(results)
    }
}

/// The function with a gradient of its own: `rule` gets the arguments, the results, and a cotangent of each result, and returns a gradient of
/// each argument.
///
/// # Errors
///
/// The returned function fails as `function` does. An error of the rule is returned by the [`vjp`](super::vjp) that needs the
/// rule.
pub fn custom_vjp(
    function: impl Fn(&[Array]) -> Result<Vec<Array>>,
    rule: impl Fn(&[Array], &[Array], &[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
) -> impl Fn(&[Array]) -> Result<Vec<Array>> {
    let rule: Arc<GradientRule> = Arc::new(rule);
    move |inputs| {
        let computed = function(inputs)?;
        for array in inputs.iter().chain(&computed) {
            array.check()?;
        }
        let call = CustomCall::new(inputs.to_vec(), computed, Arc::clone(&rule));
        Ok(call.hand_out())
    }
}

/// The calls that `results` are computed from, each after the calls that its arguments are computed from.
pub(super) fn custom_calls(results: &[Array], arguments: &[Array]) -> Vec<Arc<CustomCall>> {
    let ends: BTreeSet<usize> = arguments.iter().map(Array::key).collect();
    let mut calls: Vec<Arc<CustomCall>> = Vec::new();
    let (mut done, mut stack) = (BTreeSet::new(), Vec::new());
    stack.extend(results.iter().map(|array| (array.clone(), false)));
    while let Some((array, leaves)) = stack.pop() {
        let source = array.source().clone();
        if leaves {
            if let Source::Same(_, Role::Custom(call)) = source
                && calls.iter().all(|known| !Arc::ptr_eq(known, &call))
            {
                calls.push(call);
            }
            continue;
        }
        if ends.contains(&array.key()) || !done.insert(array.key()) {
            continue;
        }
        stack.push((array, true));
        stack.extend(operands(&source).into_iter().map(|operand| (operand, false)));
    }
    calls
}

/// True if an argument of the call depends on one of `arguments`.
pub(super) fn depends_on(call: &CustomCall, arguments: &[Array]) -> bool {
    let wanted: BTreeSet<usize> = arguments.iter().map(Array::key).collect();
    walk(call.inputs(), &wanted, &mut |array| wanted.contains(&array.key()))
}

/// The arrays that a derivative with respect to the arguments reaches from an array in one step.
fn operands(source: &Source) -> Vec<Array> {
    match source {
        Source::Result(applied, _) => applied.inputs.clone(),
        // The gradient passes from the results to the arguments, whatever lies between.
        Source::Same(_, Role::Custom(call)) => call.inputs().to_vec(),
        Source::Same(_, Role::Stopped) | Source::Values(_) | Source::Wrong(_) => Vec::new(),
        Source::Same(of, Role::Argument) => vec![of.clone()],
    }
}

/// True if `found` is true of an array that `from` are computed from. The search stops at arrays of `ends`.
fn walk(from: &[Array], ends: &BTreeSet<usize>, found: &mut dyn FnMut(&Array) -> bool) -> bool {
    let (mut done, mut rest) = (BTreeSet::new(), from.to_vec());
    while let Some(array) = rest.pop() {
        if !done.insert(array.key()) {
            continue;
        }
        if found(&array) {
            return true;
        }
        if !ends.contains(&array.key()) {
            let source = array.source().clone();
            rest.extend(operands(&source));
        }
    }
    false
}
