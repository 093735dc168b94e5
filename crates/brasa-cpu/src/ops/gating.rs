//! The choice of experts by gatings that are more than a softmax: selection biases, groups, sigmoids, normalised
//! weights.

use brasa_graph::op::{GroupScore, Groups, RouterTopK, Scores, Unary};

use crate::Isa;

use super::elementwise::apply;
use super::reduce::softmax;

/// One row of a router: its logits, and the rule of the choice.
pub(super) struct Row<'a> {
    pub isa: Isa,
    pub router: &'a RouterTopK,
    pub logits: &'a [f32],
    /// The selection bias.
    pub bias: Option<&'a [f32]>,
}

/// Chooses the experts of one row and weighs them. `experts` and `weights` get `k` numbers each; `scratch` is reused
/// memory.
pub(super) fn choose(row: &Row<'_>, scratch: &mut Vec<f32>, experts: &mut [u32], weights: &mut [f32]) {
    let &Row { isa, router, logits, bias } = row;
    let (count, gating) = (logits.len(), &router.gating);
    // Three numbers for each expert: the score, the score that the choice compares, and 1 if the expert can still be
    // chosen.
    scratch.clear();
    scratch.extend_from_slice(logits);
    scratch.extend_from_slice(logits);
    scratch.resize(3 * count, 1.0);
    let (scores, rest) = scratch.split_at_mut(count);
    let (compared, open) = rest.split_at_mut(count);
    match gating.scores {
        Scores::SoftmaxAll => softmax(scores),
        Scores::SoftmaxChosen => {}
        Scores::Sigmoid => apply(isa, Unary::Sigmoid, scores),
    }
    // A softmax alone does not change the order of logits.
    if gating.scores == Scores::Sigmoid || bias.is_some() || gating.groups.is_some() {
        compared.copy_from_slice(scores);
    }
    for (score, bias) in compared.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    if let Some(groups) = &gating.groups {
        keep(groups, compared, open);
    }
    for expert in &mut *experts {
        let best = largest(compared, open).unwrap_or(0);
        (*expert, open[best]) = (best as u32, 0.0);
    }
    if logits.iter().any(|logit| logit.is_nan()) {
        weights.fill(f32::NAN);
        return;
    }
    for (weight, &expert) in weights.iter_mut().zip(&*experts) {
        *weight = scores[expert as usize];
    }
    if gating.scores == Scores::SoftmaxChosen {
        softmax(weights);
    }
    if let Some(eps) = gating.norm_eps {
        let total = weights.iter().fold(0.0, |sum, weight| sum + weight) + eps;
        for weight in &mut *weights {
            *weight /= total;
        }
    }
    for weight in weights {
        *weight *= gating.scale;
    }
}

/// Marks the experts of the best groups as open, 1, and all others as closed, 0.
fn keep(groups: &Groups, compared: &[f32], open: &mut [f32]) {
    let each = compared.len() / groups.count;
    // Open experts are marked 1 when their group is kept, and 2 before.
    open.fill(2.0);
    for _ in 0..groups.kept {
        let mut best: Option<(usize, f32)> = None;
        for (group, of_group) in compared.chunks_exact(each).enumerate() {
            if open[group * each] < 2.0 {
                continue;
            }
            let score = group_score(groups.score, of_group);
            if best.is_none_or(|(_, best)| RouterTopK::is_before(&score, &best)) {
                best = Some((group, score));
            }
        }
        if let Some((group, _)) = best {
            open[group * each..][..each].fill(1.0);
        }
    }
    open.iter_mut().filter(|open| **open > 1.0).for_each(|open| *open = 0.0);
}

fn group_score(score: GroupScore, of_group: &[f32]) -> f32 {
    // The two that come first, in order.
    let (mut first, mut second) = (of_group[0], None);
    for &score in &of_group[1..] {
        if RouterTopK::is_before(&score, &first) {
            (first, second) = (score, Some(first));
        } else if second.is_none_or(|second| RouterTopK::is_before(&score, &second)) {
            second = Some(score);
        }
    }
    match (score, second) {
        (GroupScore::TopTwo, Some(second)) => first + second,
        _ => first,
    }
}

/// The first of the largest open scores.
fn largest(compared: &[f32], open: &[f32]) -> Option<usize> {
    let is_open = |expert: &usize| open[*expert] > 0.0;
    let first = |best: usize, expert: usize| {
        if RouterTopK::is_before(&compared[expert], &compared[best]) { expert } else { best }
    };
    (0..compared.len()).filter(is_open).reduce(first)
}
