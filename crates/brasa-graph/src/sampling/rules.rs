//! The data that determine how a sequence's tokens are drawn.

use super::philox::xtc_chance;
use super::{Phase, SamplingError, SamplingOrder, SamplingParams, Stage};

/// Sampling parameters with checked ranges, and the end ids that are forbidden before the minimum length.
///
/// Rules belong to one generation and do not change while it runs, so a device may keep its own copy of them.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawRules {
    params: SamplingParams,
    /// The stages of the order that have an effect.
    active: SamplingOrder,
    /// The active stages at positions where XTC removes nothing.
    without_xtc: SamplingOrder,
    end_ids: Vec<u32>,
    ends_from: u32,
}

impl DrawRules {
    /// Rules without end ids.
    ///
    /// # Errors
    ///
    /// [`SamplingError::Parameter`], naming the first parameter outside its range.
    pub fn new(params: SamplingParams) -> Result<Self, SamplingError> {
        params.validate()?;
        let active = params.active_order();
        let without_xtc = active.only(|stage| stage != Stage::Xtc);
        Ok(Self { active, without_xtc, params, end_ids: Vec::new(), ends_from: 0 })
    }

    /// Forbids `end_ids` until the answer, which begins at position `answer_from`, has
    /// [`min_tokens`](SamplingParams::min_tokens) tokens.
    #[must_use]
    pub fn with_ends(mut self, end_ids: Vec<u32>, answer_from: u32) -> Self {
        let min_tokens = u32::try_from(self.params.min_tokens).unwrap_or(u32::MAX);
        (self.end_ids, self.ends_from) = (end_ids, answer_from.saturating_add(min_tokens));
        self
    }

    /// The checked parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The end ids, which may end an answer from position [`ends_from`](Self::ends_from) on.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The first position at which an end id may be drawn.
    pub fn ends_from(&self) -> u32 {
        self.ends_from
    }

    /// True if the token at `position` and every later one is the token with the largest logit, whatever was drawn before. A mask
    /// may still forbid that token.
    pub fn takes_largest(&self, position: u32) -> bool {
        self.params.is_greedy()
            && !self.params.reports_logits()
            && !self.changes_logits(position)
            // XTC may act at a later position.
            && !self.active.has(Stage::Xtc)
    }

    /// True if a stage, bias or forbidden ids may change logits of the token at `position`.
    pub(super) fn changes_logits(&self, position: u32) -> bool {
        let changes = |&stage: &Stage| stage.changes_logits() || self.params.closes(stage);
        !self.params.logit_bias.is_empty()
            || self.active_at(position).stages().iter().any(changes)
            || self.forbidden(position).next().is_some()
    }

    /// True if earlier tokens change logits: a penalty or DRY is on.
    pub fn has_penalties(&self) -> bool {
        self.active.has(Stage::Penalties) || self.active.has(Stage::Dry)
    }

    /// The stages that have an effect at `position`, split into phases; at least one phase. Logits change only between
    /// phases.
    pub fn phases(&self, position: u32) -> impl Iterator<Item = Phase<'_>> {
        self.active_at(position).phases(|stage| self.params.closes(stage))
    }

    /// The stages that have an effect at `position`. XTC acts if the position's random number is below
    /// [`xtc_probability`](SamplingParams::xtc_probability).
    fn active_at(&self, position: u32) -> &SamplingOrder {
        let acts = || xtc_chance(self.params.seed, position) < self.params.xtc_probability;
        if self.active.has(Stage::Xtc) && !acts() { &self.without_xtc } else { &self.active }
    }

    /// Ids that cannot be drawn at `position`: suppressed ids, and end ids before the minimum length.
    pub fn forbidden(&self, position: u32) -> impl Iterator<Item = u32> + '_ {
        let early_ends = if position < self.ends_from { &self.end_ids[..] } else { &[] };
        self.params.suppressed.iter().chain(early_ends).copied()
    }
}
