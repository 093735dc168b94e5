//! Derivatives of graphs: [`jvp`] along a direction, [`vjp`] by the cotangents of outputs.
//!
//! Each operation has its rules beside its reference. A rule builds operations, so a derivative is a graph like any other: it is
//! printed, planned, compiled and interpreted in the same way.
//!
//! Tangents and cotangents have the shape of their value and are `f32`. If the shape is constant (weights, and sums over all
//! rows), the tangent or cotangent is a weight. If the shape has the rows of a step, it is an [input that the graph
//! declares](crate::Given).
//!
//! Rows of a step attend to each other within their segment, so a step of several documents is differentiated without
//! padding. A model that keeps its keys in caches is first made to [attend to rows](crate::pass::attend_to_rows).
//!
//! Integers have no derivative: an operation with an integer result, such as a choice of experts, passes no derivative on.
//! Quantised weights are constants; derivatives pass through them to activations. Rows that a step brings as embeddings count as
//! if they had been looked up: their cotangent is the cotangent of the lookup's result.
//!
//! A derivative can be differentiated again. Attention has no third derivatives, and no tangent of a tangent; both are refused by
//! name. A tangent of a gradient (the product of a Hessian and a direction) is supported.
//!
//! ```
//! use brasa_graph::derivative::{Wrt, vjp};
//! use brasa_graph::{Builder, Input, print, testing};
//!
//! let mut g = Builder::new();
//! let ids = g.input(Input::TokenIds);
//! let table = g.weight(Ok(testing::weight("embed", &[3, 2], &[0.0, 0.1, 1.0, 1.1, 2.0, 2.1])));
//! let w = g.weight(Ok(testing::weight("w", &[1, 2], &[0.5, -0.5])));
//! let h = g.embed(ids, table);
//! let y = g.linear(h, w);
//! let loss = g.sum(y, 0);
//! let graph = g.finish(&[loss])?;
//!
//! let gradient = vjp(&graph, &Wrt::new([w]))?;
//! let dw = gradient.gradients[0].expect("the loss depends on w");
//! assert_eq!(gradient.graph.outputs(), [loss, dw]);
//! assert!(print::graph(&gradient.graph).contains(&format!("{dw} f32[1, 2] = linear_gradient(")));
//! # Ok::<(), brasa_graph::GraphError>(())
//! ```
//!
//! Griewank & Walther 2008, *Evaluating Derivatives*; Baydin et al. 2018, arXiv:1502.05767.

mod jvp;
mod rules;
mod vjp;

pub use jvp::{Jvp, jvp};
pub(crate) use rules::{Rule, Rules, Terms};
pub use vjp::{Vjp, vjp};

use std::collections::BTreeSet;

use crate::{Builder, DType, Dim, Graph, GraphError, ValueId, ValueKind};

use rules::stored;

/// The values to differentiate with respect to, and options of the derivative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrt {
    /// Values that vary: weights stored as floats, inputs of floats, results of operations. For a result of an operation, the
    /// derivative is with respect to a term added to it.
    pub values: Vec<ValueId>,
    /// Values through which no derivative passes: constants for the derivative.
    pub stopped: Vec<ValueId>,
    /// Results that [`vjp`] computes again for the gradient, so that they take no memory until then: checkpointing (Chen et al.
    /// 2016, arXiv:1604.06174). Recomputed results have the same bits. Rows that a step may bring as embeddings are kept.
    pub recomputed: Vec<ValueId>,
}

impl Wrt {
    /// Differentiates with respect to `values`.
    pub fn new(values: impl IntoIterator<Item = ValueId>) -> Self {
        Self { values: values.into_iter().collect(), ..Self::default() }
    }

    /// Differentiates with respect to all weights that are marked as [trainable](crate::Weight::trainable), in order of their
    /// ids.
    pub fn trainable(graph: &Graph) -> Self {
        Self::new(graph.values().iter().enumerate().filter_map(|(id, value)| match value.kind {
            ValueKind::Weight(weight) if graph.weight(weight).trainable => Some(ValueId(id as u32)),
            _ => None,
        }))
    }

    /// Makes `values` constants: no derivative passes through them.
    #[must_use]
    pub fn stopping_at(mut self, values: impl IntoIterator<Item = ValueId>) -> Self {
        self.stopped.extend(values);
        self
    }

    /// Makes gradients compute `values` a second time instead of keeping them from the first: less memory for more time.
    #[must_use]
    pub fn recomputing(mut self, values: impl IntoIterator<Item = ValueId>) -> Self {
        self.recomputed.extend(values);
        self
    }

    /// For each value of the graph, true if it depends on a varying value.
    fn varying(&self, graph: &Graph) -> Result<Vec<bool>, GraphError> {
        let mut varying = vec![false; graph.values().len()];
        let stopped: BTreeSet<ValueId> = self.stopped.iter().copied().collect();
        for &id in self.values.iter().chain(&self.stopped).chain(&self.recomputed) {
            if graph.values().get(id.0 as usize).is_none_or(|value| value.kind == ValueKind::Removed) {
                return Err(refused(id.to_string(), format!("no such value among {}", graph.values().len())));
            }
        }
        for &id in &self.values {
            check_variable(graph, id)?;
            if varying[id.0 as usize] {
                return Err(refused(crate::print::value_name(graph, id), "named twice".into()));
            }
            varying[id.0 as usize] = true;
        }
        for node in graph.nodes() {
            let depends = node.inputs.iter().any(|input| varying[input.0 as usize]);
            for output in &node.outputs {
                let passes = depends && !stopped.contains(output);
                varying[output.0 as usize] |= passes && graph.value(*output).dtype != DType::U32;
            }
        }
        Ok(varying)
    }
}

/// The results of a part of a graph, between the values `from` and `to`: all values that depend on a value of `from` and on which
/// a value of `to` depends, without `from` and `to`. [Recomputing](Wrt::recomputing) them keeps only `from` and `to` for the
/// gradient.
///
/// # Panics
///
/// If a value is of another graph.
pub fn between(graph: &Graph, from: &[ValueId], to: &[ValueId]) -> Vec<ValueId> {
    let marked = |values: &[ValueId]| {
        let mut marks = vec![false; graph.values().len()];
        for id in values {
            marks[id.0 as usize] = true;
        }
        marks
    };
    let any = |marks: &[bool], values: &[ValueId]| values.iter().any(|id| marks[id.0 as usize]);
    let (mut behind, mut before) = (marked(from), marked(to));
    for node in graph.nodes() {
        if any(&behind, &node.inputs) {
            node.outputs.iter().for_each(|id| behind[id.0 as usize] = true);
        }
    }
    for node in graph.nodes().iter().rev() {
        if any(&before, &node.outputs) {
            node.inputs.iter().for_each(|id| before[id.0 as usize] = true);
        }
    }
    let ends = [from, to].concat();
    let results = graph.nodes().iter().flat_map(|node| node.outputs.iter().copied());
    let inside = |id: &ValueId| behind[id.0 as usize] && before[id.0 as usize] && !ends.contains(id);
    results.filter(inside).collect()
}

/// Fails if a graph cannot be differentiated with respect to `id`.
fn check_variable(graph: &Graph, id: ValueId) -> Result<(), GraphError> {
    let value = graph.value(id);
    let name = crate::print::value_name(graph, id);
    if let ValueKind::Weight(weight) = value.kind {
        let formats = graph.weight(weight).parts.iter().map(crate::WeightPart::format);
        return match formats.into_iter().find(|format| !format.is_float()) {
            Some(format) => Err(refused(
                name,
                format!("stored as {format}, expected F32, F16 or BF16: quantised weights are constants"),
            )),
            None => Ok(()),
        };
    }
    if value.dtype == DType::U32 {
        return Err(refused(name, "integers, expected floats".into()));
    }
    Ok(())
}

/// The error for a derivative that does not exist or is not implemented; `of` names the operation or value.
fn refused(of: String, what: String) -> GraphError {
    GraphError::Derivative { of, what }
}

/// Declares the weight or the input that brings a tangent or cotangent in the shape of `like`. A weight holds `constant`.
fn bring(builder: &mut Builder, name: String, like: ValueId, constant: f32) -> Result<ValueId, GraphError> {
    let shape = builder.graph().value(like).shape.clone();
    let constants: Option<Vec<usize>> = shape.0.iter().map(|dim| dim.constant()).collect();
    if let Some(dims) = constants {
        let size_bytes = dims.iter().try_fold(4_usize, |product, &dim| product.checked_mul(dim));
        let mut bytes = Vec::new();
        let room = size_bytes.filter(|&size_bytes| bytes.try_reserve_exact(size_bytes).is_ok());
        let size_bytes = room.ok_or_else(|| refused(name.clone(), format!("no memory for {shape}")))?;
        bytes.extend(constant.to_le_bytes().into_iter().cycle().take(size_bytes));
        return Ok(builder.weight(Ok(stored(name, &dims, bytes))));
    }
    match (shape.outer(), shape.inner()) {
        (rows @ Dim { symbol: Some(_), .. }, Some(inner)) => {
            Ok(builder.given(name, DType::F32, rows, &inner))
        }
        _ => Err(refused(name, format!("shape {shape}, expected rows outermost"))),
    }
}
