use crate::{Result, TokenizerError};

/// Most ids of a vocabulary; a larger id means a hostile or broken file.
pub(crate) const MAX_IDS: u32 = 1 << 22;

/// The role of a token. The discriminants are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum TokenKind {
    /// A gap in the numbering: no token has this id.
    Missing = 0,
    /// A token of ordinary text.
    Normal = 1,
    /// The token for text that the vocabulary cannot express.
    Unknown = 2,
    /// A control token such as BOS or the end of a turn: never part of the text.
    Control = 3,
    /// A token that is matched in text before everything else.
    UserDefined = 4,
    /// A token that the model never uses.
    Unused = 5,
    /// One byte, spelt `<0xHH>`.
    Byte = 6,
}

impl TokenKind {
    /// The kind for a value of `tokenizer.ggml.token_type`. Unknown values become [`Unused`](Self::Unused).
    pub fn from_gguf(value: i32) -> Self {
        match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Unused,
        }
    }

    /// True if the token is left out of plain text.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// True if the token is searched for in the text before pre-tokenizing.
    pub(crate) fn is_added(self) -> bool {
        matches!(self, Self::Control | Self::Unknown | Self::UserDefined)
    }
}

/// The table of all tokens as their file spells them, in one allocation.
#[derive(Debug)]
pub struct Vocabulary {
    text: String,
    starts: Vec<u32>,
    kinds: Vec<TokenKind>,
}

impl Vocabulary {
    /// Builds the table from `(id, text, kind)` in any order. Of several texts for one id, the last is kept.
    pub(crate) fn new<'a>(entries: impl IntoIterator<Item = (u32, &'a str, TokenKind)>) -> Result<Self> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|entry| entry.0);
        let ids = entries.last().map_or(0, |entry| entry.0.saturating_add(1));
        if ids > MAX_IDS {
            return Err(TokenizerError::malformed(
                "vocabulary",
                format!("id {} found, at most {MAX_IDS} ids expected", ids - 1),
            ));
        }
        let mut vocabulary = Self {
            text: String::with_capacity(entries.iter().map(|entry| entry.1.len()).sum()),
            starts: Vec::with_capacity(ids as usize + 1),
            kinds: Vec::with_capacity(ids as usize),
        };
        let mut at = 0;
        for id in 0..ids {
            let mut found = None;
            while let Some(entry) = entries.get(at).filter(|entry| entry.0 == id) {
                found = Some((entry.1, entry.2));
                at += 1;
            }
            let (text, kind) = found.unwrap_or(("", TokenKind::Missing));
            vocabulary.starts.push(vocabulary.text.len() as u32);
            vocabulary.text.push_str(text);
            vocabulary.kinds.push(kind);
        }
        u32::try_from(vocabulary.text.len())
            .map_err(|_| TokenizerError::malformed("vocabulary", "more than 4 GiB of token text"))?;
        vocabulary.starts.push(vocabulary.text.len() as u32);
        Ok(vocabulary)
    }

    /// Number of ids, gaps included.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The token as its file spells it: `Ġthe`, `▁the`, `<0x0A>`; `None` for an id that names no token.
    pub fn text(&self, id: u32) -> Option<&str> {
        let kind = self.kind(id);
        let id = id as usize;
        (kind != TokenKind::Missing)
            .then(|| &self.text[self.starts[id] as usize..self.starts[id + 1] as usize])
    }

    /// The role of a token; [`TokenKind::Missing`] for an id beyond the vocabulary.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Missing)
    }

    /// Iterates over the tokens in the order of their ids, gaps left out.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        (0..self.len() as u32).filter_map(|id| Some((id, self.text(id)?, self.kind(id))))
    }
}
