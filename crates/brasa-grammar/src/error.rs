//! Errors of grammars.

/// The reason why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A keyword of a JSON schema that would change which answers are right, and that is not supported.
    #[error("JSON schema, {place}: `{keyword}` is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has the keyword; `#` is the whole.
        place: String,
    },
    /// A JSON schema that is wrong or beyond what is supported.
    #[error("JSON schema, {place}: {what}")]
    Schema {
        /// JSON pointer of the schema; `#` is the whole.
        place: String,
        /// The mistake in the schema.
        what: String,
    },
    /// A part of a JSON schema that is right and not supported.
    #[error("JSON schema, {place}: {what}")]
    Unsupported {
        /// JSON pointer of the schema; `#` is the whole.
        place: String,
        /// The keyword that is not supported, and why.
        what: String,
    },
    /// A GBNF grammar that is wrong.
    #[error("GBNF grammar, line {line}, column {column}: {what}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The mistake in the grammar.
        what: String,
    },
    /// A Lark grammar or regular expression that is wrong, or that uses something not supported.
    #[error("{kind}: {what}")]
    Grammar {
        /// The kind of grammar.
        kind: &'static str,
        /// The mistake in the grammar.
        what: String,
    },
    /// A grammar beyond a limit of size or depth.
    #[error("{what}: {count}, at most {most} are possible")]
    TooLarge {
        /// The part of the grammar that exceeds its limit.
        what: &'static str,
        /// How much.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// A grammar that takes too long to compile.
    #[error("{kind}: not compiled within {seconds} s")]
    TooSlow {
        /// The kind of grammar.
        kind: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// Too many other grammars are being compiled, or wait to be.
    #[error("grammars of other requests take too long; none of the threads that compile grammars is free")]
    Busy,
    /// A grammar whose result is no longer awaited.
    #[error("the grammar is not wanted any more")]
    Stopped,
    /// A vocabulary that no answer can end with.
    #[error("the model's vocabulary has no token that ends an answer, so that no grammar can end one")]
    NoEnd,
    /// The system gave no thread.
    #[error("no thread to compile the grammar: {0}")]
    NoThread(String),
}

impl GrammarError {
    /// The error with the place of the whole schema in front of the place in it.
    pub(crate) fn within(mut self, whole: &str) -> Self {
        if let Self::Keyword { place, .. } | Self::Schema { place, .. } | Self::Unsupported { place, .. } =
            &mut self
        {
            *place = format!("{whole}, {place}");
        }
        self
    }
}
