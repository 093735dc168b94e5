//! Where the matrices of an adapter lie in the weights of a graph.
//!
//! Projections that are stacked in one weight share its pair of matrices there: rows of all `A` are stacked, and each `B` is a
//! block of a matrix that is zero elsewhere. The blocks alone are learned; what a gradient says of the zeros is passed over.

use std::collections::BTreeMap;
use std::sync::Arc;

use brasa_graph::{Graph, ValueId, ValueKind, Weight};

use super::{Lora, Pair, weight_named};
use crate::{Result, TrainError};

/// The weights of an adapted graph, and the part of each pair in them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// `A` and `B` of each adapted weight.
    stacks: Vec<Stack>,
}

#[derive(Clone, Debug)]
struct Stack {
    a: Arc<Weight>,
    b: Arc<Weight>,
    pairs: Vec<Place>,
}

/// The place of a pair in its stack.
#[derive(Clone, Debug)]
struct Place {
    /// Number of the pair.
    pair: usize,
    /// The first row of `A` and column of `B`.
    first_rank: usize,
}

impl Places {
    /// Finds the pairs of `lora` in the graph that it was added to.
    pub fn new(adapted: &Graph, lora: &Lora) -> Result<Self> {
        let mut by_weight: BTreeMap<_, Vec<Place>> = BTreeMap::new();
        let mut ranks: BTreeMap<_, usize> = BTreeMap::new();
        for (number, pair) in lora.pairs.iter().enumerate() {
            let rank = ranks.entry(pair.layer.weight).or_default();
            let place = Place { pair: number, first_rank: *rank };
            *rank += pair.rank;
            by_weight.entry(pair.layer.weight).or_default().push(place);
        }
        let stack = |(weight, pairs)| {
            let name = &adapted.weight(weight).name;
            let [a, b] = ["a", "b"].map(|part| weight_named(adapted, &format!("{name}.low_rank_{part}")));
            let missing =
                || TrainError::setting(format!("{name} has no adapter in the graph"), "report this");
            Ok(Stack { a: a.ok_or_else(missing)?, b: b.ok_or_else(missing)?, pairs })
        };
        Ok(Self { stacks: by_weight.into_iter().map(stack).collect::<Result<_>>()? })
    }

    /// The weights, `A` and `B` of each stack in turn.
    pub fn weights(&self) -> impl Iterator<Item = &Arc<Weight>> {
        self.stacks.iter().flat_map(|stack| [&stack.a, &stack.b])
    }

    /// The values of a graph that are these weights, in their order.
    pub fn values(&self, graph: &Graph) -> Vec<ValueId> {
        let value_of = |weight: &Arc<Weight>| {
            let is_it = |value: &brasa_graph::Value| match value.kind {
                ValueKind::Weight(id) => Arc::ptr_eq(graph.weight(id), weight),
                _ => false,
            };
            let at = graph.values().iter().position(is_it).expect("the graph was made of these weights");
            ValueId(at as u32)
        };
        self.weights().map(value_of).collect()
    }

    /// Adds gradients of the weights, in their order, to those of the pairs' matrices.
    pub fn add_gradients(&self, lora: &Lora, of_weights: &[&[f32]], gradients: &mut [Vec<f32>]) {
        for (stack, of_weights) in self.stacks.iter().zip(of_weights.chunks_exact(2)) {
            for place in &stack.pairs {
                let pair = &lora.pairs[place.pair];
                let [a, b] = &mut gradients[2 * place.pair..][..2] else { unreachable!("two matrices") };
                let own = &of_weights[0][place.first_rank * pair.layer.inputs..][..a.len()];
                a.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
                for (row, sums) in b.chunks_exact_mut(pair.rank).enumerate() {
                    let own = &of_weights[1][stack.in_b(place, pair, row)..][..pair.rank];
                    sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
                }
            }
        }
    }

    /// Each weight with the values that the pairs' matrices give it.
    pub fn values_of_weights(&self, lora: &Lora) -> Vec<(&Arc<Weight>, Vec<f32>)> {
        let mut values = Vec::with_capacity(2 * self.stacks.len());
        for stack in &self.stacks {
            let [mut a, mut b] =
                [&stack.a, &stack.b].map(|weight| vec![0.0; weight.rows() * weight.row_len()]);
            for place in &stack.pairs {
                let pair = &lora.pairs[place.pair];
                a[place.first_rank * pair.layer.inputs..][..pair.a.len()].copy_from_slice(&pair.a);
                for (row, own) in pair.b.chunks_exact(pair.rank).enumerate() {
                    b[stack.in_b(place, pair, row)..][..pair.rank].copy_from_slice(own);
                }
            }
            values.extend([(&stack.a, a), (&stack.b, b)]);
        }
        values
    }
}

impl Stack {
    /// The first element of row `row` of a pair's `B` in the stack's.
    fn in_b(&self, place: &Place, pair: &Pair, row: usize) -> usize {
        (pair.layer.rows.start + row) * self.b.row_len() + place.first_rank
    }
}
