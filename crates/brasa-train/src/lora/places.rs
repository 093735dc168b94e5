//! The places of an adapter's matrices in the weights of a graph.
//!
//! Projections that are stacked in one weight share one pair of matrices in the graph: the rows of all `A` are stacked, and each
//! `B` is a block of a matrix that is zero elsewhere. Only the blocks are learned; gradients of the zeros are dropped. In the
//! graph, magnitudes are gains: magnitude divided by norm, and 1 for rows that are not adapted. Experts are not stacked with
//! other projections: their weights have one pair each.

use std::collections::BTreeMap;
use std::sync::Arc;

use brasa_graph::learn::LearnedBlock;
use brasa_graph::{Graph, Weight};

use super::{AdapterDtype, Lora, Pair, weight_named};
use crate::{Result, TrainError};

/// The adapter's weights in a graph, and the place of each pair in them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The weights `A`, `B` and gain for each adapted weight.
    stacks: Vec<Stack>,
}

#[derive(Clone, Debug)]
struct Stack {
    a: Arc<Weight>,
    b: Arc<Weight>,
    /// Gains of all rows; `None` if the pairs have no magnitudes.
    gain: Option<Arc<Weight>>,
    pairs: Vec<Place>,
}

/// The place of a pair in its stack.
#[derive(Clone, Debug)]
struct Place {
    /// Number of the pair in the adapter.
    pair: usize,
    /// The pair's first row of the stacked `A`, and first column of the stacked `B`.
    first_rank: usize,
}

impl Places {
    /// Finds the weights in `adapted`, the graph with the adapter `lora`.
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
            let [a, b, gain] =
                ["a", "b", "gain"].map(|part| weight_named(adapted, &format!("{name}.low_rank_{part}")));
            let missing =
                || TrainError::setting(format!("{name} has no adapter in the graph"), "report this");
            Ok(Stack { a: a.ok_or_else(missing)?, b: b.ok_or_else(missing)?, gain, pairs })
        };
        Ok(Self { stacks: by_weight.into_iter().map(stack).collect::<Result<_>>()? })
    }

    /// All weights in order: for each stack `A`, `B` and, with magnitudes, the gain.
    pub fn weights(&self) -> impl Iterator<Item = &Arc<Weight>> {
        self.stacks.iter().flat_map(|stack| [&stack.a, &stack.b].into_iter().chain(&stack.gain))
    }

    /// True if `weight` is the `A` of a stack.
    pub fn is_a(&self, weight: &Arc<Weight>) -> bool {
        self.stacks.iter().any(|stack| Arc::ptr_eq(&stack.a, weight))
    }

    /// The block of each array of the pairs, in order; the gradient of the first weight is output 1. `None` if pairs have
    /// magnitudes, whose updates need more than their own gradient, or if the weights hold rounded values.
    pub fn blocks(&self, lora: &Lora) -> Option<Vec<LearnedBlock>> {
        if lora.dtype != AdapterDtype::F32 {
            return None;
        }
        let mut blocks: Vec<Option<[LearnedBlock; 2]>> = vec![None; lora.pairs.len()];
        for (number, stack) in self.stacks.iter().enumerate() {
            if stack.gain.is_some() {
                return None;
            }
            for place in &stack.pairs {
                let pair = &lora.pairs[place.pair];
                let (of_a, of_b) = (pair.rank * pair.layer.inputs, pair.layer.rows.len() * pair.rank);
                // Experts have a pair of matrices each.
                if (pair.a.len(), pair.b.len()) != (of_a, of_b) {
                    return None;
                }
                let ranks = place.first_rank..place.first_rank + pair.rank;
                let output = 1 + 2 * number;
                blocks[place.pair] = Some([
                    LearnedBlock {
                        weight: Arc::clone(&stack.a),
                        output,
                        rows: ranks.clone(),
                        columns: 0..pair.layer.inputs,
                    },
                    LearnedBlock {
                        weight: Arc::clone(&stack.b),
                        output: output + 1,
                        rows: pair.layer.rows.clone(),
                        columns: ranks,
                    },
                ]);
            }
        }
        blocks.into_iter().collect::<Option<Vec<_>>>().map(|pairs| pairs.into_iter().flatten().collect())
    }

    /// Adds the gradients of the weights to the gradients of the pairs' arrays. `of_weights` is in the order of [`weights`](Self::weights); `norms` holds the norms of each pair's
    /// rows, and is empty without magnitudes.
    pub fn add_gradients(
        &self,
        lora: &Lora,
        norms: &[Vec<f32>],
        of_weights: &[&[f32]],
        gradients: &mut [Vec<f32>],
    ) {
        let arrays = gradients.len() / lora.pairs.len().max(1);
        let mut of_weights = of_weights.iter().copied();
        let mut next = || of_weights.next().expect("a gradient of each weight");
        for stack in &self.stacks {
            let (of_a, of_b) = (next(), next());
            let of_gain = stack.gain.as_ref().map(|_| next());
            for place in &stack.pairs {
                let pair = &lora.pairs[place.pair];
                let [a, b, magnitudes @ ..] = &mut gradients[arrays * place.pair..][..arrays] else {
                    unreachable!("two matrices at least")
                };
                let own = &of_a[place.first_rank * pair.layer.inputs..][..a.len()];
                a.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
                for (row, sums) in b.chunks_exact_mut(pair.rank).enumerate() {
                    let own = &of_b[stack.in_b(place, pair, row)..][..pair.rank];
                    sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
                }
                if let ([magnitudes], Some(of_gain)) = (magnitudes, of_gain) {
                    let own = of_gain[pair.layer.rows.clone()].iter().zip(&norms[place.pair]);
                    let sums = magnitudes.iter_mut().zip(own);
                    sums.filter(|(_, (_, norm))| **norm > 0.0).for_each(|(sum, (x, norm))| *sum += x / norm);
                }
            }
        }
    }

    /// Computes the values of each weight from the pairs' arrays.
    pub fn values_of_weights(&self, lora: &Lora, norms: &[Vec<f32>]) -> Vec<(&Arc<Weight>, Vec<f32>)> {
        let mut values = Vec::with_capacity(3 * self.stacks.len());
        for stack in &self.stacks {
            let [mut a, mut b] =
                [&stack.a, &stack.b].map(|weight| vec![0.0; weight.rows() * weight.row_len()]);
            let mut gains = stack.gain.as_ref().map(|gain| (gain, vec![1.0; gain.row_len()]));
            for place in &stack.pairs {
                let pair = &lora.pairs[place.pair];
                let [of_a, of_b] = [&pair.a, &pair.b].map(|matrix| lora.dtype.seen(matrix));
                a[place.first_rank * pair.layer.inputs..][..of_a.len()].copy_from_slice(&of_a);
                for (row, own) in of_b.chunks_exact(pair.rank).enumerate() {
                    b[stack.in_b(place, pair, row)..][..pair.rank].copy_from_slice(own);
                }
                if let (Some((_, gains)), Some(magnitudes)) = (&mut gains, &pair.magnitudes) {
                    let own = gains[pair.layer.rows.clone()].iter_mut();
                    for (gain, (magnitude, norm)) in own.zip(magnitudes.iter().zip(&norms[place.pair])) {
                        // A row of zeros has no direction.
                        *gain = if *norm > 0.0 { magnitude / norm } else { 0.0 };
                    }
                }
            }
            values.extend([(&stack.a, a), (&stack.b, b)]);
            values.extend(gains);
        }
        values
    }
}

impl Stack {
    /// Index of the first element of row `row` of a pair's `B` in the stacked `B`.
    fn in_b(&self, place: &Place, pair: &Pair, row: usize) -> usize {
        (pair.layer.rows.start + row) * self.b.row_len() + place.first_rank
    }
}
