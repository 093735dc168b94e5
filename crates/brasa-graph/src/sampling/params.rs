//! Parameters of sampling, and checks of their ranges.

use super::{Dry, SamplingOrder, Stage};

/// Parameters of drawing tokens. The default takes the most probable token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Number of likeliest tokens that are kept; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest likeliest tokens with a sum of probabilities of at least this, and at least one token. 0 keeps the most
    /// probable token, 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Sum of probabilities that typical-p exceeds with as few tokens as possible. Tokens are taken in order of the
    /// distance between their surprise, −ln of the probability, and the mean surprise; all others are removed, even the
    /// likeliest token. 1 keeps all.
    ///
    /// Meister et al. 2022, arXiv:2202.00666.
    pub typical_p: f32,
    /// Keeps tokens whose logits are at most this many standard deviations below the largest logit; 0 keeps all.
    ///
    /// Tang et al. 2024, arXiv:2411.07641.
    pub top_n_sigma: f32,
    /// Probability that XTC acts at a position and removes likely tokens, as [`xtc_threshold`](Self::xtc_threshold)
    /// says; 0 turns XTC off.
    pub xtc_probability: f32,
    /// Probability from which XTC counts a token as likely. XTC removes all likely tokens but the least likely of them,
    /// at positions that [`xtc_probability`](Self::xtc_probability) selects. A threshold above 0.5 removes nothing.
    pub xtc_threshold: f32,
    /// Largest change of [`temperature`](Self::temperature), up or down, by the entropy of the tokens that are left; 0
    /// keeps the temperature as it is. A temperature of 0 is never raised.
    pub dynatemp_range: f32,
    /// Exponent *e* of a dynamic temperature `low + (high − low)·hᵉ`, with `low` and `high` the ends of its range.
    /// *h* is the entropy of the tokens that are left, divided by the largest possible entropy.
    pub dynatemp_exponent: f32,
    /// Parameters of DRY: penalties on tokens that would continue a repetition.
    pub dry: Dry,
    /// Divides the positive logits of tokens that occurred, and multiplies the negative ones; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted from a token's logit for each time it occurred.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of each token that occurred.
    pub presence_penalty: f32,
    /// Number of latest tokens, prompt included, that the penalties consider; `None` for all.
    pub repeat_last_n: Option<usize>,
    /// Added to logits, by token id; −∞ forbids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Ids that are never drawn.
    pub suppressed: Vec<u32>,
    /// Tokens to draw before an end id may be drawn; see [`DrawRules::with_ends`](super::DrawRules::with_ends).
    pub min_tokens: usize,
    /// Seed of the noise.
    pub seed: u64,
    /// The order of penalties, filters and temperature. Stages that the order leaves out have no effect.
    pub order: SamplingOrder,
    /// Log-probabilities to report.
    pub logprobs: Option<Logprobs>,
    /// True to report the entropy of the softmax of the model's unchanged logits.
    pub entropy: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry: Dry::default(),
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: None,
            logit_bias: Vec::new(),
            suppressed: Vec::new(),
            min_tokens: 0,
            seed: 0,
            order: SamplingOrder::default(),
            logprobs: None,
            entropy: false,
        }
    }
}

/// Log-probabilities to report with each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logprobs {
    /// Number of likeliest tokens that are listed beside the drawn one.
    pub top: usize,
    /// The distribution that log-probabilities are taken from.
    pub of: Distribution,
}

/// A distribution over the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Distribution {
    /// Softmax of the model's unchanged logits.
    #[default]
    Raw,
    /// The distribution that the token was drawn from: after penalties, masks, temperature and filters.
    Final,
}

/// The reason why nothing can be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter is outside its range.
    #[error("{name} {value}: expected {expected}")]
    Parameter {
        /// Name of the parameter.
        name: &'static str,
        /// Value of the parameter.
        value: f32,
        /// Range of the parameter, and how to switch it off.
        expected: &'static str,
    },
    /// A parameter names a token id that the vocabulary does not have.
    #[error("{name} of token {id}: the vocabulary has {vocab_size} tokens")]
    Token {
        /// Name of the parameter.
        name: &'static str,
        /// The token id.
        id: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// An order names a sampler that Brasa knows by name and does not have.
    #[error("the sampler `{name}` is not supported: {reason}")]
    Refused {
        /// The sampler's name.
        name: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// A sequence breaker of DRY is empty or too long, or there are too many breakers.
    #[error("dry sequence breakers: {reason}")]
    Breaker {
        /// The problem and what was expected, as a sentence for people.
        reason: String,
    },
    /// No sampler has this name.
    #[error("there is no sampler `{name}`; there are {}", Stage::ALL.map(Stage::name).join(", "))]
    NoStage {
        /// The name, cut if it is long.
        name: String,
    },
    /// An order contains a sampler twice.
    #[error("the sampler `{name}` is named twice")]
    StageTwice {
        /// The sampler's name.
        name: &'static str,
    },
    /// Bias, suppression and grammar leave no token, or the model's logits are NaN or infinite.
    #[error(
        "no token can be drawn: of {vocab_size} logits {not_finite} are not finite and the rest is forbidden"
    )]
    NoToken {
        /// Number of logits.
        vocab_size: usize,
        /// Number of logits that are infinite or NaN.
        not_finite: usize,
    },
    /// The mask of a grammar could not be computed.
    #[error("the grammar allows no next token: {reason}")]
    Mask {
        /// The reason why the mask could not be computed.
        reason: String,
    },
}

impl SamplingParams {
    /// True if more than a token is reported of each draw, so that the host has to read the logits.
    pub fn reports_logits(&self) -> bool {
        self.logprobs.is_some() || self.entropy
    }

    /// True if the draw takes the most probable of the tokens that are left, without noise.
    pub fn is_greedy(&self) -> bool {
        self.order.stages().iter().any(|&stage| self.leaves_one(stage))
    }

    /// The order without stages that do nothing: stages with a neutral parameter, and stages after one that leaves a single
    /// token.
    pub fn active_order(&self) -> SamplingOrder {
        let mut is_open = true;
        let active = self.order.only(|stage| {
            let keeps = is_open && self.is_active(stage);
            is_open &= !self.leaves_one(stage);
            keeps
        });
        // The likeliest token survives top-n-sigma, so the stage does nothing in front of one that keeps this token alone.
        let stages = active.stages();
        let ends_greedy = stages.last().is_some_and(|&stage| self.leaves_one(stage));
        let changes =
            |&stage: &Stage| stage.changes_logits() || matches!(stage, Stage::TypicalP | Stage::Xtc);
        let from = stages.iter().rposition(changes).map_or(0, |place| place + 1);
        let mut place = 0;
        active.only(|stage| {
            place += 1;
            !(ends_greedy && place > from && stage == Stage::TopNSigma)
        })
    }

    /// True if `stage` keeps the likeliest token alone.
    pub(super) fn leaves_one(&self, stage: Stage) -> bool {
        match stage {
            Stage::Temperature => self.temperature == 0.0,
            Stage::TopP | Stage::TopPOfAll => self.top_p == 0.0,
            Stage::Penalties
            | Stage::Dry
            | Stage::TopNSigma
            | Stage::TopK
            | Stage::TypicalP
            | Stage::MinP
            | Stage::Xtc => false,
        }
    }

    /// True if `stage` ends a phase, because it needs sums over all tokens that are left.
    pub(super) fn closes(&self, stage: Stage) -> bool {
        match stage {
            Stage::TopNSigma | Stage::TypicalP | Stage::Xtc => true,
            Stage::Temperature => self.dynatemp_range > 0.0 && self.temperature > 0.0,
            Stage::Penalties | Stage::Dry | Stage::TopK | Stage::TopP | Stage::TopPOfAll | Stage::MinP => {
                false
            }
        }
    }

    fn is_active(&self, stage: Stage) -> bool {
        match stage {
            Stage::Penalties => {
                let neutral = [self.repeat_penalty - 1.0, self.frequency_penalty, self.presence_penalty];
                neutral.iter().any(|&x| x != 0.0)
            }
            Stage::Dry => self.dry.is_on(),
            Stage::Temperature => self.temperature - 1.0 != 0.0 || self.dynatemp_range > 0.0,
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TypicalP => self.typical_p < 1.0,
            Stage::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Stage::TopK => self.top_k > 0,
            Stage::TopP | Stage::TopPOfAll => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
        }
    }

    /// Checks every parameter's range.
    ///
    /// # Errors
    ///
    /// [`SamplingError::Parameter`], naming the first that is outside.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = |x: f32| x.is_finite();
        let share = |x: f32| (0.0..=1.0).contains(&x);
        let checks = [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0 && finite(self.temperature),
                "0 (greedy) or more",
            ),
            ("top-p", self.top_p, share(self.top_p), "0 (the likeliest token) to 1 (off)"),
            ("min-p", self.min_p, share(self.min_p), "0 (off) to 1"),
            ("typical-p", self.typical_p, share(self.typical_p), "0 to 1 (off)"),
            (
                "top-n-sigma",
                self.top_n_sigma,
                self.top_n_sigma >= 0.0 && finite(self.top_n_sigma),
                "0 (off) or more",
            ),
            ("xtc-probability", self.xtc_probability, share(self.xtc_probability), "0 (off) to 1"),
            ("xtc-threshold", self.xtc_threshold, share(self.xtc_threshold), "0 to 1; more than 0.5 is off"),
            (
                "dynatemp-range",
                self.dynatemp_range,
                self.dynatemp_range >= 0.0
                    && finite(self.dynatemp_range)
                    && finite(self.temperature + self.dynatemp_range),
                "0 (off) or more",
            ),
            (
                "dynatemp-exponent",
                self.dynatemp_exponent,
                self.dynatemp_exponent >= 0.0 && finite(self.dynatemp_exponent),
                "0 or more",
            ),
            (
                "dry-multiplier",
                self.dry.multiplier,
                self.dry.multiplier >= 0.0 && finite(self.dry.multiplier),
                "0 (off) or more",
            ),
            (
                "dry-base",
                self.dry.base,
                self.dry.base >= 0.0 && finite(self.dry.base),
                "1 or more; less is off",
            ),
            (
                "repeat penalty",
                self.repeat_penalty,
                self.repeat_penalty > 0.0 && finite(self.repeat_penalty),
                "more than 0; 1 is off",
            ),
            (
                "frequency penalty",
                self.frequency_penalty,
                finite(self.frequency_penalty),
                "a number; 0 is off",
            ),
            ("presence penalty", self.presence_penalty, finite(self.presence_penalty), "a number; 0 is off"),
        ];
        for (name, value, valid, expected) in checks {
            if !valid {
                return Err(SamplingError::Parameter { name, value, expected });
            }
        }
        let forced = |&&(_, bias): &&(u32, f32)| bias.is_nan() || bias == f32::INFINITY;
        match self.logit_bias.iter().find(forced) {
            Some(&(_, value)) => Err(SamplingError::Parameter {
                name: "logit bias",
                value,
                expected: "a number, or −inf to forbid",
            }),
            None => Ok(()),
        }
    }

    /// Checks that the vocabulary has every token id that the parameters name. Draws ignore ids that it does not have.
    ///
    /// # Errors
    ///
    /// [`SamplingError::Token`], naming the first id that the vocabulary does not have.
    pub fn validate_ids(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let biased = self.logit_bias.iter().map(|&(id, _)| ("logit bias", id));
        let mut named = biased.chain(self.suppressed.iter().map(|&id| ("suppression", id)));
        match named.find(|&(_, id)| id as usize >= vocab_size) {
            Some((name, id)) => Err(SamplingError::Token { name, id, vocab_size }),
            None => Ok(()),
        }
    }
}
