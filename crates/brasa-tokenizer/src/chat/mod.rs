//! Conversations to text, by the template of the checkpoint.

mod builtin;
mod calls;
mod encode;
mod exact;
mod generation;
mod history;
mod marks;
mod message;
mod python;
mod reader;
mod sandbox;
mod template;
mod thoughts;
mod time;
mod turns;

pub use builtin::BuiltinTemplate;
pub use calls::{AnswerEvent, AnswerParser, InputReader, OtherAnswers, ToolChoice, ToolFormat};
pub use exact::{exact_json, exact_number, exact_value};
pub(crate) use marks::Edges;
pub use message::{Content, Message};
pub use reader::json_kind;
pub use template::{ChatOptions, ChatTemplate, TemplateGuess};
pub use thoughts::{AnswerPart, ThoughtMarks, Thoughts};
pub use time::CivilTime;
pub use turns::{EncodedTurns, TrainedTurns};
