use std::fmt::Display;

/// An error of a tokenizer, its input or its chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file or a set of metadata does not describe a tokenizer.
    #[error("{source_name}: {reason}")]
    Malformed {
        /// The file or the metadata key.
        source_name: String,
        /// A sentence that says what was found and what was expected.
        reason: String,
    },
    /// The description is valid, but Brasa does not implement it.
    #[error("{what} `{found}` is not supported\nhint: {hint}")]
    Unsupported {
        /// The part that is not supported, such as `tokenizer.ggml.pre`.
        what: String,
        /// The value that was found.
        found: String,
        /// A remedy for the user.
        hint: String,
    },
    /// The caller is strict, and the checkpoint leaves out a fact about its tokenizer.
    #[error("{doubt}")]
    Doubtful {
        /// The warning that a caller who is not strict gets.
        doubt: String,
    },
    /// A directory has no tokenizer that can be read.
    #[error("{directory}: no tokenizer.json\nhint: {hint}")]
    Missing {
        /// The directory that was searched.
        directory: String,
        /// A remedy.
        hint: String,
    },
    /// A file could not be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// A container could not be read.
    #[error(transparent)]
    Format(#[from] brasa_formats::FormatError),
    /// A text could not be turned into ids.
    #[error("text of {length_bytes} bytes cannot be tokenized: {reason}")]
    Encode {
        /// Length of the text in bytes.
        length_bytes: usize,
        /// The reason why the text could not be encoded.
        reason: String,
    },
    /// A token id is outside the vocabulary, or in a gap of it.
    #[error("token id {id} is not in the vocabulary of {size} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// Number of ids, gaps included.
        size: usize,
    },
    /// The checkpoint has no chat template, and none of the built-in forms fits its control tokens.
    #[error(
        "the checkpoint has no chat template, and its control tokens fit no built-in one\nhint: give one"
    )]
    NoTemplate,
    /// The chat template cannot be parsed, fails, or refuses the conversation.
    #[error("chat template: {reason}")]
    Template {
        /// The message of the template engine or of the template.
        reason: String,
    },
    /// A message of a conversation is wrong for every template.
    #[error("{field}: {reason}")]
    Message {
        /// The part of the conversation, such as `messages[2].tool_calls[0].function.arguments`.
        field: String,
        /// The problem that was found.
        reason: String,
    },
    /// A message lacks a field.
    #[error("{field} is missing")]
    MissingField {
        /// The field, such as `messages[2].role`.
        field: String,
    },
    /// A message has a part that is no text, such as an image.
    #[error("{field}: {reason}")]
    NotText {
        /// The type of the part, such as `messages[2].content[0].type`.
        field: String,
        /// The problem that was found.
        reason: String,
    },
    /// The chat template does not show which part of a conversation is the model's own text.
    #[error("messages[{turn}]: {reason}\nhint: {hint}")]
    Turns {
        /// Number of the assistant's message, from 0.
        turn: usize,
        /// The reason why the text of the turn cannot be found.
        reason: String,
        /// A remedy.
        hint: &'static str,
    },
    /// The chat template needs more work or memory than any conversation should.
    #[error(
        "chat template: stopped because it exceeded its {limit}\nhint: the template loops or recurses without end; give another one"
    )]
    TemplateLimit {
        /// Name of the exceeded limit.
        limit: &'static str,
    },
}

impl TokenizerError {
    pub(crate) fn malformed(source_name: impl Into<String>, reason: impl Display) -> Self {
        Self::Malformed { source_name: source_name.into(), reason: reason.to_string() }
    }

    pub(crate) fn message(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Message { field: field.into(), reason: reason.into() }
    }

    pub(crate) fn missing(directory: impl Into<String>, has_sentencepiece_model: bool) -> Self {
        let hint = if has_sentencepiece_model {
            "tokenizer.model alone is not read; save the tokenizer once with transformers, or use a GGUF file"
        } else {
            "download tokenizer.json into this directory, or use a GGUF file, which holds its tokenizer"
        };
        Self::Missing { directory: directory.into(), hint: hint.to_owned() }
    }

    pub(crate) fn unsupported(
        what: impl Into<String>,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Unsupported { what: what.into(), found: found.into(), hint: hint.into() }
    }
}

/// The result of functions in this crate.
pub type Result<T> = std::result::Result<T, TokenizerError>;
