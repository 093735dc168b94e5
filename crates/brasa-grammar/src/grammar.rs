//! The kinds of grammars.

use serde_json::Value;

/// A description of the texts that an answer may have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// JSON that is valid by a schema. A keyword that is not supported is an error that names the keyword and its place.
    JsonSchema(Value),
    /// JSON that is as close to a schema as possible: unsupported keywords are ignored, and `oneOf` is read as `anyOf`.
    LenientJsonSchema(Value),
    /// Any JSON value.
    AnyJson,
    /// Texts that match a regular expression as a whole, in the syntax of Rust's `regex` crate, without look-around.
    Regex(String),
    /// Texts of a Lark grammar, in `llguidance`'s dialect. The text begins with the rule `start`.
    Lark(String),
    /// Texts of a GBNF grammar, llama.cpp's notation. The text begins with the rule `root`.
    Gbnf(String),
    /// A text of any of these grammars. Its beginning decides which one it follows.
    OneOf(Vec<Grammar>),
    /// Texts of a grammar with or without a space before them, as speech models write them.
    AfterSpace(Box<Grammar>),
}

impl Grammar {
    /// Reads a grammar as llama.cpp does: Lark if the text begins with `%llguidance`, else GBNF.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.trim_start().starts_with("%llguidance") { Self::Lark(text) } else { Self::Gbnf(text) }
    }

    /// The name of the kind in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::LenientJsonSchema(_) => "JSON schema",
            Self::AnyJson => "JSON",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
            Self::OneOf(_) => "choice of grammars",
            Self::AfterSpace(grammar) => grammar.kind(),
        }
    }
}
