//! From arrays to a graph, and back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use brasa_formats::Tensor;
use brasa_graph::op::Unary;
use brasa_graph::{Builder, Graph, ValueId, ValueKind, Weight, WeightPart};

use crate::array::{Applied, Held, Role, Source, shape_of};
use crate::{Array, Result};

/// The way in which roles are lowered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For computing: an array with a role is replaced by the array whose elements it has.
    Values,
    /// For differentiating: arguments become weights without values; constants, and results with derivatives of their own, end
    /// derivatives.
    Derivative,
}

/// Arrays, lowered to a graph.
pub(crate) struct Lowered {
    pub graph: Graph,
    /// The array of each weight, in order, and the array's values if they are needed.
    pub leaves: Vec<(Array, Option<Arc<Held>>)>,
    /// The graph's value for each array.
    pub ids: HashMap<usize, ValueId>,
    /// The array for each value of the graph.
    pub arrays: BTreeMap<ValueId, Array>,
    /// Values through which no derivative passes.
    pub stopped: Vec<ValueId>,
    /// Values that a gradient computes again.
    pub recomputed: Vec<ValueId>,
}

/// A step of the walk through an expression.
enum Visit {
    /// Visit the array's operands first.
    Enter(Array),
    /// The array's operands have their values in the graph.
    Leave(Array),
}

struct Lowering {
    builder: Builder,
    purpose: Purpose,
    lowered: Lowered,
    /// Arguments that become weights of the graph.
    arguments: BTreeSet<usize>,
    /// The results of each operation.
    applied: HashMap<*const Applied, Vec<ValueId>>,
}

/// Lowers `outputs` to a graph that returns them, each as a separate value.
///
/// # Errors
///
/// The first mistake that an array on the way notes; errors of the graph.
pub(crate) fn lower(outputs: &[Array], arguments: &[Array], purpose: Purpose) -> Result<Lowered> {
    let lowered = Lowered {
        graph: Builder::new().finish(&[])?,
        leaves: Vec::new(),
        ids: HashMap::new(),
        arrays: BTreeMap::new(),
        stopped: Vec::new(),
        recomputed: Vec::new(),
    };
    let arguments = arguments.iter().map(Array::key).collect();
    let mut lowering =
        Lowering { builder: Builder::new(), purpose, lowered, arguments, applied: HashMap::new() };
    for output in outputs {
        lowering.visit(output)?;
    }
    let mut returned: Vec<ValueId> = Vec::new();
    for output in outputs {
        let mut id = lowering.lowered.ids[&output.key()];
        let is_weight =
            lowering.lowered.leaves.iter().any(|(leaf, _)| lowering.lowered.ids[&leaf.key()] == id);
        if is_weight || returned.contains(&id) {
            id = lowering.again(id, output.shape());
        }
        returned.push(id);
    }
    lowering.lowered.graph = lowering.builder.finish(&returned)?;
    Ok(lowering.lowered)
}

impl Lowering {
    fn visit(&mut self, output: &Array) -> Result<()> {
        // A stack of its own, since expressions may be longer than a thread's stack is deep.
        let mut stack = vec![Visit::Enter(output.clone())];
        while let Some(visit) = stack.pop() {
            match visit {
                Visit::Enter(array) if self.lowered.ids.contains_key(&array.key()) => {}
                Visit::Enter(array) => {
                    let source = array.source().clone();
                    let inputs = match &source {
                        Source::Wrong(error) => return Err(error.clone()),
                        Source::Same(..) if self.arguments.contains(&array.key()) => Vec::new(),
                        Source::Values(_) => Vec::new(),
                        Source::Same(of, _) => vec![of.clone()],
                        Source::Result(applied, _) => applied.inputs.clone(),
                    };
                    stack.push(Visit::Leave(array));
                    stack.extend(inputs.into_iter().map(Visit::Enter));
                }
                Visit::Leave(array) if self.lowered.ids.contains_key(&array.key()) => {}
                Visit::Leave(array) => self.leave(&array)?,
            }
        }
        Ok(())
    }

    /// Lowers an array whose operands are lowered.
    fn leave(&mut self, array: &Array) -> Result<()> {
        let source = array.source().clone();
        let id = match source {
            Source::Wrong(error) => return Err(error),
            Source::Same(..) if self.arguments.contains(&array.key()) => self.weight(array, None),
            Source::Values(held) => self.weight(array, Some(held)),
            Source::Same(of, role) => {
                let id = self.lowered.ids[&of.key()];
                let ends = matches!(role, Role::Stopped | Role::Custom(..));
                if ends && self.purpose == Purpose::Derivative {
                    let id = self.again(id, array.shape());
                    self.lowered.stopped.push(id);
                    id
                } else {
                    id
                }
            }
            Source::Result(applied, output) => {
                let ids = &self.lowered.ids;
                let inputs: Vec<ValueId> = applied.inputs.iter().map(|input| ids[&input.key()]).collect();
                let results = self.applied.entry(Arc::as_ptr(&applied));
                let results = results.or_insert_with(|| self.builder.apply(applied.op.clone(), &inputs));
                let id = results[output];
                if array.0.recomputed.load(Ordering::Relaxed) {
                    self.lowered.recomputed.push(id);
                }
                id
            }
        };
        self.builder.check()?;
        self.lowered.ids.insert(array.key(), id);
        self.lowered.arrays.entry(id).or_insert_with(|| array.clone());
        Ok(())
    }

    /// Adds a value with the elements of `id` in another shape.
    fn again(&mut self, id: ValueId, shape: &[usize]) -> ValueId {
        match self.purpose {
            // What programs return has a place of its own.
            Purpose::Values => self.builder.unary(id, Unary::Scale(1.0)),
            // Views may be differentiated as often as one likes.
            Purpose::Derivative => self.builder.reshape(id, shape.get(1..).unwrap_or(&[])),
        }
    }

    fn weight(&mut self, array: &Array, held: Option<Arc<Held>>) -> ValueId {
        let name = format!("array.{}", self.lowered.leaves.len());
        let zeros;
        let values = match &held {
            Some(held) if self.purpose == Purpose::Values => &held.values,
            // Derivatives do not depend on values.
            _ => {
                zeros = vec![0.0; array.size()];
                &zeros
            }
        };
        let tensor = Tensor::of_floats(name.as_str(), array.shape().to_vec(), values);
        let weight = Weight::new(name, array.shape(), vec![WeightPart::whole(tensor)]);
        self.lowered.leaves.push((array.clone(), held));
        self.builder.weight(weight)
    }
}

/// The arrays of values `wanted` of `graph`, which continues the graph that `known` values are of.
///
/// Weights that are not known become arrays of their values.
///
/// # Errors
///
/// Errors of the graph.
pub(crate) fn lift(
    graph: &Graph,
    mut known: BTreeMap<ValueId, Array>,
    wanted: &[ValueId],
) -> Result<Vec<Array>> {
    for (number, value) in graph.values().iter().enumerate() {
        let id = ValueId(number as u32);
        if let ValueKind::Weight(weight) = value.kind
            && !known.contains_key(&id)
        {
            let weight = graph.weight(weight);
            known.insert(id, Array::new(weight.decode("arrays")?, &weight.shape));
        }
    }
    for node in graph.nodes() {
        if node.outputs.iter().all(|output| known.contains_key(output)) {
            continue;
        }
        let inputs = node.inputs.iter().map(|input| known[input].clone()).collect();
        let applied = Arc::new(Applied { op: node.op.clone(), inputs });
        for (number, &output) in node.outputs.iter().enumerate() {
            let shape = graph.value(output).shape.resolve(&brasa_graph::Sizes::default());
            debug_assert_eq!(shape_of(&shape), graph.value(output).shape, "{output}");
            let source = Source::Result(Arc::clone(&applied), number);
            known.entry(output).or_insert_with(|| Array::of(shape, source));
        }
    }
    Ok(wanted.iter().map(|id| known[id].clone()).collect())
}
