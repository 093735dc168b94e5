//! The stages of sampling, from logits to the tokens that are drawn from, and their order.

use std::fmt;

use super::SamplingError;

/// A stage of sampling.
///
/// A `match` over this enum is exhaustive on purpose: a device that draws by itself has to handle every stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The repeat, frequency and presence penalties.
    Penalties,
    /// Penalties on tokens that would continue a repetition ([`SamplingParams::dry`](super::SamplingParams::dry)).
    Dry,
    /// Divides logits by the temperature, so that later stages see tempered probabilities. With a
    /// [`SamplingParams::dynatemp_range`](super::SamplingParams::dynatemp_range), the entropy of the tokens that are
    /// left sets the temperature.
    Temperature,
    /// Keeps tokens whose logits are at most [`SamplingParams::top_n_sigma`](super::SamplingParams::top_n_sigma)
    /// standard deviations below the largest logit.
    TopNSigma,
    /// Keeps the [`SamplingParams::top_k`](super::SamplingParams::top_k) likeliest tokens.
    TopK,
    /// Keeps the tokens whose surprise is nearest to the mean surprise, up to a sum of probabilities of
    /// [`SamplingParams::typical_p`](super::SamplingParams::typical_p).
    TypicalP,
    /// Keeps the likeliest tokens up to [`SamplingParams::top_p`](super::SamplingParams::top_p), in probabilities of the tokens
    /// that are left.
    TopP,
    /// Keeps the likeliest tokens up to [`SamplingParams::top_p`](super::SamplingParams::top_p), in probabilities of the whole
    /// vocabulary, even after another filter.
    TopPOfAll,
    /// Keeps tokens with [`SamplingParams::min_p`](super::SamplingParams::min_p) times the likeliest token's probability.
    MinP,
    /// Removes all tokens above [`SamplingParams::xtc_threshold`](super::SamplingParams::xtc_threshold) but the least
    /// likely of them. The stage acts with [`SamplingParams::xtc_probability`](super::SamplingParams::xtc_probability)
    /// at each position.
    Xtc,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; MOST_STAGES] = [
        Self::Penalties,
        Self::Dry,
        Self::Temperature,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::TopPOfAll,
        Self::MinP,
        Self::Xtc,
    ];

    /// The stage's name, as llama.cpp spells it; `top_p_of_all` is Brasa's own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::Temperature => "temperature",
            Self::TopNSigma => "top_n_sigma",
            Self::TypicalP => "typ_p",
            Self::Xtc => "xtc",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::TopPOfAll => "top_p_of_all",
            Self::MinP => "min_p",
        }
    }

    /// True if the stage changes logits by the tokens that came before. False for stages that choose among tokens.
    pub const fn changes_logits(self) -> bool {
        matches!(self, Self::Penalties | Self::Dry)
    }

    /// The stage with llama.cpp's `name`, in any of its spellings.
    fn of_name(name: &str) -> Option<Self> {
        let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-')).collect();
        Some(match plain.to_ascii_lowercase().as_str() {
            "penalties" => Self::Penalties,
            "dry" => Self::Dry,
            "temperature" | "temp" => Self::Temperature,
            "topnsigma" => Self::TopNSigma,
            "typ" | "typp" | "typicalp" | "typical" => Self::TypicalP,
            "xtc" => Self::Xtc,
            "topk" => Self::TopK,
            "topp" | "nucleus" => Self::TopP,
            "toppofall" => Self::TopPOfAll,
            "minp" => Self::MinP,
            _ => return None,
        })
    }
}

/// Samplers of llama.cpp that Brasa does not have. They are off by default, and settings that turn them on are refused.
const OFF: [&str; 1] = ["adaptive_p"];

/// The reason for which mirostat is refused, as part of an error message.
pub const NO_MIROSTAT: &str = "its threshold depends on all tokens that were drawn before, and draws here depend on the seed and the text alone";

/// The letters by which llama.cpp names samplers, and the samplers' names.
const LETTERS: [(char, &str); 11] = [
    ('e', "penalties"),
    ('d', "dry"),
    ('s', "top_n_sigma"),
    ('k', "top_k"),
    ('y', "typ_p"),
    ('p', "top_p"),
    ('m', "min_p"),
    ('x', "xtc"),
    ('t', "temperature"),
    ('i', "infill"),
    ('a', "adaptive_p"),
];

/// Number of stages.
const MOST_STAGES: usize = 10;

/// The order of penalties, filters and temperature. The order matters: a temperature before top-p and min-p widens or narrows the
/// set of tokens that they keep.
///
/// A stage that is left out does nothing, whatever its parameter is. The default is [`TEMPERATURE_FIRST`](Self::TEMPERATURE_FIRST).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SamplingOrder {
    /// The stages of the order, the first `len` entries. All further entries are penalties, so that equal orders compare equal.
    stages: [Stage; MOST_STAGES],
    len: u8,
}

impl SamplingOrder {
    /// Penalties, DRY, temperature, top-n-sigma, top-p, top-k, typical-p, min-p, XTC. All filters use the tempered
    /// probabilities from which tokens are drawn.
    pub const TEMPERATURE_FIRST: Self = Self::of(&[
        Stage::Penalties,
        Stage::Dry,
        Stage::Temperature,
        Stage::TopNSigma,
        Stage::TopP,
        Stage::TopK,
        Stage::TypicalP,
        Stage::MinP,
        Stage::Xtc,
    ]);
    /// Penalties, DRY, top-n-sigma, top-k, typical-p, top-p of the remaining tokens, min-p, XTC, temperature: llama.cpp's chain.
    pub const LLAMA_CPP: Self = Self::of(&[
        Stage::Penalties,
        Stage::Dry,
        Stage::TopNSigma,
        Stage::TopK,
        Stage::TypicalP,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::Temperature,
    ]);
    /// Penalties, top-p, min-p, XTC, top-k, temperature: MLX-LM's order. DRY follows the penalties; top-n-sigma and typical-p, which
    /// MLX-LM does not have, come before top-p.
    pub const MLX: Self = Self::of(&[
        Stage::Penalties,
        Stage::Dry,
        Stage::TopNSigma,
        Stage::TypicalP,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::TopK,
        Stage::Temperature,
    ]);
    /// Penalties, temperature, top-k, min-p, top-p in probabilities of the whole vocabulary: Akunu's order.
    ///
    /// DRY follows the penalties. Top-n-sigma, typical-p and XTC, which Akunu does not have, come last: tokens that
    /// they remove would no longer count in the whole vocabulary.
    pub const AKUNU: Self = Self::of(&[
        Stage::Penalties,
        Stage::Dry,
        Stage::Temperature,
        Stage::TopK,
        Stage::MinP,
        Stage::TopPOfAll,
        Stage::TopNSigma,
        Stage::TypicalP,
        Stage::Xtc,
    ]);

    /// The orders that have names, each with its name.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("temperature-first", Self::TEMPERATURE_FIRST),
        ("llama-cpp", Self::LLAMA_CPP),
        ("mlx", Self::MLX),
        ("akunu", Self::AKUNU),
    ];

    /// The order of `stages`.
    ///
    /// # Errors
    ///
    /// [`SamplingError::StageTwice`] if a stage occurs twice; [`Stage::TopP`] and [`Stage::TopPOfAll`] count as one.
    pub fn new(stages: &[Stage]) -> Result<Self, SamplingError> {
        let kind = |stage| if stage == Stage::TopPOfAll { Stage::TopP } else { stage };
        for (place, &stage) in stages.iter().enumerate() {
            if stages[..place].iter().any(|&earlier| kind(earlier) == kind(stage)) {
                return Err(SamplingError::StageTwice { name: stage.name() });
            }
        }
        Ok(Self::of(stages))
    }

    /// The order of stages that llama.cpp calls `names`, in any of its spellings, or of Brasa's own `top_p_of_all`. Names of
    /// llama.cpp's samplers that Brasa does not have are ignored, since those samplers are off.
    ///
    /// # Errors
    ///
    /// [`SamplingError::Refused`] for mirostat, [`SamplingError::NoStage`] for any other unknown name, and
    /// [`SamplingError::StageTwice`] for a stage that is named twice.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, SamplingError> {
        let mut stages = Vec::new();
        for name in names {
            match Stage::of_name(name) {
                Some(stage) => stages.push(stage),
                None if name.to_ascii_lowercase().starts_with("mirostat") => {
                    return Err(SamplingError::Refused { name: "mirostat", reason: NO_MIROSTAT });
                }
                None if OFF.contains(&name.to_ascii_lowercase().replace('-', "_").as_str()) => {}
                None => return Err(SamplingError::NoStage { name: name.chars().take(40).collect() }),
            }
        }
        Self::new(&stages)
    }

    /// llama.cpp's name of the sampler with this letter.
    pub fn name_of_letter(letter: char) -> Option<&'static str> {
        LETTERS.iter().find(|(known, _)| *known == letter).map(|&(_, name)| name)
    }

    /// The stages of the order, first to last.
    pub fn stages(&self) -> &[Stage] {
        &self.stages[..usize::from(self.len)]
    }

    /// True if `stage` is in the order.
    pub fn has(&self, stage: Stage) -> bool {
        self.stages().contains(&stage)
    }

    const fn of(stages: &[Stage]) -> Self {
        let mut all = [Stage::Penalties; MOST_STAGES];
        let mut place = 0;
        while place < stages.len() {
            all[place] = stages[place];
            place += 1;
        }
        Self { stages: all, len: stages.len() as u8 }
    }

    /// The stages of the order for which `keeps` is true.
    pub(super) fn only(self, mut keeps: impl FnMut(Stage) -> bool) -> Self {
        let mut all = [Stage::Penalties; MOST_STAGES];
        let mut len = 0;
        for &stage in self.stages().iter().filter(|&&stage| keeps(stage)) {
            all[usize::from(len)] = stage;
            len += 1;
        }
        Self { stages: all, len }
    }

    /// Splits the stages of the order into phases. A phase ends before a stage that changes logits, and after a stage
    /// for which `closes` is true.
    pub(super) fn phases(&self, closes: impl Fn(Stage) -> bool) -> impl Iterator<Item = Phase<'_>> {
        let mut rest = Some(self.stages());
        std::iter::from_fn(move || {
            let stages = rest.take()?;
            let before = stages.iter().take_while(|stage| stage.changes_logits()).count();
            let (changes, stages) = stages.split_at(before);
            let goes_on = |stage: Stage| !stage.changes_logits() && !closes(stage);
            let filters = stages.iter().take_while(|&&stage| goes_on(stage)).count();
            let (filters, behind) = stages.split_at(filters);
            let (closing, behind) = match behind {
                [first, behind @ ..] if !first.changes_logits() => (Some(*first), behind),
                behind => (None, behind),
            };
            let is_last = closing.is_none() && behind.is_empty();
            rest = (!is_last).then_some(behind);
            Some(Phase { changes, filters, closing, is_last })
        })
    }
}

impl Default for SamplingOrder {
    fn default() -> Self {
        Self::TEMPERATURE_FIRST
    }
}

/// Names of stages with `;` between them.
impl fmt::Display for SamplingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, stage) in self.stages().iter().enumerate() {
            let between = if place > 0 { ";" } else { "" };
            write!(f, "{between}{}", stage.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for SamplingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SamplingOrder({self})")
    }
}

/// A part of a [`SamplingOrder`]: stages that change logits, then filters and temperature, then at most one closing
/// stage. The tokens that a phase leaves enter the next phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase<'a> {
    /// Stages that change logits before the filters.
    pub changes: &'a [Stage],
    /// Filters and temperature.
    pub filters: &'a [Stage],
    /// The stage that ends the phase, because it needs sums over all tokens that are left; `None` if the phase ends for
    /// another reason. The next phase begins with the tokens that this stage leaves.
    pub closing: Option<Stage>,
    /// True for the phase whose survivors are drawn from.
    pub is_last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_become_orders() {
        let order = |names: &str| SamplingOrder::from_names(names.split(';').filter(|name| !name.is_empty()));
        let own = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;adaptive_p;temperature";
        assert_eq!(order(own), Ok(SamplingOrder::LLAMA_CPP));
        assert_eq!(order("Temp;nucleus;top-k;MINP").unwrap().to_string(), "temperature;top_p;top_k;min_p");
        assert_eq!(order("").unwrap().stages(), []);
        let letters = |letters: &str| {
            SamplingOrder::from_names(letters.chars().filter_map(SamplingOrder::name_of_letter))
        };
        assert_eq!(letters("edskypmxt"), order(own));
        assert_eq!(SamplingOrder::name_of_letter('q'), None);
        let refused = |names: &str| order(names).unwrap_err().to_string();
        assert_eq!(
            refused("top_k;magic"),
            "there is no sampler `magic`; there are penalties, dry, temperature, top_n_sigma, top_k, typ_p, top_p, \
             top_p_of_all, min_p, xtc"
        );
        assert!(refused("mirostat_v2").starts_with("the sampler `mirostat` is not supported: its threshold"));
        assert_eq!(refused("top_k;temp;top-k"), "the sampler `top_k` is named twice");
        assert_eq!(refused("top_p;top_p_of_all"), "the sampler `top_p_of_all` is named twice");
    }

    #[test]
    fn stages_that_need_sums_end_a_phase() {
        use Stage::{Dry, Temperature, TopK, TopP, Xtc};
        let order = SamplingOrder::new(&[Dry, TopK, Xtc, TopP, Temperature]).unwrap();
        let phases: Vec<_> = order.phases(|stage| stage == Xtc || stage == Temperature).collect();
        let expected = [
            Phase { changes: &[Dry], filters: &[TopK], closing: Some(Xtc), is_last: false },
            Phase { changes: &[], filters: &[TopP], closing: Some(Temperature), is_last: false },
            Phase { changes: &[], filters: &[], closing: None, is_last: true },
        ];
        assert_eq!(phases, expected);
    }

    #[test]
    fn penalties_part_an_order() {
        use Stage::{MinP, Penalties, Temperature, TopK};
        let parts = |stages: &[Stage]| -> Vec<(usize, Vec<Stage>, bool)> {
            let order = SamplingOrder::new(stages).unwrap();
            order
                .phases(|_| false)
                .map(|phase| (phase.changes.len(), phase.filters.to_vec(), phase.is_last))
                .collect()
        };
        assert_eq!(parts(&[]), [(0, vec![], true)]);
        assert_eq!(parts(&[Penalties, TopK, MinP]), [(1, vec![TopK, MinP], true)]);
        assert_eq!(parts(&[TopK, Penalties]), [(0, vec![TopK], false), (1, vec![], true)]);
        assert_eq!(
            parts(&[TopK, Temperature, Penalties, MinP]),
            [(0, vec![TopK, Temperature], false), (1, vec![MinP], true)]
        );
    }
}
