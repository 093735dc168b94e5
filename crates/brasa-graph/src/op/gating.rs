//! How a router chooses experts and weighs them.

use super::RouterTopK;
use crate::reference::{Number, sums};

/// The rule by which a router turns the logits of a row into `k` experts and their weights.
///
/// 1. Scores: `p` = [`scores`](Self::scores) of the logits.
/// 2. Choice: `s = p + bias` if the router has a selection bias, else `s = p`. With [`groups`](Self::groups), only
///    experts of the best groups take part. The experts with the `k` largest `s` are chosen.
/// 3. Weights: `w = p` of the chosen experts, without the bias. [`norm_eps`](Self::norm_eps) divides them:
///    `w / (Σ w + ε)`. The factor [`scale`](Self::scale) comes last.
///
/// Dai et al. 2024, arXiv:2401.06066; DeepSeek-AI 2024, arXiv:2412.19437.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gating {
    /// The function that turns logits into scores.
    pub scores: Scores,
    /// The groups that experts are divided into; `None` if all experts take part in the choice.
    pub groups: Option<Groups>,
    /// ε in the normalisation of weights, `w / (Σ w + ε)`; `None` for weights that are not normalised.
    pub norm_eps: Option<f32>,
    /// Factor of all weights, after their normalisation.
    pub scale: f32,
}

/// The function that turns router logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts.
    SoftmaxAll,
    /// Softmax over the chosen experts alone. The choice compares the logits themselves.
    SoftmaxChosen,
    /// `1 / (1 + exp(−logit))` of each expert by itself.
    Sigmoid,
}

/// Groups of consecutive experts, all of one size. Only experts of the best groups take part in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of best groups whose experts can be chosen.
    pub kept: usize,
    /// The score by which groups are compared.
    pub score: GroupScore,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The largest score in the group. DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434.
    Max,
    /// The sum of the two largest scores in the group. DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437.
    TopTwo,
}

impl Gating {
    /// Softmax over all experts; the weights of the chosen experts are not renormalised.
    pub const SOFTMAX_ALL: Self =
        Self { scores: Scores::SoftmaxAll, groups: None, norm_eps: None, scale: 1.0 };
    /// Softmax over the chosen experts alone. Its weights equal those of a softmax over all experts, divided by their
    /// sum.
    pub const SOFTMAX_CHOSEN: Self = Self { scores: Scores::SoftmaxChosen, ..Self::SOFTMAX_ALL };
    /// The sigmoid of each logit, without groups, normalisation or a factor.
    pub const SIGMOID: Self = Self { scores: Scores::Sigmoid, ..Self::SOFTMAX_ALL };

    /// True for [`SOFTMAX_ALL`](Self::SOFTMAX_ALL) and [`SOFTMAX_CHOSEN`](Self::SOFTMAX_CHOSEN): a softmax without
    /// groups, normalisation or a factor.
    pub fn is_plain_softmax(&self) -> bool {
        *self == Self::SOFTMAX_ALL || *self == Self::SOFTMAX_CHOSEN
    }

    /// The scores that the choice compares, before a selection bias. A softmax keeps the order of logits, so without a
    /// bias and groups the choice compares the logits themselves.
    fn compared<T: Number>(&self, logits: &[T], has_bias: bool) -> Vec<T> {
        let mut scores = logits.to_vec();
        match self.scores {
            Scores::SoftmaxAll if has_bias || self.groups.is_some() => sums::softmax(&mut scores),
            Scores::SoftmaxAll | Scores::SoftmaxChosen => {}
            Scores::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        }
        scores
    }

    /// The `k` chosen experts of one row, largest score with `bias` first.
    pub(super) fn choose<T: Number>(&self, k: usize, logits: &[T], bias: Option<&[T]>) -> Vec<usize> {
        let mut scores = self.compared(logits, bias.is_some());
        for (score, &bias) in scores.iter_mut().zip(bias.unwrap_or_default()) {
            *score += bias;
        }
        let mut takes_part = vec![true; scores.len()];
        if let Some(groups) = &self.groups {
            let each = scores.len() / groups.count;
            let of_groups: Vec<T> = scores.chunks_exact(each).map(|group| groups.score.of(group)).collect();
            let kept = largest(groups.kept, &of_groups, |_| true);
            for (group, takes_part) in takes_part.chunks_exact_mut(each).enumerate() {
                takes_part.fill(kept.contains(&group));
            }
        }
        largest(k, &scores, |expert| takes_part[expert])
    }

    /// The weights of the chosen experts of one row.
    pub(super) fn weigh<T: Number>(&self, logits: &[T], chosen: &[usize]) -> Vec<T> {
        if logits.iter().any(RouterTopK::is_nan) {
            return vec![T::constant(f64::NAN); chosen.len()];
        }
        let of_chosen = |all: &[T]| chosen.iter().map(|&x| all[x]).collect::<Vec<T>>();
        let mut weights = match self.scores {
            Scores::SoftmaxAll => {
                let mut all = logits.to_vec();
                sums::softmax(&mut all);
                of_chosen(&all)
            }
            Scores::SoftmaxChosen => {
                let mut few = of_chosen(logits);
                sums::softmax(&mut few);
                few
            }
            Scores::Sigmoid => of_chosen(logits).into_iter().map(sigmoid).collect(),
        };
        if let Some(eps) = self.norm_eps {
            let mut total = T::default();
            for &w in &weights {
                total += w;
            }
            total += T::constant(eps.into());
            for w in &mut weights {
                *w /= total;
            }
        }
        for w in &mut weights {
            *w *= T::constant(self.scale.into());
        }
        weights
    }

    /// The text of the gating in printed graphs; a plain softmax is one word.
    pub(super) fn describe(&self) -> String {
        let mut words = vec![
            match self.scores {
                Scores::SoftmaxAll => "softmax_all",
                Scores::SoftmaxChosen => "softmax_chosen",
                Scores::Sigmoid => "sigmoid",
            }
            .to_owned(),
        ];
        if let Some(Groups { count, kept, score }) = self.groups {
            let score = match score {
                GroupScore::Max => "max",
                GroupScore::TopTwo => "top_two",
            };
            words.push(format!("groups={kept}/{count} {score}"));
        }
        words.extend(self.norm_eps.map(|eps| format!("norm_eps={eps:e}")));
        if self.scale.to_bits() != 1.0_f32.to_bits() {
            words.push(format!("scale={}", self.scale));
        }
        words.join(" ")
    }

    /// Fails if the gating cannot choose `k` of `experts` experts, or has a number that is not finite.
    pub(super) fn check(&self, k: usize, experts: usize) -> Result<(), String> {
        let numbers = [Some(self.scale), self.norm_eps];
        if let Some(odd) = numbers.into_iter().flatten().find(|x| !x.is_finite()) {
            return Err(format!("a router with the parameter {odd}"));
        }
        let Some(groups) = self.groups else { return Ok(()) };
        let Groups { count, kept, score } = groups;
        if count == 0 || !experts.is_multiple_of(count) {
            return Err(format!("{experts} experts in {count} groups"));
        }
        let each = experts / count;
        if !(1..=count).contains(&kept) || k > kept * each {
            return Err(format!("k = {k} of the experts of {kept} of {count} groups of {each}"));
        }
        if score == GroupScore::TopTwo && each < 2 {
            return Err(format!("the two best of groups of {each}"));
        }
        Ok(())
    }
}

impl GroupScore {
    /// The score of a group; `group` holds the scores of its experts.
    fn of<T: Number>(self, group: &[T]) -> T {
        match (self, &largest(2.min(group.len()), group, |_| true)[..]) {
            (Self::TopTwo, &[first, second]) => group[first] + group[second],
            (_, &[first, ..]) => group[first],
            (_, []) => T::constant(f64::NAN),
        }
    }
}

/// The places of the `k` largest scores among those for which `takes_part` is true, largest first. Ties go to the first
/// place; a NaN ranks below every number.
fn largest<T: Number>(k: usize, scores: &[T], takes_part: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(k);
    for _ in 0..k {
        let free = |&x: &usize| takes_part(x) && !chosen.contains(&x);
        let first =
            |best: usize, x: usize| if RouterTopK::is_before(&scores[x], &scores[best]) { x } else { best };
        chosen.push(
            (0..scores.len()).filter(free).reduce(first).expect("k is at most the experts that take part"),
        );
    }
    chosen
}

fn sigmoid<T: Number>(x: T) -> T {
    let one = T::constant(1.0);
    one / (one + (-x).exp())
}
