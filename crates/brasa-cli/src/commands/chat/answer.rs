//! Shows an answer while it is generated.

use brasa::tokenizer::Thoughts;
use brasa::{FinishReason, Message, TokenStream};

use crate::failure::Failure;
use crate::interrupt;
use crate::paint::Paint;
use crate::painted::PaintedAnswer;

/// An answer that was shown, and the reason why it ended.
pub struct ShownAnswer {
    /// The thoughts and the answer proper.
    pub message: Message,
    /// True if nothing came, not even thoughts.
    pub is_empty: bool,
    /// The reason why the answer ended, as a line to print; `None` if the model ended it.
    pub end: Option<String>,
}

/// Shows the answer of a stream, with thoughts dimmed if there are colours.
///
/// # Errors
///
/// [`Failure::OutputClosed`]; [`Failure::Failed`] if nothing was answered. An error after a part of an answer becomes its end.
pub fn show(stream: &mut TokenStream, paint: Paint, thoughts: Thoughts) -> Result<ShownAnswer, Failure> {
    let guard = interrupt::cancels(stream);
    let mut answer = PaintedAnswer::new(paint, thoughts);
    let mut failure = None;
    for fragment in &mut *stream {
        match fragment {
            Ok(fragment) => answer.write(&fragment.text)?,
            Err(error) => failure = Some(Failure::from(brasa::Error::from(error))),
        }
    }
    drop(guard);
    answer.finish()?;
    let is_empty = answer.is_empty();
    let end = match (failure, stream.finish_reason()) {
        (Some(failure), _) if is_empty => return Err(failure),
        (Some(failure), _) => Some(format!("error: {failure}")),
        _ if interrupt::take() => Some("(interrupted)".into()),
        (None, Some(FinishReason::ContextFull)) => {
            Some("(the context is full: the answer ends here; /clear forgets the conversation, -c gives a larger context)".into())
        }
        (None, _) => None,
    };
    Ok(ShownAnswer { message: message(&answer), is_empty, end })
}

/// The answer as a message for templates: thoughts separate from the answer proper, without the space in between.
fn message(answer: &PaintedAnswer) -> Message {
    let thought = answer.thought.trim();
    if thought.is_empty() {
        return Message::new("assistant", answer.answer.clone());
    }
    let message = Message::new("assistant", answer.answer.trim_start());
    Message { reasoning_content: Some(thought.to_owned()), ..message }
}
