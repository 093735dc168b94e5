//! Failures of a command, and their exit codes.

use std::fmt;
use std::io;

use brasa::Error;
use brasa::engine::EngineError;
use brasa::tokenizer::TokenizerError;

/// The reason why a command did not finish.
#[derive(Debug)]
pub enum Failure {
    /// The work failed.
    Failed(String),
    /// The arguments make no sense.
    Usage(String),
    /// A device was lost for the rest of this process.
    DeviceLost(String),
    /// The user interrupted the command.
    Interrupted,
    /// The reader of standard output has closed it.
    OutputClosed,
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            // Asks a supervisor to try again: EX_TEMPFAIL of sysexits.h.
            Self::DeviceLost(_) => 75,
            Self::Interrupted => 130,
            Self::OutputClosed => 0,
        }
    }

    /// A failure that begins with a file's name.
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        Self::Failed(format!("{}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(message) | Self::Usage(message) | Self::DeviceLost(message) => f.write_str(message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl From<brasa::Error> for Failure {
    fn from(error: brasa::Error) -> Self {
        match flags(&error) {
            Some(flags) => Self::Failed(format!("{error} ({flags})")),
            None => Self::Failed(error.to_string()),
        }
    }
}

/// The flags for the remedy in the library's hint, to be printed after the hint.
fn flags(error: &brasa::Error) -> Option<&'static str> {
    match error {
        Error::Engine(EngineError::PromptTooLong { .. }) | Error::TextTooShort { .. } => Some("-c"),
        Error::Engine(EngineError::ContextFull { .. }) => Some("-c, -n, --context-policy"),
        Error::Tokenizer(TokenizerError::Unsupported { what, .. }) if what == "tokenizer.ggml.pre" => {
            Some("--pre")
        }
        Error::Tokenizer(TokenizerError::NoTemplate | TokenizerError::TemplateLimit { .. }) => {
            Some("--chat-template-file")
        }
        _ => None,
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Failed(error.to_string())
        }
    }
}
