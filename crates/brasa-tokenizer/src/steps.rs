//! The pre-tokenizer of a `tokenizer.json` as a flat list of steps, and its name in GGUF.

use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;

use crate::pre::{self, Cut};
use crate::{Result, TokenizerError};

/// One step of a pre-tokenizer.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// A cut at every match of a pattern.
    Split { pattern: &'a str, behavior: SplitDelimiterBehavior, invert: bool },
    /// A leading space for a text that has none.
    SpacePrefix,
    /// Cuts by GPT-2's pattern.
    Gpt2,
    /// Spells bytes in GPT-2's alphabet; cuts nothing.
    Bytes,
    /// Any other pre-tokenizer of the `tokenizers` crate.
    Other(&'a Value),
}

/// The steps of a `pre_tokenizer`, sequences unrolled.
///
/// # Errors
///
/// [`TokenizerError::Malformed`] for a split whose behaviour is not known.
pub fn steps(pre_tokenizer: &Value) -> Result<Vec<Step<'_>>> {
    let mut steps = Vec::new();
    collect(pre_tokenizer, &mut steps)?;
    Ok(steps)
}

fn collect<'a>(value: &'a Value, steps: &mut Vec<Step<'a>>) -> Result<()> {
    match (value["type"].as_str(), value["pattern"]["Regex"].as_str()) {
        (Some("Sequence"), _) => {
            value["pretokenizers"]
                .as_array()
                .into_iter()
                .flatten()
                .try_for_each(|inner| collect(inner, steps))?;
        }
        (Some("Split"), Some(pattern)) => {
            let behavior = serde_json::from_value(value["behavior"].clone())
                .map_err(|error| TokenizerError::malformed("tokenizer.json pre_tokenizer", error))?;
            let invert = value["invert"].as_bool().unwrap_or(false);
            steps.push(Step::Split { pattern, behavior, invert });
        }
        (Some("ByteLevel"), _) => {
            let flag = |name: &str| value[name].as_bool().unwrap_or(true);
            steps.extend(flag("add_prefix_space").then_some(Step::SpacePrefix));
            steps.extend(flag("use_regex").then_some(Step::Gpt2));
            steps.push(Step::Bytes);
        }
        _ if value.is_null() => {}
        _ => steps.push(Step::Other(value)),
    }
    Ok(())
}

/// The names that are recognised. Of names for the same cuts, the best known comes first.
const NAMES: [&str; 9] = [
    "llama-bpe",
    "dbrx",
    "qwen2",
    "qwen35",
    "tekken",
    "gpt-4o",
    "granite-embed-multi-97m",
    "gpt-2",
    "starcoder",
];

/// The value of `tokenizer.ggml.pre` for a pre-tokenizer with the same cuts as the one in this `tokenizer.json`.
///
/// llama.cpp's converter recognises published tokenizers by a hash of some encoded text. This function compares the rules
/// themselves, so that a new vocabulary under known rules is recognised too.
///
/// # Errors
///
/// A description of the steps of a pre-tokenizer without a name, for a message.
pub fn pre_tokenizer_name(tokenizer: &Value) -> std::result::Result<&'static str, String> {
    let steps = steps(&tokenizer["pre_tokenizer"]).map_err(|error| error.to_string())?;
    let ignore_merges = tokenizer["model"]["ignore_merges"] == true;
    let cuts: Option<Vec<String>> = steps.iter().filter_map(cut).collect();
    let known = cuts.and_then(|cuts| {
        NAMES.into_iter().find(|name| {
            pre::by_name(name).is_some_and(|pre| {
                let same = |(cut, found): (&Cut, &String)| matches!(cut, Cut::Pattern(x) if x == found);
                pre.ignore_merges == ignore_merges
                    && pre.cuts.len() == cuts.len()
                    && pre.cuts.iter().zip(&cuts).all(same)
            })
        })
    });
    known.ok_or_else(|| {
        let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
        let merges = if ignore_merges { "ignore_merges, " } else { "" };
        if steps.is_empty() { "none".into() } else { format!("{merges}{}", steps.join(", ")) }
    })
}

/// The pattern by which a step cuts; `Some(None)` for a step that no named pre-tokenizer has; `None` for a step that cuts
/// nothing.
#[expect(clippy::option_option, reason = "cuts nothing, or cuts in an unknown way")]
fn cut(step: &Step<'_>) -> Option<Option<String>> {
    use SplitDelimiterBehavior::{Isolated, Removed};
    match step {
        Step::Bytes => None,
        Step::Gpt2 => Some(Some(pre::GPT2.to_owned())),
        // To isolate the matches, and to remove what is between them, are the same where everything matches.
        Step::Split { pattern, behavior: Isolated, invert: false }
        | Step::Split { pattern, behavior: Removed, invert: true } => {
            // Some files hold line breaks themselves, others their escapes.
            Some(Some(pattern.replace('\r', "\\r").replace('\n', "\\n")))
        }
        Step::Other(value) if value["type"] == "Digits" && value["individual_digits"] == true => {
            Some(Some(pre::DIGIT.to_owned()))
        }
        Step::Split { .. } | Step::SpacePrefix | Step::Other(_) => Some(None),
    }
}
