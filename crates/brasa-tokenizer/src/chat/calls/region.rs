//! Reads the text after a mark: a call in one of several forms.

use super::Step;
use super::headed::{Head, HeadedCall};
use super::literal::{Dialect, LiteralCall, PYTHON};
use super::object::ObjectCall;
use super::sink::Sink;
use super::tagged::{TaggedCall, Tags};

/// The form of the text after a mark.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// JSON objects. `otherwise` is the form of text that does not begin with a brace.
    Json { otherwise: Otherwise },
    /// A name and literals.
    Literal(&'static Dialect),
    /// A name and arguments in tags.
    Tagged(&'static Tags),
}

/// The form of a call that does not begin with a brace.
#[derive(Clone, Copy, Debug)]
pub enum Otherwise {
    /// The text is not a call.
    Nothing,
    /// A name followed by a JSON object.
    Headed(Head),
    /// A call as Python writes it.
    Python,
}

/// Reads one call.
#[derive(Clone, Debug)]
pub enum Region {
    /// The form is not known yet. Only space and at most one bracket have come.
    Open {
        otherwise: Otherwise,
        in_list: bool,
    },
    Object(ObjectCall),
    Headed(HeadedCall),
    Literal(LiteralCall),
    Tagged(TaggedCall),
}

impl Region {
    /// A reader for a call in `form`.
    pub fn new(form: Form) -> Self {
        match form {
            Form::Json { otherwise } => Self::Open { otherwise, in_list: false },
            Form::Literal(dialect) => Self::Literal(LiteralCall::new(dialect)),
            Form::Tagged(tags) => Self::Tagged(TaggedCall::new(tags)),
        }
    }

    /// Reads a character.
    pub fn read(&mut self, letter: char, sink: &mut Sink) -> Step {
        match self {
            Self::Open { .. } if letter.is_whitespace() => return Step::More,
            Self::Open { in_list: in_list @ false, .. } if letter == '[' => {
                *in_list = true;
                return Step::More;
            }
            Self::Open { .. } if letter == '{' => *self = Self::Object(ObjectCall::new()),
            Self::Open { otherwise: Otherwise::Headed(head), in_list: false } => {
                *self = Self::Headed(HeadedCall::new(*head));
            }
            Self::Open { otherwise: Otherwise::Python, .. } => {
                *self = Self::Literal(LiteralCall::new(&PYTHON));
            }
            Self::Open { .. } => return Step::Wrong,
            _ => {}
        }
        match self {
            Self::Open { .. } => Step::Wrong,
            Self::Object(call) => call.read(letter, sink),
            Self::Headed(call) => call.read(letter, sink),
            Self::Literal(call) => call.read(letter, sink),
            Self::Tagged(call) => call.read(letter, sink),
        }
    }

    /// Ends the call at the end of the text; returns false if the call is not complete.
    pub fn finish(&mut self, sink: &mut Sink) -> bool {
        match self {
            Self::Object(call) => call.finish(sink),
            Self::Tagged(call) => call.finish(sink),
            _ => false,
        }
    }

    /// Takes the characters that were read after the end of a call, `letter` included.
    pub fn unread(&mut self, letter: char) -> String {
        match self {
            Self::Tagged(call) => call.take_unread(),
            _ => letter.to_string(),
        }
    }
}
