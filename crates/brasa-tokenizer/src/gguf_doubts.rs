//! Facts about its tokenizer that a GGUF file may leave out and that change token ids.
//!
//! The reader has a default for each of them, as llama.cpp has. If a default may be wrong, a sentence says so.

use crate::gguf::GgufVocabulary;
use crate::pre;
use crate::vocabulary::TokenKind;

/// Texts of tokens that are added around texts, or that represent unknown text.
const ROLES: [&str; 10] = [
    "<s>",
    "<bos>",
    "</s>",
    "<eos>",
    "<unk>",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "<|endoftext|>",
    "<|begin_of_text|>",
];

impl GgufVocabulary {
    /// The doubts, each a sentence that begins with the key. `pre` is the caller's replacement for the file's pre-tokenizer.
    pub(crate) fn doubts(&self, pre: Option<&str>) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.model == "gpt2" && pre.is_none() && self.pre.is_none() {
            doubts.push(
                "tokenizer.ggml.pre: not in the file; text is cut by the rule `default`, which may not be the rule that the model learned with, and then it understands and writes worse\nhint: `--pre NAME` names the rule, such as llama-bpe, qwen2 or gpt-2; a file that is converted anew names it itself".to_owned(),
            );
        }
        self.doubt_kinds(&mut doubts);
        self.doubt_ids(&mut doubts);
        let rule = pre.or(self.pre.as_deref()).filter(|_| self.model == "gpt2");
        if let Some(rule) = rule.filter(|rule| pre::by_name(rule).is_some_and(|rule| rule.add_bos))
            && (self.add_bos, self.bos) == (None, None)
        {
            doubts.push(format!(
                "tokenizer.ggml.bos_token_id: not in the file; texts of `{rule}` begin with such a token, and nothing is put in front"
            ));
        }
        self.doubt_case(&mut doubts);
        doubts
    }

    fn doubt_kinds(&self, doubts: &mut Vec<String>) {
        let count = self.tokens.len();
        if self.token_types.is_empty() {
            doubts.push(
                "tokenizer.ggml.token_type: not in the file; control tokens such as `<|im_start|>` are read as text, but for those that are known to end a text\nhint: convert the model anew".to_owned(),
            );
        }
        for (key, found) in [("scores", self.scores.len()), ("token_type", self.token_types.len())] {
            if found > count {
                doubts.push(format!(
                    "tokenizer.ggml.{key}: {found} values found for {count} tokens; the last {} are passed over",
                    found - count
                ));
            }
        }
        let nan = self.scores.iter().take(count).position(|score| score.is_nan());
        if let Some(id) = nan.filter(|_| self.model == "llama") {
            doubts.push(format!("tokenizer.ggml.scores: NaN found for token {id}, expected a number"));
        }
        let kinds = self.token_types.iter().take(count).enumerate();
        let unknown: Vec<(usize, &i32)> = kinds.filter(|(_, kind)| !(0..=6).contains(*kind)).collect();
        if let Some((id, kind)) = unknown.first() {
            doubts.push(format!(
                "tokenizer.ggml.token_type: {kind} found for token {id}, expected 1 to 6; {} so marked count as unused",
                if unknown.len() == 1 { "the token".to_owned() } else { format!("{} tokens", unknown.len()) }
            ));
        }
    }

    /// Adds doubts about ids beyond the vocabulary, and about defaults for ids that the file does not name.
    fn doubt_ids(&self, doubts: &mut Vec<String>) {
        let count = self.tokens.len();
        let declared = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unknown),
            ("seperator_token_id", self.separator),
            ("padding_token_id", self.padding),
            ("cls_token_id", self.cls),
        ];
        for (key, id) in declared {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                doubts.push(format!(
                    "tokenizer.ggml.{key}: {id} found, and the vocabulary has {count} tokens; it counts as missing"
                ));
            }
        }
        let (bos, eos) = (self.bos.or(self.default_bos()), self.eos.or(self.default_eos()));
        let begins = self.add_bos.unwrap_or(matches!(self.model.as_str(), "llama" | "bert"));
        let ends = self.add_eos.unwrap_or(self.model == "t5");
        let taken = [
            (
                "bos_token_id",
                self.bos.or(self.cls.filter(|_| self.model == "bert")),
                self.default_bos(),
                begins,
            ),
            ("eos_token_id", self.eos, self.default_eos(), ends),
            ("unknown_token_id", self.unknown, self.default_unknown(), true),
            ("seperator_token_id", self.separator, self.default_separator(), true),
        ];
        for (key, declared, default, is_used) in taken {
            if let (None, Some(id), true) = (declared, default, is_used)
                && !self.has_role(id)
            {
                let token = self.tokens.get(id as usize);
                let token = token.map_or("no such token".to_owned(), |text| format!("{text:?}"));
                doubts.push(format!(
                    "tokenizer.ggml.{key}: not in the file; {id} is taken, which is {token} and does not look like it"
                ));
            }
        }
        for (key, adds, id, place) in
            [("add_bos_token", self.add_bos, bos, "bos"), ("add_eos_token", self.add_eos, eos, "eos")]
        {
            if adds == Some(true) && id.is_none() {
                doubts.push(format!(
                    "tokenizer.ggml.{key}: true, but there is no {place}_token_id; nothing is added"
                ));
            }
        }
    }

    /// Adds a doubt if a vocabulary has pieces with capitals and its file does not say whether text keeps capitals.
    fn doubt_case(&self, doubts: &mut Vec<String>) {
        if self.model != "bert" || self.lowercase.is_some() {
            return;
        }
        let has_capital = |text: &str| text.to_lowercase() != text;
        let is_piece = |id: usize| self.kind(id) == TokenKind::Normal && !self.tokens[id].starts_with('[');
        let capitals =
            (0..self.tokens.len()).filter(|id| is_piece(*id) && has_capital(&self.tokens[*id])).count();
        if capitals > 0 {
            doubts.push(format!(
                "tokenizer.normalizer.lowercase: not in the file; text is turned into small letters, though {capitals} pieces of the vocabulary have capitals"
            ));
        }
    }

    fn has_role(&self, id: u32) -> bool {
        let Some(text) = self.tokens.get(id as usize) else { return false };
        self.kind(id as usize).is_special() || ROLES.contains(&text.as_str())
    }
}
