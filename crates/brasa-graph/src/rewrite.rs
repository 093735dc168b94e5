//! Makes one graph from another. All passes are built on this.
//!
//! Nodes are visited in the order they run. For each node a closure decides whether it stays, is replaced or is removed, and may
//! build nodes before it. Ids that a caller holds stay valid:
//!
//! - Weights, caches and memories keep their ids; new ones are appended.
//! - A value that is kept, or replaced by one that the closure has just built, keeps its id. So the nodes after a replaced node
//!   are the nodes of the old graph, unchanged.
//! - A value that is replaced by an older one, or removed, leaves its id as [`ValueKind::Removed`]. Readers of a replaced value
//!   read the older value.
//!
//! Nodes get new numbers.
//!
//! ```
//! use brasa_graph::op::{Op, Unary};
//! use brasa_graph::{Builder, Change, Input, print, rewrite, testing};
//!
//! let mut g = Builder::new();
//! let ids = g.input(Input::TokenIds);
//! let table = g.weight(Ok(testing::weight("embed", &[2, 2], &[0.0, 0.1, 1.0, 1.1])));
//! let h = g.embed(ids, table);
//! let y = g.unary(h, Unary::Silu);
//! let graph = g.finish(&[y])?;
//!
//! // SiLU, spelled out.
//! let spelled = rewrite(&graph, |builder, node, operands| match node.op {
//!     Op::Unary(Unary::Silu) => {
//!         let gate = builder.unary(operands[0], Unary::Sigmoid);
//!         Change::Replace(vec![builder.mul(operands[0], gate)])
//!     }
//!     _ => Change::Keep,
//! })?;
//! assert_eq!(spelled.outputs(), [y]);
//! assert!(print::graph(&spelled).contains("%3 f32[rows, 2] = mul(%2, %4)"));
//! # Ok::<(), brasa_graph::GraphError>(())
//! ```

use crate::{Builder, Graph, GraphError, Node, NodeId, Value, ValueId, ValueKind};

/// A decision on a node in a [`rewrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node stays.
    Keep,
    /// Uses these values in place of the node's results, one for each, with the same element type and shape. The values may be
    /// built in the closure or be older ones.
    Replace(Vec<ValueId>),
    /// Removes the node without a replacement. No later node and no output of the graph may use its results.
    Remove,
}

/// Makes a graph from `graph`, as `change` says for each node. See the [module](self) for the ids that stay.
///
/// `change` is called with a builder that holds everything made so far, the old node, and the node's operands in the new graph.
/// Nodes that the closure builds run before the nodes that follow. A returned value that was built in this call takes over the id
/// of the result that it replaces, so the closure must not keep its old id.
///
/// # Errors
///
/// [`GraphError::Operands`] if the closure builds an operation on operands that do not fit, or on a value that is not made yet or
/// was removed. [`GraphError::Rewrite`] if a replacement has another type than the result that it replaces, or if a removed
/// result is still needed.
pub fn rewrite(
    graph: &Graph,
    mut change: impl FnMut(&mut Builder, &Node, &[ValueId]) -> Change,
) -> Result<Graph, GraphError> {
    let mut rewriting = Rewriting::new(graph);
    for node in graph.nodes() {
        let operands: Vec<ValueId> = node.inputs.iter().map(|&input| rewriting.current(input)).collect();
        let first_built = NodeId(rewriting.builder.graph().nodes.len() as u32);
        let changed = change(&mut rewriting.builder, node, &operands);
        rewriting.builder.check()?;
        match changed {
            Change::Keep => rewriting.keep(node, operands)?,
            Change::Replace(values) => rewriting.replace(node, &values, first_built)?,
            Change::Remove => {}
        }
    }
    let outputs: Vec<ValueId> = graph.outputs().iter().map(|&output| rewriting.current(output)).collect();
    for &output in &outputs {
        rewriting.require(output, || "as an output of the graph".into())?;
    }
    rewriting.builder.finish(&outputs)
}

/// Makes a graph by appending the nodes that `build` adds to `graph`; `build` returns the new graph's outputs.
///
/// All values of `graph` keep their ids.
///
/// # Errors
///
/// Errors of `build`, and the first mistake that it makes with the builder.
pub fn extend(
    graph: &Graph,
    build: impl FnOnce(&mut Builder) -> Result<Vec<ValueId>, GraphError>,
) -> Result<Graph, GraphError> {
    let mut builder = Builder::from(graph.clone());
    let outputs = build(&mut builder)?;
    builder.finish(&outputs)
}

/// A graph that is being made from another.
struct Rewriting {
    /// The nodes made so far. Values of the old graph that no node has made yet are [`ValueKind::Removed`].
    builder: Builder,
    /// For each value of the old graph that was replaced by an older value, that older value.
    redirected: Vec<Option<ValueId>>,
}

impl Rewriting {
    fn new(graph: &Graph) -> Self {
        let unmade = |value: &Value| match value.kind {
            ValueKind::Temporary(_) => Value { kind: ValueKind::Removed, ..value.clone() },
            _ => value.clone(),
        };
        let values = graph.values.iter().map(unmade).collect();
        let start = Graph { values, nodes: Vec::with_capacity(graph.nodes.len()), ..graph.clone() };
        Self { builder: Builder::from(start), redirected: vec![None; graph.values.len()] }
    }

    /// The value of the new graph that replaces a value of the old graph.
    fn current(&self, value: ValueId) -> ValueId {
        self.redirected[value.0 as usize].unwrap_or(value)
    }

    /// Fails if no node makes `value`; `needed` names the user of the value, for the error.
    fn require(&self, value: ValueId, needed: impl FnOnce() -> String) -> Result<(), GraphError> {
        let found = self.builder.graph().values.get(value.0 as usize);
        if found.is_some_and(|found| found.kind != ValueKind::Removed) {
            return Ok(());
        }
        Err(GraphError::Rewrite { what: format!("{value} is removed, but needed {}", needed()) })
    }

    /// Appends an old node; its results keep their ids.
    fn keep(&mut self, node: &Node, operands: Vec<ValueId>) -> Result<(), GraphError> {
        for &operand in &operands {
            self.require(operand, || format!("by {}", node.op.name()))?;
        }
        let graph = self.builder.graph_mut();
        let id = NodeId(graph.nodes.len() as u32);
        for output in &node.outputs {
            graph.values[output.0 as usize].kind = ValueKind::Temporary(id);
        }
        graph.nodes.push(Node { inputs: operands, ..node.clone() });
        Ok(())
    }

    /// Replaces the results of `node` by `values`. Nodes from `first_built` on were built for this replacement.
    fn replace(&mut self, node: &Node, values: &[ValueId], first_built: NodeId) -> Result<(), GraphError> {
        let name = node.op.name();
        if values.len() != node.outputs.len() {
            let what =
                format!("{name} is replaced by {} values, expected {}", values.len(), node.outputs.len());
            return Err(GraphError::Rewrite { what });
        }
        // Ids that results of this node have taken over.
        let mut renamed: Vec<(ValueId, ValueId)> = Vec::new();
        for (&old, &new) in node.outputs.iter().zip(values) {
            let new = renamed.iter().find(|(from, _)| *from == new).map_or(new, |&(_, to)| to);
            self.require(new, || format!("as the replacement of {name}"))?;
            let (expected, found) = (self.builder.graph().value(old), self.builder.graph().value(new));
            if (expected.dtype, &expected.shape) != (found.dtype, &found.shape) {
                let what = format!("{name} makes {old} {expected}, its replacement is {new} {found}");
                return Err(GraphError::Rewrite { what });
            }
            match found.kind {
                ValueKind::Temporary(maker) if maker >= first_built && !node.outputs.contains(&new) => {
                    self.rename(new, old, first_built);
                    renamed.push((new, old));
                }
                _ => self.redirected[old.0 as usize] = Some(new),
            }
        }
        Ok(())
    }

    /// Gives a value that was just built the id of the value that it replaces, in all nodes from `first_built` on.
    fn rename(&mut self, from: ValueId, to: ValueId, first_built: NodeId) {
        let graph = self.builder.graph_mut();
        for node in &mut graph.nodes[first_built.0 as usize..] {
            for id in node.inputs.iter_mut().chain(&mut node.outputs) {
                if *id == from {
                    *id = to;
                }
            }
        }
        graph.values[to.0 as usize].kind = graph.values[from.0 as usize].kind;
        graph.values[from.0 as usize].kind = ValueKind::Removed;
    }
}
