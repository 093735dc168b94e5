//! Settings of an evaluation.

use crate::{ProbeKind, Probes};

/// Settings of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastEvalConfig {
    /// The text to continue.
    pub prompt: String,
    /// Tokens of each answer, at least 2.
    pub max_tokens: usize,
    /// Runs of each measurement, at least 1.
    pub runs: usize,
    /// Texts whose keys and values are computed before the requests that begin with them; if empty, the prompt alone.
    pub cache_prompts: Vec<String>,
    /// The events that are counted.
    pub probes: Probes,
}

impl Default for FastEvalConfig {
    fn default() -> Self {
        let kinds = [
            ProbeKind::Token,
            ProbeKind::Logprob,
            ProbeKind::Entropy,
            ProbeKind::Top,
            ProbeKind::Cache,
            ProbeKind::Memory,
        ];
        Self {
            prompt:
                "A dictionary lists the words of a language in the order of their letters. For each word it \
                     says how the word is spelled and spoken, what it means, and where it comes from. "
                    .into(),
            max_tokens: 64,
            runs: 3,
            cache_prompts: Vec::new(),
            probes: Probes::of(kinds),
        }
    }
}
