//! Reverse mode: gradients.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::rules::{Constants, Rule, Rules};
use super::{Wrt, bring, refused};
use crate::op::{Concat, NO_DERIVATIVE};
use crate::{Builder, Graph, GraphError, Node, Shape, ValueId, pass, rewrite};

/// A graph that also computes gradients of its outputs, as [`vjp`] makes it.
#[derive(Clone, Debug)]
pub struct Vjp {
    /// The graph with the differentiated graph's outputs, followed by the `gradients` that are not zero, in order.
    pub graph: Graph,
    /// For each output, the value that brings its cotangent: a weight or an input of the same shape. `None` for integers, and for
    /// outputs that depend on no varying value.
    pub cotangents: Vec<Option<ValueId>>,
    /// Gradient of each varying value; `None` if no output depends on it.
    pub gradients: Vec<Option<ValueId>>,
}

/// A graph that also computes the gradients of its outputs: `Jᵀ·w`, where `w` holds a cotangent of each output.
///
/// The cotangent of an output of constant shape is a weight of ones, so the step brings no cotangent for a loss over all rows.
/// Values of `graph` keep their ids. Nodes that neither the outputs nor the gradients need are dropped.
///
/// # Errors
///
/// [`GraphError::Derivative`] if a value of `wrt` cannot vary, or if an operation on the way has no derivative.
pub fn vjp(graph: &Graph, wrt: &Wrt) -> Result<Vjp, GraphError> {
    let mut backward = Backward::new(graph, wrt)?;
    let (mut cotangents, mut gradients) = (Vec::new(), Vec::new());
    let extended = rewrite::extend(graph, |builder| {
        for (number, &output) in graph.outputs().iter().enumerate() {
            let name = format!("output.{number}.cotangent");
            let reached = backward.varying[output.0 as usize];
            let cotangent = reached.then(|| bring(builder, name, output, 1.0)).transpose()?;
            cotangents.push(cotangent);
            backward.contributions[output.0 as usize].extend(cotangent.map(Contribution::whole));
        }
        for node in graph.nodes().iter().rev() {
            backward.node(builder, node)?;
            builder.check()?;
        }
        for &id in &wrt.values {
            gradients.push(backward.cotangent(builder, id)?);
        }
        Ok(graph.outputs().iter().copied().chain(gradients.iter().copied().flatten()).collect())
    })?;
    Ok(Vjp { graph: pass::prune(&extended), cotangents, gradients })
}

/// A term of a value's cotangent.
struct Contribution {
    /// The elements of each row that the term covers; `None` for all.
    elements: Option<Range<usize>>,
    term: ValueId,
}

impl Contribution {
    fn whole(term: ValueId) -> Self {
        Self { elements: None, term }
    }
}

/// The state of building a gradient, from the outputs back to the varying values.
struct Backward<'a> {
    graph: &'a Graph,
    /// For each value, true if it depends on a varying value.
    varying: Vec<bool>,
    stopped: BTreeSet<ValueId>,
    recomputed: BTreeSet<ValueId>,
    /// For each value, the terms of its cotangent that are known so far.
    contributions: Vec<Vec<Contribution>>,
    /// For each recomputed value, its second computation.
    again: BTreeMap<ValueId, ValueId>,
    constants: Constants,
}

impl<'a> Backward<'a> {
    fn new(graph: &'a Graph, wrt: &Wrt) -> Result<Self, GraphError> {
        // A step may bring these rows itself, which a second lookup would not see.
        let brought = graph.token_embedding().map_or(&[][..], |node| &graph.node(node).outputs);
        Ok(Self {
            graph,
            varying: wrt.varying(graph)?,
            stopped: wrt.stopped.iter().copied().collect(),
            recomputed: wrt.recomputed.iter().copied().filter(|id| !brought.contains(id)).collect(),
            contributions: graph.values().iter().map(|_| Vec::new()).collect(),
            again: BTreeMap::new(),
            constants: Constants::default(),
        })
    }

    /// Passes the cotangents of a node's results on to its operands.
    fn node(&mut self, builder: &mut Builder, node: &Node) -> Result<(), GraphError> {
        let wanted: Vec<bool> = node.inputs.iter().map(|input| self.varying[input.0 as usize]).collect();
        if !wanted.contains(&true) {
            return Ok(());
        }
        if node.outputs.is_empty() {
            let mut rules = Rules::new(builder, &mut self.constants);
            let refusal = node.op.vjp(&mut rules, node, &[], &wanted).err();
            return Err(refused(node.op.name().into(), refusal.unwrap_or_else(|| NO_DERIVATIVE.into())));
        }
        let mut cotangents = Vec::with_capacity(node.outputs.len());
        for &output in &node.outputs {
            let stopped = self.stopped.contains(&output);
            cotangents.push(if stopped { None } else { self.cotangent(builder, output)? });
        }
        if cotangents.iter().all(Option::is_none) {
            return Ok(());
        }
        if let (Some(elements), &[Some(term)]) = (node.op.part(), &cotangents[..]) {
            let contribution = Contribution { elements: Some(elements), term };
            self.contributions[node.inputs[0].0 as usize].push(contribution);
            return Ok(());
        }
        let at = Node {
            op: node.op.clone(),
            inputs: node.inputs.iter().map(|&input| self.primal(builder, input)).collect(),
            outputs: node.outputs.iter().map(|&output| self.primal(builder, output)).collect(),
        };
        let mut rules = Rules::new(builder, &mut self.constants);
        let terms = node.op.vjp(&mut rules, &at, &cotangents, &wanted);
        let terms = terms.map_err(|what| refused(node.op.name().into(), what))?;
        for ((&input, term), wanted) in node.inputs.iter().zip(terms).zip(wanted) {
            if let Some(term) = term.filter(|_| wanted) {
                self.contributions[input.0 as usize].push(Contribution::whole(term));
            }
        }
        Ok(())
    }

    /// The sum of the known terms of a value's cotangent; `None` if there are none.
    fn cotangent(&mut self, builder: &mut Builder, value: ValueId) -> Result<Option<ValueId>, GraphError> {
        let known = std::mem::take(&mut self.contributions[value.0 as usize]);
        let shape = &self.graph.value(value).shape;
        let total = summed(&mut Rules::new(builder, &mut self.constants), known, shape);
        let total = total.map_err(|what| refused(value.to_string(), what))?;
        self.contributions[value.0 as usize].extend(total.map(Contribution::whole));
        Ok(total)
    }

    /// The value as the forward pass computed it, or its second computation.
    fn primal(&mut self, builder: &mut Builder, value: ValueId) -> ValueId {
        if !self.recomputed.contains(&value) {
            return value;
        }
        let mut nodes = BTreeSet::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            let known = !self.recomputed.contains(&value) || self.again.contains_key(&value);
            if let Some(node) = self.graph.producer(value).filter(|_| !known)
                && nodes.insert(node)
            {
                open.extend(&self.graph.node(node).inputs);
            }
        }
        for node in nodes {
            let node = self.graph.node(node);
            let known = |input: &ValueId| self.again.get(input).copied().unwrap_or(*input);
            let inputs: Vec<ValueId> = node.inputs.iter().map(known).collect();
            let outputs = builder.apply(node.op.clone(), &inputs);
            self.again.extend(node.outputs.iter().copied().zip(outputs));
        }
        self.again.get(&value).copied().unwrap_or(value)
    }
}

/// The sum of all `terms`, for a value of `shape`.
fn summed(rules: &mut Rules, terms: Vec<Contribution>, shape: &Shape) -> Rule<Option<ValueId>> {
    let (mut total, mut parts) = (None, Vec::new());
    for Contribution { elements, term } in terms {
        match elements {
            None => total = rules.total(total, Some(term))?,
            Some(elements) => parts.push((elements, term)),
        }
    }
    parts.sort_by_key(|(elements, _)| (elements.start, elements.end));
    while !parts.is_empty() {
        let joined = joined(rules, &mut parts, shape)?;
        total = rules.total(total, Some(joined))?;
    }
    Ok(total)
}

/// A value of `shape`, `[R, D]`, that holds as many of the `parts` as do not overlap, and zeros elsewhere. Removes these from
/// `parts`, which are sorted.
fn joined(rules: &mut Rules, parts: &mut Vec<(Range<usize>, ValueId)>, shape: &Shape) -> Rule {
    let (mut pieces, mut end) = (Vec::new(), 0);
    let zeros = |rules: &mut Rules, len| rules.zeros(&Shape::rows(shape.outer(), &[len]));
    let mut overlapping = Vec::new();
    for (elements, part) in std::mem::take(parts) {
        if elements.start < end {
            overlapping.push((elements, part));
            continue;
        }
        if end < elements.start {
            pieces.push(zeros(rules, elements.start - end)?);
        }
        pieces.push(part);
        end = elements.end;
    }
    *parts = overlapping;
    let width = shape.width().unwrap_or(end);
    if end < width {
        pieces.push(zeros(rules, width - end)?);
    }
    let mut pieces = pieces.into_iter();
    let first = pieces.next().ok_or("no part of a value")?;
    pieces.try_fold(first, |row, piece| rules.apply(Concat { axis: 1 }, &[row, piece]))
}
