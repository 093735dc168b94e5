//! Rules of drawing besides penalties, top-k, top-p and min-p, under llama.cpp's names.

use brasa::DRY_BREAKERS;
use brasa::sampling::SamplingParams;
use clap::Args;
use serde_json::{Value, json};

use crate::values::{self, Limit};

/// Rules of drawing that are off by default.
#[derive(Debug, Clone, Args)]
pub struct RuleArguments {
    /// Draw from the most typical tokens whose probabilities sum to more than P; 1 for all [default: 1]
    #[arg(long = "typical", visible_alias = "typical-p", value_name = "P", value_parser = values::typical_p, allow_negative_numbers = true, hide_short_help = true)]
    pub typical_p: Option<f32>,
    /// Draw from tokens at most N standard deviations below the largest logit; 0 or -1 for all [default: 0]
    #[arg(long = "top-nsigma", visible_alias = "top-n-sigma", value_name = "N", value_parser = values::top_n_sigma, allow_negative_numbers = true, hide_short_help = true)]
    pub top_n_sigma: Option<f32>,
    /// Probability, at each token, that XTC leaves out the likeliest tokens; 0 for never [default: 0]
    #[arg(long, value_name = "P", value_parser = values::xtc_probability, allow_negative_numbers = true, hide_short_help = true)]
    pub xtc_probability: Option<f32>,
    /// Leave out (XTC) tokens of probability P or more, but for the least likely of them; above 0.5 none [default: 0.1]
    #[arg(long, value_name = "P", value_parser = values::xtc_threshold, allow_negative_numbers = true, hide_short_help = true)]
    pub xtc_threshold: Option<f32>,
    /// Raise or lower the temperature by up to F, by the entropy of the tokens; 0 for never [default: 0]
    #[arg(long, value_name = "F", value_parser = values::dynatemp_range, allow_negative_numbers = true, hide_short_help = true)]
    pub dynatemp_range: Option<f32>,
    /// Exponent of the entropy in the temperature of --dynatemp-range [default: 1]
    #[arg(long = "dynatemp-exp", value_name = "F", value_parser = values::dynatemp_exponent, allow_negative_numbers = true, hide_short_help = true)]
    pub dynatemp_exponent: Option<f32>,
    /// Factor of the penalty on tokens that continue a repetition (DRY); 0 for no penalty [default: 0]
    #[arg(long, value_name = "F", value_parser = values::dry_multiplier, allow_negative_numbers = true, hide_short_help = true)]
    pub dry_multiplier: Option<f32>,
    /// Factor of DRY's penalty for each further token of the repetition [default: 1.75]
    #[arg(long, value_name = "F", value_parser = values::dry_base, allow_negative_numbers = true, hide_short_help = true)]
    pub dry_base: Option<f32>,
    /// Repeated tokens from which DRY penalises the next one; further ones raise the penalty [default: 2]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub dry_allowed_length: Option<usize>,
    /// Recent tokens in which DRY looks for repetitions; -1 for all [default: 64]
    #[arg(long, value_name = "N", value_parser = values::limit, allow_negative_numbers = true, hide_short_help = true)]
    pub dry_penalty_last_n: Option<Limit>,
    /// Text that ends a repetition for DRY, in place of newline, colon, quote and asterisk; none for no text (may be repeated)
    #[arg(long = "dry-sequence-breaker", value_name = "TEXT", value_parser = values::breaker, allow_hyphen_values = true, hide_short_help = true)]
    pub dry_sequence_breakers: Vec<String>,
}

impl RuleArguments {
    /// Writes the rules that were given on the command line into `sampling`. Leaves out the breakers of DRY, which need
    /// the model's tokens ([`breakers`](Self::breakers)).
    pub fn apply(&self, sampling: &mut SamplingParams) {
        let dry = &mut sampling.dry;
        let numbers = [
            (self.typical_p, &mut sampling.typical_p),
            (self.top_n_sigma, &mut sampling.top_n_sigma),
            (self.xtc_probability, &mut sampling.xtc_probability),
            (self.xtc_threshold, &mut sampling.xtc_threshold),
            (self.dynatemp_range, &mut sampling.dynatemp_range),
            (self.dynatemp_exponent, &mut sampling.dynatemp_exponent),
            (self.dry_multiplier, &mut dry.multiplier),
            (self.dry_base, &mut dry.base),
        ];
        for (given, place) in numbers {
            *place = given.unwrap_or(*place);
        }
        dry.allowed_length = self.dry_allowed_length.unwrap_or(dry.allowed_length);
        dry.last_n = self.dry_penalty_last_n.unwrap_or(dry.last_n);
    }

    /// The texts that end a repetition for DRY: those given, or [`DRY_BREAKERS`] if none was given.
    pub fn breakers(&self) -> Vec<String> {
        let given = &self.dry_sequence_breakers;
        if given.is_empty() {
            return DRY_BREAKERS.map(str::to_owned).to_vec();
        }
        // `none` drops all texts before it, as in llama.cpp.
        let from = given.iter().rposition(|text| text == "none").map_or(0, |place| place + 1);
        given[from..].to_vec()
    }

    /// The rules that were given on the command line, as fields of a server's request: name and value.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let limit = |limit: Limit| limit.map_or(json!(-1), |number| json!(number));
        let breakers = (!self.dry_sequence_breakers.is_empty()).then(|| json!(self.breakers()));
        let named = [
            ("typical_p", self.typical_p.map(values::as_typed)),
            ("top_n_sigma", self.top_n_sigma.map(values::as_typed)),
            ("xtc_probability", self.xtc_probability.map(values::as_typed)),
            ("xtc_threshold", self.xtc_threshold.map(values::as_typed)),
            ("dynatemp_range", self.dynatemp_range.map(values::as_typed)),
            ("dynatemp_exponent", self.dynatemp_exponent.map(values::as_typed)),
            ("dry_multiplier", self.dry_multiplier.map(values::as_typed)),
            ("dry_base", self.dry_base.map(values::as_typed)),
            ("dry_allowed_length", self.dry_allowed_length.map(Value::from)),
            ("dry_penalty_last_n", self.dry_penalty_last_n.map(limit)),
            ("dry_sequence_breakers", breakers),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        rules: RuleArguments,
    }

    fn rules(words: &[&str]) -> RuleArguments {
        Command::parse_from([&["x"], words].concat()).rules
    }

    #[test]
    fn flags_are_llama_cpps() {
        let all = rules(&[
            "--typical",
            "0.9",
            "--top-nsigma",
            "1.5",
            "--xtc-probability",
            "0.5",
            "--xtc-threshold",
            "0.2",
            "--dynatemp-range",
            "0.25",
            "--dynatemp-exp",
            "2",
            "--dry-multiplier",
            "0.8",
            "--dry-base",
            "2",
            "--dry-allowed-length",
            "3",
            "--dry-penalty-last-n",
            "-1",
        ]);
        let mut sampling = SamplingParams::default();
        all.apply(&mut sampling);
        let dry = &sampling.dry;
        assert_eq!((sampling.typical_p, sampling.top_n_sigma, sampling.xtc_probability), (0.9, 1.5, 0.5));
        assert_eq!(
            (sampling.xtc_threshold, sampling.dynatemp_range, sampling.dynatemp_exponent),
            (0.2, 0.25, 2.0)
        );
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length, dry.last_n), (0.8, 2.0, 3, None));
        assert_eq!(all.fields().count(), 10);
        assert_eq!(all.fields().next(), Some(("typical_p", json!(0.9))));
        assert_eq!(rules(&["--top-n-sigma", "-1"]).top_n_sigma, Some(0.0));
        assert!(rules(&[]).fields().next().is_none());
    }

    #[test]
    fn breakers_take_the_place_of_the_default_ones() {
        assert_eq!(rules(&[]).breakers(), ["\n", ":", "\"", "*"]);
        let words = ["--dry-sequence-breaker", "\\n", "--dry-sequence-breaker", "- "];
        assert_eq!(rules(&words).breakers(), ["\n", "- "]);
        assert_eq!(rules(&["--dry-sequence-breaker", "none"]).breakers(), [""; 0]);
        let words = ["--typical", "1.5"];
        assert!(Command::try_parse_from([&["x"], &words[..]].concat()).is_err());
    }
}
