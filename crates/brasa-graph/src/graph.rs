//! A graph: weights, caches, and nodes in the order they run.

use std::ops::Range;
use std::sync::Arc;

use crate::op::{MemoryAccess, SequenceMemory};
use crate::weight::cache_groups;
use crate::{
    CacheGroup, CacheId, CacheSpec, Given, GraphError, GroupId, Input, MemoryId, Op, StateLayout, Value,
    ValueId, ValueKind, Weight, WeightId,
};

/// Number of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One operation applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Operands, in the operation's order.
    pub inputs: Vec<ValueId>,
    /// Results, in the operation's order; empty for a cache write.
    pub outputs: Vec<ValueId>,
}

/// A model's computation for one step.
///
/// Nodes are stored in a valid order: every operand is made before it is used, and a cache is written before
/// it is read. Made by a [`Builder`](crate::Builder), which checks every shape; never changed afterwards.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) weights: Vec<Arc<Weight>>,
    pub(crate) caches: Vec<CacheSpec>,
    /// The caches that are memories.
    pub(crate) memories: Vec<MemoryId>,
    /// Number of f32 elements of each recurrent state, in the order of their ids.
    pub(crate) states: Vec<usize>,
    /// The inputs that the graph declares.
    pub(crate) givens: Vec<Given>,
    pub(crate) outputs: Vec<ValueId>,
}

/// A value as a part of the rows of another value: row *r* begins at element `r · row_stride + elements.start` of `root`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The value that owns the memory; the value itself if it is not a view.
    pub root: ValueId,
    /// Elements of each of the root's rows.
    pub elements: Range<usize>,
    /// Elements from one row of the root to the next.
    pub row_stride: usize,
}

impl Graph {
    /// All nodes, in the order they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The value that `id` names.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// All values, in order of their ids.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The weight that `id` names. Graphs that hold the same [`Arc`] share its upload.
    pub fn weight(&self, id: WeightId) -> &Arc<Weight> {
        &self.weights[id.0 as usize]
    }

    /// All weights, in order of their ids.
    pub fn weights(&self) -> &[Arc<Weight>] {
        &self.weights
    }

    /// The inputs that the graph declares, in order of their ids. A step brings them all.
    pub fn givens(&self) -> &[Given] {
        &self.givens
    }

    /// The geometry of cache `id`.
    pub fn cache(&self, id: CacheId) -> CacheSpec {
        self.caches[id.0 as usize]
    }

    /// Caches and memories, grouped by kind, geometry and window, in order of first appearance.
    pub fn cache_groups(&self) -> Vec<CacheGroup> {
        cache_groups(&self.caches, &self.memories)
    }

    /// Place of cache `id`: its group, and its number among the caches of the group.
    pub fn cache_place(&self, id: CacheId) -> (GroupId, usize) {
        for (group, caches) in self.cache_groups().iter().enumerate() {
            if let Some(place) = caches.caches.iter().position(|&cache| cache == id) {
                return (GroupId(group as u32), place);
            }
        }
        unreachable!("{id:?} is not a cache of this graph, which has {}", self.caches.len())
    }

    /// Place of memory `id`: its group, and its number among the memories of the group.
    pub fn memory_place(&self, id: MemoryId) -> (GroupId, usize) {
        self.cache_place(id.0)
    }

    /// The geometry of memory `id`.
    pub fn memory(&self, id: MemoryId) -> CacheSpec {
        self.cache(id.0)
    }

    /// The layout of the graph's recurrent states within a state page.
    pub fn state_layout(&self) -> StateLayout {
        StateLayout::new(&self.states)
    }

    /// The value that holds the elements of `id`, and their place in it. Views are followed to the value that owns the memory.
    pub fn view(&self, id: ValueId) -> View {
        let row_elements = |id| self.value(id).shape.row_elements().unwrap_or(1);
        let (mut root, mut start) = (id, 0);
        while let ValueKind::Temporary(node) = self.value(root).kind {
            let node = &self.nodes[node.0 as usize];
            match &node.op {
                Op::Slice(slice) => start += slice.start,
                Op::Reshape(_) => {}
                _ => break,
            }
            root = node.inputs[0];
        }
        View { root, elements: start..start + row_elements(id), row_stride: row_elements(root) }
    }

    /// The node that makes a value; `None` for inputs and weights.
    pub fn producer(&self, id: ValueId) -> Option<NodeId> {
        match self.value(id).kind {
            ValueKind::Temporary(node) => Some(node),
            _ => None,
        }
    }

    /// The node that `id` names.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node with a result that a step may bring in its place: the first embedding of the token ids in a table of weights.
    pub fn token_embedding(&self) -> Option<NodeId> {
        let is_it = |node: &Node| match (&node.op, &node.inputs[..]) {
            (Op::Embed(_), &[ids, table]) => {
                self.value(ids).kind == ValueKind::Input(Input::TokenIds)
                    && matches!(self.value(table).kind, ValueKind::Weight(_))
            }
            _ => false,
        };
        self.nodes.iter().position(is_it).map(|node| NodeId(node as u32))
    }

    /// Values that a program returns: for a language model the logits, `[Outs, vocab_size]`.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The graph with `outputs`, which are values of the graph, in place of its own outputs.
    ///
    /// # Panics
    ///
    /// If a value is of another graph, or was removed.
    #[must_use]
    pub fn returning(mut self, outputs: &[ValueId]) -> Self {
        for output in outputs {
            assert!((output.0 as usize) < self.values.len(), "{output} of {} values", self.values.len());
            assert!(self.value(*output).kind != ValueKind::Removed, "{output} was removed");
        }
        self.outputs = outputs.to_vec();
        self
    }

    pub(crate) fn infer(&self, op: &Op, inputs: &[ValueId]) -> Result<Vec<crate::op::Type>, GraphError> {
        let operands: Vec<&Value> = inputs.iter().map(|&id| self.value(id)).collect();
        let refuse = |what| GraphError::Operands {
            op: op.name(),
            what,
            operands: operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        if let Some(id) = inputs.iter().find(|&&id| self.value(id).kind == ValueKind::Removed) {
            return Err(refuse(format!("no node before it makes {id}")));
        }
        let types = op.infer(&operands, &self.caches).map_err(refuse)?;
        self.check_state(op, &operands).map_err(refuse)?;
        Ok(types)
    }

    /// Checks that the recurrent state that `op` advances, if any, exists, has the right size and is advanced by no node yet.
    fn check_state(&self, op: &Op, operands: &[&Value]) -> Result<(), String> {
        let Some(MemoryAccess { memory: SequenceMemory::State(id), .. }) = op.memory_access() else {
            return Ok(());
        };
        let declared = self.states.get(id.0 as usize);
        let declared = *declared.ok_or_else(|| format!("no state {} among {}", id.0, self.states.len()))?;
        if op.state_elements(operands) != Some(declared) {
            let needed = op.state_elements(operands).unwrap_or(usize::MAX);
            return Err(format!("state {} has {declared} elements, expected {needed}", id.0));
        }
        if self.nodes.iter().any(|node| {
            node.op.memory_access().is_some_and(|access| access.memory == SequenceMemory::State(id))
        }) {
            return Err(format!("state {} is advanced by a node before it", id.0));
        }
        Ok(())
    }
}
