//! Errors of grammars.

/// The reason why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A keyword of a JSON schema is not supported and would change which answers are valid.
    #[error("JSON schema, {place}: `{keyword}` is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has the keyword; `#` is the root.
        place: String,
    },
    /// A JSON schema is wrong or exceeds what is supported.
    #[error("JSON schema, {place}: {what}")]
    Schema {
        /// JSON pointer of the schema; `#` is the root.
        place: String,
        /// The mistake in the schema.
        what: String,
    },
    /// A part of a JSON schema is valid but not supported.
    #[error("JSON schema, {place}: {what}")]
    Unsupported {
        /// JSON pointer of the schema; `#` is the root.
        place: String,
        /// The unsupported keyword and the reason.
        what: String,
    },
    /// A GBNF grammar is wrong.
    #[error("GBNF grammar, line {line}, column {column}: {what}")]
    Gbnf {
        /// Line of the mistake, from 1.
        line: usize,
        /// Column of the mistake in characters, from 1.
        column: usize,
        /// The mistake in the grammar.
        what: String,
    },
    /// A Lark grammar or regular expression is wrong or uses an unsupported feature.
    #[error("{kind}: {what}")]
    Grammar {
        /// The kind of grammar.
        kind: &'static str,
        /// The mistake in the grammar.
        what: String,
    },
    /// A grammar exceeds a limit of size or depth.
    #[error("{what}: {count}, at most {most} are possible")]
    TooLarge {
        /// The part of the grammar that exceeds its limit.
        what: &'static str,
        /// The size or depth that was found.
        count: usize,
        /// The limit of the size or depth.
        most: usize,
    },
    /// A grammar takes too long to compile.
    #[error("{kind}: not compiled within {seconds} s")]
    TooSlow {
        /// The kind of grammar.
        kind: &'static str,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// Too many other grammars are being compiled, or wait to be.
    #[error("grammars of other requests take too long; none of the threads that compile grammars is free")]
    Busy,
    /// The result of compiling is no longer awaited.
    #[error("the grammar is not wanted any more")]
    Stopped,
    /// The vocabulary has no token that ends an answer.
    #[error("the model's vocabulary has no token that ends an answer, so that no grammar can end one")]
    NoEnd,
    /// The system provided no thread; the text is its error.
    #[error("no thread to compile the grammar: {0}")]
    NoThread(String),
}

impl GrammarError {
    /// Puts `whole`, the place of a schema in a larger text, before the error's place within the schema.
    pub(crate) fn within(mut self, whole: &str) -> Self {
        if let Self::Keyword { place, .. } | Self::Schema { place, .. } | Self::Unsupported { place, .. } =
            &mut self
        {
            *place = format!("{whole}, {place}");
        }
        self
    }
}
