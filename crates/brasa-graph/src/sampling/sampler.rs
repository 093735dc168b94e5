//! Draws tokens, row by row.

use super::candidates::Candidates;
use super::closing::{Closing, Left};
use super::exp::Shares;
use super::largest::largest;
use super::philox::{gumbel_bound, gumbel_of, words};
use super::{
    Distribution, DrawRules, Logprobs, Phase, SamplingError, SamplingParams, Stage, TokenMask, gumbel,
};

/// Scratch memory for drawing tokens. A draw depends on its rules and its row, never on earlier draws, so one sampler serves any
/// number of sequences.
///
/// After the first draw, only lists of log-probabilities allocate memory.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The row's logits after penalties, bias and mask.
    z: Vec<f32>,
    /// Times each token occurred in the window; zero between draws.
    counts: Vec<u32>,
    candidates: Candidates,
    /// The mask of the current row.
    words: Vec<u32>,
}

/// The logits of a draw, and its inputs besides the rules.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The model's logits, `[vocab_size]`.
    pub logits: &'a [f32],
    /// Position of the token to draw; selects the noise.
    pub position: u32,
    /// All tokens before the drawn one, prompt and drafts included.
    pub history: &'a [u32],
    /// Ids that a grammar allows: bit `id % 32` of word `id / 32`. Ids beyond the last word are forbidden.
    pub mask: Option<&'a [u32]>,
}

impl<'a> Row<'a> {
    /// A row without a mask.
    pub fn new(logits: &'a [f32], position: u32, history: &'a [u32]) -> Self {
        Self { logits, position, history, mask: None }
    }
}

/// A drawn token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draw {
    /// Id of the token.
    pub token: u32,
    /// Log-probability of the token, if requested.
    pub logprob: Option<f32>,
    /// The most probable tokens and their log-probabilities, in falling order: as many as requested, fewer if fewer survive the
    /// filters.
    pub top: Vec<(u32, f32)>,
    /// Entropy in nats of softmax of the model's logits, if requested.
    pub entropy: Option<f32>,
}

/// The tokens that filters have left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Survivors {
    /// All tokens with logits above −∞.
    All,
    /// The likeliest tokens, this many.
    First(usize),
}

impl Sampler {
    /// Draws the token of `row` by `rules`.
    ///
    /// # Errors
    ///
    /// [`SamplingError::NoToken`].
    pub fn draw(&mut self, rules: &DrawRules, row: &Row) -> Result<Draw, SamplingError> {
        let params = rules.params();
        let no_token = || {
            let not_finite = row.logits.iter().filter(|z| !z.is_finite()).count();
            SamplingError::NoToken { vocab_size: row.logits.len(), not_finite }
        };
        if rules.takes_largest(row.position) && row.mask.is_none() {
            let (max, token) = largest(row.logits);
            return max.is_finite().then(|| Draw { token, ..Draw::default() }).ok_or_else(no_token);
        }
        let mut changed = std::mem::take(&mut self.z);
        let draw = if rules.changes_logits(row.position) || row.mask.is_some() {
            self.draw_changed(rules, row, &mut changed)
        } else {
            // Without stages that change logits there is one phase.
            rules.phases(row.position).next().and_then(|phase| self.draw_from(params, row, row.logits, phase))
        };
        self.z = changed;
        draw.ok_or_else(no_token)
    }

    /// Draws from the row's logits after penalties, bias and mask, which are written to `z`; `None` if no logit is finite.
    fn draw_changed(&mut self, rules: &DrawRules, row: &Row, z: &mut Vec<f32>) -> Option<Draw> {
        let params = rules.params();
        z.clear();
        z.extend_from_slice(row.logits);
        for (number, phase) in rules.phases(row.position).enumerate() {
            for stage in phase.changes {
                if *stage == Stage::Dry {
                    repel(params, row, z);
                } else {
                    self.penalise(params, row, z);
                }
            }
            if number == 0 {
                forbid(rules, row, z);
            }
            if phase.is_last {
                return self.draw_from(params, row, z, phase);
            }
            let (max, _) = self.candidates.reset(z);
            if !max.is_finite() {
                return None;
            }
            let survivors = self.filter(params, z, max, phase.filters);
            let candidates = &mut self.candidates;
            let temperature = temperature(params, phase);
            let left = if let Some(stage) = phase.closing {
                Closing { candidates, params, z, max, survivors, temperature }.left(stage)
            } else {
                let scale = Shares::new(max, temperature).inverse_temperature();
                Left::of(candidates, z, max, survivors, scale)
            };
            for (z, id) in z.iter_mut().zip(0..) {
                *z = if left.has(*z, id) { *z * left.scale } else { f32::NEG_INFINITY };
            }
        }
        None
    }

    /// Draws from logits `z` by the filters of `phase`, the last one; `None` if no logit is finite.
    fn draw_from(&mut self, params: &SamplingParams, row: &Row, z: &[f32], phase: Phase<'_>) -> Option<Draw> {
        let (max, likeliest) = self.candidates.reset(z);
        if !max.is_finite() {
            return None;
        }
        let shares = Shares::new(max, temperature(params, phase));
        let survivors = self.filter(params, z, max, phase.filters);
        let token = match survivors {
            Survivors::First(1) => likeliest,
            Survivors::First(few) => self.draw_among(params, z, few, shares, row.position),
            Survivors::All => draw_among_all(params, z, shares, likeliest, row.position),
        };
        let mut draw = Draw { token, ..Draw::default() };
        match params.logprobs {
            None => {}
            Some(Logprobs { top, of: Distribution::Raw }) => self.report_raw(row.logits, top, &mut draw),
            Some(Logprobs { top, of: Distribution::Final }) if params.is_greedy() => {
                // All the probability lies on the likeliest.
                (draw.logprob, draw.top) = (Some(0.0), vec![(draw.token, 0.0); top.min(1)]);
            }
            Some(Logprobs { top, of: Distribution::Final }) => {
                self.report_final(z, survivors, shares, top, &mut draw);
            }
        }
        draw.entropy = params.entropy.then(|| self.candidates.entropy(row.logits, largest(row.logits).0));
        Some(draw)
    }

    /// Draws the token of `row` among the ids that `mask` allows, in place of the row's own mask. The mask accepts the drawn
    /// token.
    ///
    /// # Errors
    ///
    /// [`SamplingError::NoToken`], [`SamplingError::Mask`]. The mask has accepted no token then.
    pub fn draw_masked(
        &mut self,
        rules: &DrawRules,
        row: &Row,
        mask: &mut dyn TokenMask,
    ) -> Result<Draw, SamplingError> {
        let mut words = std::mem::take(&mut self.words);
        words.resize(row.logits.len().div_ceil(32), 0);
        let filled = mask.fill(&[], &mut words);
        let drawn = filled.and_then(|()| self.draw(rules, &Row { mask: Some(&words), ..*row }));
        self.words = words;
        let draw = drawn?;
        mask.accept(draw.token);
        Ok(draw)
    }

    /// Applies the penalties to the logits `z` of tokens in the window of the row's history.
    fn penalise(&mut self, params: &SamplingParams, row: &Row, z: &mut [f32]) {
        let Self { counts, .. } = self;
        counts.resize(z.len().max(counts.len()), 0);
        let window = params.repeat_last_n.unwrap_or(usize::MAX).min(row.history.len());
        let recent = &row.history[row.history.len() - window..];
        let known = || recent.iter().map(|&id| id as usize).filter(|&id| id < row.logits.len());
        known().for_each(|id| counts[id] += 1);
        for id in known() {
            // The first visit takes the count away: each distinct token is penalised once.
            let count = std::mem::take(&mut counts[id]);
            if count > 0 {
                let repeat = params.repeat_penalty;
                z[id] = if z[id] > 0.0 { z[id] / repeat } else { z[id] * repeat };
                z[id] -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
        }
    }

    /// The tokens that survive the filters and temperature in `stages`.
    fn filter(&mut self, params: &SamplingParams, z: &[f32], max: f32, stages: &[Stage]) -> Survivors {
        let candidates = &mut self.candidates;
        // The stage that leaves one is the last.
        if stages.last().is_some_and(|&stage| params.leaves_one(stage)) {
            return Survivors::First(1);
        }
        let mut survivors = Survivors::All;
        // Stages before the temperature see the logits as they are.
        let mut temperature = 1.0;
        // Top-k, wherever it stands in the order, keeps no more than this: nobody need count further.
        let most = if stages.contains(&Stage::TopK) { params.top_k } else { usize::MAX };
        let limit = |survivors| if let Survivors::First(few) = survivors { most.min(few) } else { most };
        for &stage in stages {
            match stage {
                Stage::Temperature => temperature = params.temperature,
                Stage::TopK => survivors = Survivors::First(limit(survivors)),
                Stage::MinP => {
                    let least = max + temperature * params.min_p.ln();
                    let ranks = 0..limit(survivors);
                    let kept =
                        ranks.take_while(|&rank| candidates.get(z, rank).is_some_and(|(z, _)| z >= least));
                    survivors = Survivors::First(kept.count().max(1));
                }
                Stage::TopP | Stage::TopPOfAll => {
                    let shares = Shares::new(max, temperature);
                    let mass = match survivors {
                        Survivors::First(few) if stage == Stage::TopP => candidates.mass(z, few, shares),
                        _ => candidates.mass_of_all(z, shares),
                    };
                    let reached = candidates.reach(z, limit(survivors), shares, params.top_p * mass);
                    survivors = Survivors::First(reached);
                }
                Stage::Penalties | Stage::Dry | Stage::TopNSigma | Stage::TypicalP | Stage::Xtc => {
                    unreachable!("{stage:?} parts phases")
                }
            }
        }
        survivors
    }

    /// The token with the largest score `x + g` among the first `few` candidates.
    fn draw_among(
        &mut self,
        params: &SamplingParams,
        z: &[f32],
        few: usize,
        shares: Shares,
        position: u32,
    ) -> u32 {
        let mut best = (f32::NEG_INFINITY, u32::MAX);
        for rank in 0..few {
            let Some((z, id)) = self.candidates.get(z, rank) else { break };
            let score = shares.exponent(z) + gumbel(params.seed, position, id);
            if score > best.0 || (score >= best.0 && id < best.1) {
                best = (score, id);
            }
        }
        best.1
    }

    fn report_raw(&mut self, logits: &[f32], top: usize, draw: &mut Draw) {
        let (max, _) = self.candidates.reset(logits);
        let shares = Shares::new(max, 1.0);
        let mass = if max.is_finite() {
            self.candidates.mass_of_all(logits, shares)
        } else {
            // Infinite logits have equal shares, all others none.
            logits.iter().filter(|&&z| z >= max).count() as f32
        };
        let log_mass = mass.ln();
        let logprob = |z: f32| shares.exponent(z) - log_mass;
        draw.logprob = logits.get(draw.token as usize).map(|&z| logprob(z));
        let listed = (0..top).map_while(|rank| self.candidates.get(logits, rank));
        draw.top = listed.map(|(z, id)| (id, logprob(z))).collect();
    }

    fn report_final(&mut self, z: &[f32], survivors: Survivors, shares: Shares, top: usize, draw: &mut Draw) {
        let candidates = &mut self.candidates;
        let (mass, few) = match survivors {
            Survivors::All => (candidates.mass_of_all(z, shares), usize::MAX),
            Survivors::First(few) => (candidates.mass(z, few, shares), few),
        };
        let log_mass = mass.ln();
        let logprob = |z: f32| shares.exponent(z) - log_mass;
        draw.logprob = Some(logprob(z[draw.token as usize]));
        let listed = (0..top.min(few)).map_while(|rank| candidates.get(z, rank));
        draw.top = listed.map(|(z, id)| (id, logprob(z))).collect();
    }
}

/// Draws among all tokens. Skips a token if a cheap bound of its noise shows that it cannot win.
fn draw_among_all(params: &SamplingParams, z: &[f32], shares: Shares, likeliest: u32, position: u32) -> u32 {
    let seed = params.seed;
    // The likeliest token's score is a good one to beat.
    let mut best = (gumbel(seed, position, likeliest), likeliest);
    for (quad, zs) in z.chunks(4).enumerate() {
        let words = words(seed, position, quad as u32);
        for (lane, (&z, word)) in zs.iter().zip(words).enumerate() {
            let base = shares.exponent(z);
            if base + gumbel_bound(word) < best.0 {
                continue;
            }
            let (score, id) = (base + gumbel_of(word), (4 * quad + lane) as u32);
            if score > best.0 || (score >= best.0 && id < best.1) {
                best = (score, id);
            }
        }
    }
    best.1
}

/// The temperature that applies to probabilities after a phase: 1 if the phase has no temperature.
fn temperature(params: &SamplingParams, phase: Phase<'_>) -> f32 {
    if phase.filters.contains(&Stage::Temperature) { params.temperature } else { 1.0 }
}

/// Subtracts DRY's penalties from the logits `z`.
fn repel(params: &SamplingParams, row: &Row, z: &mut [f32]) {
    for (id, penalty) in params.dry.penalties(row.history) {
        if let Some(z) = z.get_mut(id as usize) {
            *z -= penalty;
        }
    }
}

/// Adds the bias to the logits `z`. Sets the logits of suppressed ids, early end ids and ids that the row's mask forbids to −∞.
fn forbid(rules: &DrawRules, row: &Row, z: &mut [f32]) {
    for &(id, bias) in &rules.params().logit_bias {
        if let Some(z) = z.get_mut(id as usize) {
            *z += bias;
        }
    }
    for id in rules.forbidden(row.position) {
        if let Some(z) = z.get_mut(id as usize) {
            *z = f32::NEG_INFINITY;
        }
    }
    if let Some(mask) = row.mask {
        let words = mask.iter().copied().chain(std::iter::repeat(0));
        for (z, word) in z.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => z.fill(f32::NEG_INFINITY),
                word => {
                    let forbidden = z.iter_mut().enumerate().filter(|(lane, _)| word >> lane & 1 == 0);
                    forbidden.for_each(|(_, z)| *z = f32::NEG_INFINITY);
                }
            }
        }
    }
}
