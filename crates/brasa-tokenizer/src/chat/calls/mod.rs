//! Calls of tools in answers.
//!
//! Every reader takes one character at a time, and does not see the fragments in which a text arrives. So a text gives the same
//! events however it is cut.

mod answer;
mod choice;
mod closed;
mod constraint;
mod format;
mod headed;
mod input;
mod input_reader;
mod json;
mod lark;
mod literal;
mod object;
mod region;
mod sink;
mod tagged;
mod tools;
mod until;

pub use answer::{AnswerEvent, AnswerParser};
pub use choice::ToolChoice;
pub use constraint::OtherAnswers;
pub use format::ToolFormat;
pub use input_reader::InputReader;

/// Longest name that is read, in bytes.
const LONGEST_NAME: usize = 512;
/// Longest value that is kept until its end is known, in bytes.
const LONGEST_VALUE: usize = 1 << 20;
/// Longest text that is held back because it may be a call, in bytes.
const LONGEST_HELD: usize = 1 << 16;

/// The error for a text that is not in the reader's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wrong;

/// The outcome of reading a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The call continues.
    More,
    /// The character was the call's last.
    Done,
    /// The call ended before the character, and perhaps before some earlier ones.
    DoneBefore,
    /// The text is not a call.
    Wrong,
}
