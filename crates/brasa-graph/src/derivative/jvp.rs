//! Forward mode: derivatives along one direction.

use super::rules::{Constants, Rules};
use super::{Wrt, bring, refused};
use crate::{Builder, Change, Graph, GraphError, Node, ValueId, rewrite};

/// A graph that also computes the change of its outputs along one direction, as [`jvp`] makes it.
#[derive(Clone, Debug)]
pub struct Jvp {
    /// The graph with the differentiated graph's outputs, followed by the `tangents` that are not zero, in order.
    pub graph: Graph,
    /// For each varying value, the value that brings its direction: a weight or an input of the same shape.
    pub directions: Vec<ValueId>,
    /// Derivative of each output of the differentiated graph; `None` if it depends on no varying value.
    pub tangents: Vec<Option<ValueId>>,
}

/// A graph that also computes the change of its outputs along a direction: `J·v`, where `v` holds a tangent of each value of
/// `wrt`. A direction that is a weight holds zeros until it is written.
///
/// Values of `graph` keep their ids. [`Wrt::recomputed`] changes nothing here: tangents are computed beside their values.
///
/// # Errors
///
/// [`GraphError::Derivative`] if a value of `wrt` cannot vary, or if an operation on the way has no derivative.
pub fn jvp(graph: &Graph, wrt: &Wrt) -> Result<Jvp, GraphError> {
    let varying = wrt.varying(graph)?;
    let mut builder = Builder::from(graph.clone());
    let mut directions = Vec::with_capacity(wrt.values.len());
    let mut tangents: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for &id in &wrt.values {
        let name = format!("{}.tangent", crate::print::value_name(graph, id));
        let direction = bring(&mut builder, name, id, 0.0)?;
        directions.push(direction);
        if graph.producer(id).is_none() {
            tangents[id.0 as usize] = Some(direction);
        }
    }
    let extended = builder.finish(graph.outputs())?;

    let (mut constants, mut failed) = (Constants::default(), None);
    let computed = rewrite(&extended, |builder, node, operands| {
        let reached = |id: &ValueId| varying[id.0 as usize];
        let passes = node.outputs.is_empty() || node.outputs.iter().any(reached);
        let depends = passes && node.inputs.iter().any(reached);
        let disturbed = node.outputs.iter().any(|output| wrt.values.contains(output));
        if failed.is_some() || !(depends || disturbed) {
            return Change::Keep;
        }
        let outputs = builder.apply(node.op.clone(), operands);
        let node_now = Node { op: node.op.clone(), inputs: operands.to_vec(), outputs: outputs.clone() };
        let of_operands: Vec<Option<ValueId>> =
            node.inputs.iter().map(|input| tangents[input.0 as usize]).collect();
        let mut rules = Rules::new(builder, &mut constants);
        let computed = if depends {
            node.op.jvp(&mut rules, &node_now, &of_operands)
        } else {
            Ok(vec![None; outputs.len()])
        };
        let computed = computed.and_then(|computed| {
            for (&output, tangent) in node.outputs.iter().zip(computed) {
                let passes = !wrt.stopped.contains(&output);
                let place = wrt.values.iter().position(|&id| id == output);
                let disturbance = place.map(|place| directions[place]);
                tangents[output.0 as usize] = rules.total(tangent.filter(|_| passes), disturbance)?;
            }
            Ok(())
        });
        failed = computed.err().map(|what| refused(node.op.name().into(), what));
        Change::Replace(outputs)
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let computed = computed?;
    let tangents: Vec<Option<ValueId>> =
        graph.outputs().iter().map(|output| tangents[output.0 as usize]).collect();
    let outputs: Vec<ValueId> =
        graph.outputs().iter().copied().chain(tangents.iter().copied().flatten()).collect();
    Ok(Jvp { graph: computed.returning(&outputs), directions, tangents })
}
