//! Which tokens begin a text, end it, or end a turn.

use crate::vocabulary::{TokenKind, Vocabulary};

/// The tokens with special roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// End of a text, as the tokenizer declares it.
    pub eos: Option<u32>,
    /// The token that fills unused places of a batch.
    pub pad: Option<u32>,
    /// The token for text that the vocabulary cannot express.
    pub unknown: Option<u32>,
    /// Every token that ends generation, ascending.
    ///
    /// The union of EOS, of every `eos_token_id` of the model's configuration and generation configuration (or of GGUF's eos, eot
    /// and eom ids), and of tokens with a text that ends a turn in some family: llama.cpp's list, with its two exceptions (see
    /// [`END_OF_GENERATION`]).
    pub end_of_generation: Vec<u32>,
}

/// Texts of tokens that end a turn or a text, in any family.
///
/// Two exceptions: if `<|return|>` and `<|call|>` exist (or `<|calls|>` and `<|flush|>`), `<|end|>` only ends a
/// message and the turn goes on; if `<|tool_response>` or `<|plamo:eos|>` exists, `</s>` is plain text.
pub const END_OF_GENERATION: [&str; 23] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|plamo:eos|>",
];

/// Texts of fill-in-the-middle tokens at which a completion ends.
const END_OF_FILL: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// The tokens that end generation: the declared ones, and those recognised by their text.
///
/// With `any_kind`, tokens marked as ordinary are recognised by their text too, because GGUF files often mark control tokens as
/// ordinary.
pub(crate) fn end_of_generation(
    vocabulary: &Vocabulary,
    declared: impl IntoIterator<Item = u32>,
    any_kind: bool,
) -> Vec<u32> {
    let believed = |kind: TokenKind| any_kind || kind.is_added();
    let mut found: Vec<(u32, &str)> = vocabulary
        .iter()
        .filter(|(_, text, kind)| {
            believed(*kind)
                && (END_OF_GENERATION.contains(text)
                    || (END_OF_FILL.contains(text) && *kind == TokenKind::Control))
        })
        .map(|(id, text, _)| (id, text))
        .collect();
    let has = |text: &str| found.iter().any(|token| token.1 == text);
    let end_is_inner = (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"));
    let s_is_text = has("<|tool_response>") || has("<|plamo:eos|>");
    found.retain(|token| !(end_is_inner && token.1 == "<|end|>" || s_is_text && token.1 == "</s>"));
    let mut ids: Vec<u32> = found.into_iter().map(|token| token.0).collect();
    ids.extend(declared.into_iter().filter(|id| vocabulary.text(*id).is_some()));
    ids.sort_unstable();
    ids.dedup();
    ids
}
