//! Filling in the middle: prompts for models whose vocabulary has tokens for it.

use brasa::Model;
use brasa::tokenizer::{AddSpecial, ParseSpecial};

use crate::http::error::{ApiError, Result};

/// Texts of the tokens before the prefix, the suffix and the middle, for each family of models.
const FAMILIES: &[[&str; 3]] = &[
    // Qwen, DeepSeek Coder V2 Lite's relatives, Codestral Mamba's relatives.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    // SantaCoder.
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    // DeepSeek Coder.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // Code Llama.
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    // Granite, GLM.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];

/// Texts of the tokens before another file and before its name.
const FILE_MARKS: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// A gap to fill.
pub(crate) struct Fill<'a> {
    /// The text before the gap.
    pub before: &'a str,
    /// The text after the gap.
    pub after: &'a str,
    /// Other files: pairs of name and text.
    pub extra: &'a [(String, String)],
    /// The beginning of the text in the gap, which the answer continues.
    pub begun: &'a str,
}

impl Fill<'_> {
    /// The prompt: other files, prefix, suffix, and the token of the middle.
    ///
    /// # Errors
    ///
    /// 501 if the vocabulary has no tokens for filling gaps.
    pub fn encode(&self, model: &Model) -> Result<Vec<u32>> {
        let tokenizer = model.tokenizer();
        let id = |token: &str| tokenizer.token_to_id(token);
        let marks = FAMILIES
            .iter()
            .find_map(|[prefix, suffix, middle]| Some([id(prefix)?, id(suffix)?, id(middle)?]));
        let [prefix, suffix, middle] = marks.ok_or_else(|| {
            ApiError::not_implemented("the vocabulary of this model has no tokens for filling in the middle")
        })?;
        let encode = |text: &str| tokenizer.encode(text, AddSpecial::No, ParseSpecial::No);
        let mut ids = Vec::new();
        ids.extend(tokenizer.special_tokens().bos.filter(|bos| tokenizer.added_around().0.contains(bos)));
        let file_mark = FILE_MARKS.iter().find_map(|mark| id(mark));
        for (name, text) in self.extra {
            ids.extend(file_mark);
            ids.extend(encode(&format!("{name}\n{text}\n"))?);
        }
        ids.push(prefix);
        ids.extend(encode(self.before)?);
        ids.push(suffix);
        ids.extend(encode(self.after)?);
        ids.push(middle);
        ids.extend(encode(self.begun)?);
        Ok(ids)
    }
}
