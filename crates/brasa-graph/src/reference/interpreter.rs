//! Runs a graph node by node.

use std::sync::Arc;

use crate::device::DeviceError;
use crate::step::{GivenValues, Step};
use crate::{GivenId, Graph, Input, NodeId, Sizes, Value, ValueId, ValueKind, Weight};

use super::step_kv::StepKv;
use super::{Array, Env, Kv, Number, ReferencePool, SegmentRows};

/// A weight's elements, decoded exactly.
///
/// # Errors
///
/// Errors of [`Weight::decode`].
pub fn decode_weight(weight: &Weight) -> Result<Array, DeviceError> {
    Ok(Array::f32(weight.shape.clone(), weight.decode("reference")?))
}

/// Runs `step` through `graph` and returns all of its outputs.
///
/// `weights` are those of the graph, in order. The step must be valid.
///
/// # Errors
///
/// [`DeviceError::BadStep`] if an operation finds a number outside its table.
pub fn evaluate(
    graph: &Graph,
    weights: &[Arc<Array>],
    step: &Step,
    pool: &mut ReferencePool,
) -> Result<Vec<Array>, DeviceError> {
    let mut run = Run::new(graph, weights, step);
    let mut kv = pool.bind(graph, step);
    for node in 0..graph.nodes().len() {
        run.node(NodeId(node as u32), &mut kv)?;
    }
    Ok(graph.outputs().iter().map(|&id| run.array(id).clone()).collect())
}

/// Runs `step` through `graph` in numbers of type `T`, and returns all outputs. With [`Dual`](super::Dual) numbers the outputs
/// include derivatives.
///
/// `weights` are those of the graph, in order, as [`decode_weight`] yields them. `inputs` replace inputs of the step that bring
/// `f32`. The step must be valid; its segments are whole texts, which begin at index 0 and need no pages.
///
/// # Errors
///
/// [`DeviceError::BadStep`] if an operation finds a number outside its table, or if a graph with caches is given a
/// segment that begins later.
pub fn evaluate_in<T: Number>(
    graph: &Graph,
    weights: &[Arc<Array<T>>],
    inputs: &[(ValueId, Array<T>)],
    step: &Step,
) -> Result<Vec<Array<T>>, DeviceError> {
    if (!graph.caches.is_empty() || !graph.states.is_empty())
        && step.segments.iter().any(|segment| segment.first_index > 0)
    {
        return Err(DeviceError::BadStep { what: "a segment that begins behind index 0".into() });
    }
    let values = graph.values().iter().enumerate().map(|(id, value)| {
        let given = inputs.iter().find(|(given, _)| given.0 as usize == id);
        given.map_or_else(|| input(value, step), |(_, array)| Some(array.clone()))
    });
    let mut run = Run::with_inputs(graph, weights, step, values.collect());
    let mut kv = StepKv::new(graph);
    for node in 0..graph.nodes().len() {
        run.node(NodeId(node as u32), &mut kv)?;
    }
    Ok(graph.outputs().iter().map(|&id| run.array(id).clone()).collect())
}

/// The values of one step, as far as they have been computed.
pub(super) struct Run<'a, T> {
    graph: &'a Graph,
    weights: &'a [Arc<Array<T>>],
    step: &'a Step,
    segments: Vec<SegmentRows>,
    sizes: Sizes,
    values: Vec<Option<Array<T>>>,
    last_use: Vec<usize>,
}

impl<'a, T: Number> Run<'a, T> {
    pub(super) fn new(graph: &'a Graph, weights: &'a [Arc<Array<T>>], step: &'a Step) -> Self {
        Self::with_inputs(graph, weights, step, input_arrays(graph, step))
    }

    /// A run with given inputs: `values` holds them by value id.
    fn with_inputs(
        graph: &'a Graph,
        weights: &'a [Arc<Array<T>>],
        step: &'a Step,
        values: Vec<Option<Array<T>>>,
    ) -> Self {
        Self {
            graph,
            weights,
            step,
            segments: SegmentRows::of(step),
            sizes: Sizes::of(step),
            values,
            last_use: last_uses(graph),
        }
    }

    /// Runs one node; drops operands that no later node needs.
    pub(super) fn node(&mut self, id: NodeId, kv: &mut dyn Kv<T>) -> Result<(), DeviceError> {
        let node = &self.graph.nodes()[id.0 as usize];
        let operands: Vec<&Array<T>> = node.inputs.iter().map(|&id| self.array(id)).collect();
        let mut env = Env { sizes: self.sizes, segments: &self.segments, kv };
        let mut results = node
            .op
            .reference(&operands, &mut env)
            .map_err(|what| DeviceError::BadStep { what: format!("{}: {what}", node.op.name()) })?;
        assert_eq!(results.len(), node.outputs.len(), "results of {}", node.op.name());
        if self.graph.token_embedding() == Some(id) {
            for (segment, of) in self.segments.iter().zip(&self.step.segments) {
                if let Some(given) = &of.embeddings {
                    let given: Vec<T> = given.iter().map(|&x| T::constant(x.into())).collect();
                    results[0].put_rows(segment.rows.start, &given);
                }
            }
        }
        for (&output, result) in node.outputs.iter().zip(results) {
            let shape = self.graph.value(output).shape.resolve(&self.sizes);
            assert_eq!(result.shape, shape, "result of {}, {output}", node.op.name());
            self.values[output.0 as usize] = Some(result);
        }
        for &input in &node.inputs {
            if self.last_use[input.0 as usize] == id.0 as usize {
                self.values[input.0 as usize] = None;
            }
        }
        Ok(())
    }

    /// A value that has been computed.
    pub(super) fn array(&self, id: ValueId) -> &Array<T> {
        match self.graph.value(id).kind {
            ValueKind::Weight(weight) => &self.weights[weight.0 as usize],
            _ => self.values[id.0 as usize].as_ref().expect("graphs are in a valid order"),
        }
    }
}

/// For each value, the array that the step supplies; `None` for values that are no inputs.
fn input_arrays<T: Number>(graph: &Graph, step: &Step) -> Vec<Option<Array<T>>> {
    graph.values().iter().map(|value| input(value, step)).collect()
}

/// The numbers that a step supplies for the graph's input `value`; `None` if the value is no input.
fn input<T: Number>(value: &Value, step: &Step) -> Option<Array<T>> {
    match value.kind {
        ValueKind::Input(Input::Given(given)) => {
            Some(given_array(given, value.shape.resolve(&Sizes::of(step)), step))
        }
        ValueKind::Input(input) => Some(input_array(input, step)),
        _ => None,
    }
}

fn input_array<T: Number>(input: Input, step: &Step) -> Array<T> {
    let mut start = 0;
    let mut data = Vec::new();
    for segment in &step.segments {
        match input {
            Input::TokenIds => data.extend(&segment.tokens),
            Input::Positions => data.extend((0..segment.rows).map(|row| segment.position(row))),
            Input::OutRows => data.extend(segment.out_rows().map(|row| (start + row) as u32)),
            Input::Given(_) => unreachable!("has an array of its own"),
        }
        start += segment.rows;
    }
    Array::u32(vec![data.len()], data)
}

fn given_array<T: Number>(given: GivenId, shape: Vec<usize>, step: &Step) -> Array<T> {
    let (mut floats, mut numbers) = (Vec::new(), Vec::new());
    for segment in &step.segments {
        match &segment.given[given.0 as usize] {
            GivenValues::F32(values) => floats.extend(values.iter().map(|&x| T::constant(x.into()))),
            GivenValues::U32(values) => numbers.extend_from_slice(values),
        }
    }
    if numbers.is_empty() { Array::of(shape, floats) } else { Array::u32(shape, numbers) }
}

/// The last node that reads each value; `usize::MAX` for outputs, which outlive the run.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![usize::MAX; graph.values().len()];
    for (node, inputs) in graph.nodes().iter().map(|node| &node.inputs).enumerate() {
        for input in inputs {
            last[input.0 as usize] = node;
        }
    }
    for output in graph.outputs() {
        last[output.0 as usize] = usize::MAX;
    }
    last
}
