//! The order of work: nodes, some of them grouped into fused operations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::fuse::{Finder, Fusion, Match, Pattern};
use crate::op::{AccessKind, SequenceMemory};
use crate::{Graph, NodeId, ValueId};

/// Items to run, in order. Every node of the graph is in exactly one item.
///
/// Views are items too. They cost nothing, because a view shares its operand's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    items: Vec<Item>,
}

/// One entry of a schedule.
#[expect(clippy::large_enum_variant, reason = "a few hundred of them, walked in order")]
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// One node.
    Single(NodeId),
    /// Several nodes, run as one operation.
    Fused(Fused),
}

/// Several nodes that run as one operation. The nodes, run one after the other, are the operation's definition, its fallback and
/// its test.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// The pattern, and which node plays which part in it.
    pub fusion: Fusion,
    /// The nodes, in the graph's order.
    pub nodes: Vec<NodeId>,
    /// Values that nodes outside make, weights included, in order of first use.
    pub inputs: Vec<ValueId>,
    /// Values that nodes outside use. The other results of the nodes need no memory.
    pub outputs: Vec<ValueId>,
}

impl Schedule {
    /// Groups the nodes of `graph` by `patterns`. If two patterns match the same node, the earlier pattern gets it.
    ///
    /// Only nodes that can run one after the other are grouped, and only values that nothing outside needs
    /// disappear inside.
    pub fn new(graph: &Graph, patterns: &[Pattern]) -> Self {
        Self::choose(graph, patterns, |_| true)
    }

    /// Like [`new`](Self::new), but without the groups for which `runs` returns false, such as those with types or sizes for
    /// which a device has no kernel.
    pub fn choose(graph: &Graph, patterns: &[Pattern], runs: impl Fn(&Fused) -> bool) -> Self {
        let mut groups = Groups::new(graph);
        let finder = Finder::new(graph);
        for &pattern in patterns {
            for node in 0..graph.nodes().len() {
                if let Some(found) = pattern.find(&finder, NodeId(node as u32)) {
                    groups.accept(&finder, found, &runs);
                }
            }
        }
        groups.schedule()
    }

    /// The items, in the order they run.
    pub fn items(&self) -> &[Item] {
        &self.items
    }
}

impl Item {
    /// The nodes of the item, in the graph's order.
    pub fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Single(node) => std::slice::from_ref(node),
            Self::Fused(fused) => &fused.nodes,
        }
    }
}

/// Groups of nodes that run as one item, and the order that nodes must keep.
struct Groups<'a> {
    graph: &'a Graph,
    /// Nodes that must have run before each node: makers of operands, and earlier users of the same cache.
    before: Vec<Vec<usize>>,
    /// The group of each node: the number of its fused item; `None` for a node that runs alone.
    group: Vec<Option<usize>>,
    fused: Vec<Fused>,
}

impl<'a> Groups<'a> {
    fn new(graph: &'a Graph) -> Self {
        let nodes = graph.nodes().len();
        Self { graph, before: dependencies(graph), group: vec![None; nodes], fused: Vec::new() }
    }

    /// Adds a match as a group, unless its nodes are taken, its inner values are needed outside, or its nodes cannot run one
    /// after the other.
    fn accept(&mut self, finder: &Finder, found: Match, runs: &impl Fn(&Fused) -> bool) {
        let Match { fusion, mut nodes, outputs } = found;
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() < 2 || nodes.iter().any(|node| self.group[node.0 as usize].is_some()) {
            return;
        }
        let inside = |node: &NodeId| nodes.binary_search(node).is_ok();
        let needed = |&value: &ValueId| finder.is_output(value) || !finder.users(value).iter().all(inside);
        let made = || nodes.iter().flat_map(|&node| &self.graph.node(node).outputs).copied();
        if made().any(|value| needed(&value) && !outputs.contains(&value)) {
            return;
        }
        let mut inputs: Vec<ValueId> = Vec::new();
        for &value in nodes.iter().flat_map(|&node| &self.graph.node(node).inputs) {
            let outside = self.graph.producer(value).is_none_or(|node| !inside(&node));
            if outside && !inputs.contains(&value) {
                inputs.push(value);
            }
        }
        let outputs = made().filter(needed).collect();
        let fused = Fused { fusion, nodes, inputs, outputs };
        if !runs(&fused) {
            return;
        }
        for node in &fused.nodes {
            self.group[node.0 as usize] = Some(self.fused.len());
        }
        self.fused.push(fused);
        if self.order().is_none() {
            let refused = self.fused.pop().expect("pushed above");
            for node in refused.nodes {
                self.group[node.0 as usize] = None;
            }
        }
    }

    /// The first nodes of all groups, in an order that respects dependencies; `None` if there is no such order.
    ///
    /// Of the groups that may run, the one with the earliest last node in the graph goes first. So a fused item runs at the place
    /// of its last node, and other nodes keep their order.
    fn order(&self) -> Option<Vec<usize>> {
        let head = |node: usize| self.group[node].map_or(node, |g| self.fused[g].nodes[0].0 as usize);
        let members = |head: usize| match self.group[head] {
            Some(g) => self.fused[g].nodes.iter().map(|node| node.0 as usize).collect(),
            None => vec![head],
        };
        let nodes = self.graph.nodes().len();
        let mut waiting = vec![0; nodes];
        let mut after = vec![Vec::new(); nodes];
        let heads: Vec<usize> = (0..nodes).filter(|&node| head(node) == node).collect();
        for node in 0..nodes {
            for &earlier in &self.before[node] {
                if head(earlier) != head(node) {
                    waiting[head(node)] += 1;
                    after[head(earlier)].push(head(node));
                }
            }
        }
        let key = |head: usize| Reverse((members(head).last().copied(), head));
        let mut ready: BinaryHeap<_> =
            heads.iter().filter(|&&head| waiting[head] == 0).map(|&head| key(head)).collect();
        let mut order = Vec::with_capacity(heads.len());
        while let Some(Reverse((_, head))) = ready.pop() {
            order.push(head);
            for &next in &after[head] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(key(next));
                }
            }
        }
        (order.len() == heads.len()).then_some(order)
    }

    fn schedule(mut self) -> Schedule {
        let order = self.order().expect("every accepted group leaves an order");
        let mut fused: Vec<Option<Fused>> = std::mem::take(&mut self.fused).into_iter().map(Some).collect();
        let item = |head: usize| match self.group[head] {
            Some(g) => Item::Fused(fused[g].take().expect("one head a group")),
            None => Item::Single(NodeId(head as u32)),
        };
        Schedule { items: order.into_iter().map(item).collect() }
    }
}

/// For each node, the nodes that must run before it.
fn dependencies(graph: &Graph) -> Vec<Vec<usize>> {
    let mut last_write: Vec<Option<usize>> = vec![None; graph.caches.len()];
    let mut reads_since: Vec<Vec<usize>> = vec![Vec::new(); graph.caches.len()];
    let mut before = Vec::with_capacity(graph.nodes().len());
    for (number, node) in graph.nodes().iter().enumerate() {
        let makers = node.inputs.iter().filter_map(|&value| graph.producer(value));
        let mut earlier: Vec<usize> = makers.map(|maker| maker.0 as usize).collect();
        if let Some(access) = node.op.memory_access() {
            match (access.memory, access.kind) {
                (SequenceMemory::Cache(cache), AccessKind::Read) => {
                    reads_since[cache.0 as usize].push(number);
                    earlier.extend(last_write[cache.0 as usize]);
                }
                (SequenceMemory::Cache(cache), AccessKind::Write | AccessKind::Advance) => {
                    earlier.append(&mut reads_since[cache.0 as usize]);
                    earlier.extend(last_write[cache.0 as usize].replace(number));
                }
                // No other node uses the state.
                (SequenceMemory::State(_), _) => {}
            }
        }
        earlier.sort_unstable();
        earlier.dedup();
        before.push(earlier);
    }
    before
}
