//! Conversations to text, by the template of the checkpoint.

mod builtin;
mod encode;
mod generation;
mod message;
mod python;
mod sandbox;
mod template;
mod time;

pub use builtin::BuiltinTemplate;
pub use message::{Content, Message};
pub use template::{ChatOptions, ChatTemplate, TemplateGuess};
pub use time::CivilTime;
