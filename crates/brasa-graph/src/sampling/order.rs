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
    /// Division by the temperature: probabilities of later stages are tempered.
    Temperature,
    /// Keeps the [`SamplingParams::top_k`](super::SamplingParams::top_k) likeliest tokens.
    TopK,
    /// Keeps the likeliest tokens up to [`SamplingParams::top_p`](super::SamplingParams::top_p), in probabilities of the tokens
    /// that are left.
    TopP,
    /// Keeps the likeliest tokens up to [`SamplingParams::top_p`](super::SamplingParams::top_p), in probabilities of the whole
    /// vocabulary, even after another filter.
    TopPOfAll,
    /// Keeps tokens with [`SamplingParams::min_p`](super::SamplingParams::min_p) times the likeliest token's probability.
    MinP,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; MOST_STAGES] =
        [Self::Penalties, Self::Temperature, Self::TopK, Self::TopP, Self::TopPOfAll, Self::MinP];

    /// The stage's name, as llama.cpp spells it; `top_p_of_all` is Brasa's own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::TopPOfAll => "top_p_of_all",
            Self::MinP => "min_p",
        }
    }

    /// True if the stage changes logits by the tokens that came before. False for stages that choose among tokens.
    pub const fn changes_logits(self) -> bool {
        matches!(self, Self::Penalties)
    }

    /// The stage with llama.cpp's `name`, in any of its spellings.
    fn of_name(name: &str) -> Option<Self> {
        let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-')).collect();
        Some(match plain.to_ascii_lowercase().as_str() {
            "penalties" => Self::Penalties,
            "temperature" | "temp" => Self::Temperature,
            "topk" => Self::TopK,
            "topp" | "nucleus" => Self::TopP,
            "toppofall" => Self::TopPOfAll,
            "minp" => Self::MinP,
            _ => return None,
        })
    }
}

/// Samplers of llama.cpp that Brasa does not have. They are off by default, and settings that turn them on are refused.
const OFF: [&str; 6] = ["dry", "top_n_sigma", "typ_p", "typical_p", "xtc", "adaptive_p"];

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
const MOST_STAGES: usize = 6;

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
    /// Penalties, temperature, top-p, top-k, min-p, so that filters use the tempered probabilities that tokens are drawn from.
    pub const TEMPERATURE_FIRST: Self =
        Self::of(&[Stage::Penalties, Stage::Temperature, Stage::TopP, Stage::TopK, Stage::MinP]);
    /// Penalties, top-k, top-p of the remaining tokens, min-p, temperature: llama.cpp's chain.
    pub const LLAMA_CPP: Self =
        Self::of(&[Stage::Penalties, Stage::TopK, Stage::TopP, Stage::MinP, Stage::Temperature]);
    /// Penalties, top-p, min-p, top-k, temperature: MLX-LM's order.
    pub const MLX: Self =
        Self::of(&[Stage::Penalties, Stage::TopP, Stage::MinP, Stage::TopK, Stage::Temperature]);
    /// Penalties, temperature, top-k, min-p, top-p in probabilities of the whole vocabulary: Akunu's order.
    pub const AKUNU: Self =
        Self::of(&[Stage::Penalties, Stage::Temperature, Stage::TopK, Stage::MinP, Stage::TopPOfAll]);

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
    /// [`SamplingError::NoStage`] for an unknown name, [`SamplingError::StageTwice`] for a stage that is named twice.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, SamplingError> {
        let mut stages = Vec::new();
        for name in names {
            match Stage::of_name(name) {
                Some(stage) => stages.push(stage),
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

    /// The stages of the order, split into runs of filters between which logits change.
    pub(super) fn phases(&self) -> impl Iterator<Item = Phase<'_>> {
        let mut rest = Some(self.stages());
        std::iter::from_fn(move || {
            let stages = rest.take()?;
            let before = stages.iter().take_while(|stage| stage.changes_logits()).count();
            let (changes, stages) = stages.split_at(before);
            let filters = stages.iter().take_while(|stage| !stage.changes_logits()).count();
            let (filters, behind) = stages.split_at(filters);
            rest = (!behind.is_empty()).then_some(behind);
            Some(Phase { changes, filters, is_last: behind.is_empty() })
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

/// A run of filters. The tokens that survive enter the next phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase<'a> {
    /// Stages that change logits before the filters.
    pub changes: &'a [Stage],
    /// Filters and temperature.
    pub filters: &'a [Stage],
    /// True for the phase whose survivors are drawn from.
    pub is_last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_become_orders() {
        let order = |names: &str| SamplingOrder::from_names(names.split(';').filter(|name| !name.is_empty()));
        let own = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
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
            "there is no sampler `magic`; there are penalties, temperature, top_k, top_p, top_p_of_all, min_p"
        );
        assert_eq!(refused("top_k;temp;top-k"), "the sampler `top_k` is named twice");
        assert_eq!(refused("top_p;top_p_of_all"), "the sampler `top_p_of_all` is named twice");
    }

    #[test]
    fn penalties_part_an_order() {
        use Stage::{MinP, Penalties, Temperature, TopK};
        let parts = |stages: &[Stage]| -> Vec<(usize, Vec<Stage>, bool)> {
            let order = SamplingOrder::new(stages).unwrap();
            order.phases().map(|phase| (phase.changes.len(), phase.filters.to_vec(), phase.is_last)).collect()
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
