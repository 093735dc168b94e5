//! An answer, shown while it is made.

use brasa::{FinishReason, Model, TokenStream};

use super::thoughts::{Part, Thoughts};
use crate::failure::Failure;
use crate::paint::{Paint, Style};
use crate::{interrupt, output};

/// An answer as far as it went.
pub struct Answer {
    /// The text.
    pub text: String,
    /// The reason, as a line to print, if something else than the model ended it.
    pub end: Option<String>,
}

/// Shows the answer of a stream: thoughts dim, if there are colours.
///
/// # Errors
///
/// [`Failure::OutputClosed`]; [`Failure::Failed`] if nothing was answered. An error behind a part of an answer is its end.
pub fn show(stream: &mut TokenStream, paint: Paint, begins_with_thoughts: bool) -> Result<Answer, Failure> {
    let guard = interrupt::cancels(stream);
    let mut text = String::new();
    let mut failure = None;
    let mut thoughts = Thoughts::new(begins_with_thoughts);
    let mut dim = false;
    for fragment in &mut *stream {
        match fragment {
            Ok(fragment) => {
                text.push_str(&fragment.text);
                for part in thoughts.take(&fragment.text) {
                    write(part, paint, &mut dim)?;
                }
            }
            Err(error) => failure = Some(Failure::from(brasa::Error::from(error))),
        }
    }
    drop(guard);
    if dim {
        output::command(paint.end())?;
    }
    if !text.ends_with('\n') && !text.is_empty() {
        output::write("\n")?;
    }
    let end = match (failure, stream.finish_reason()) {
        (Some(failure), _) if text.is_empty() => return Err(failure),
        (Some(failure), _) => Some(format!("error: {failure}")),
        _ if interrupt::take() => Some("(interrupted)".into()),
        (None, Some(FinishReason::ContextFull)) => {
            Some("(the context is full: the answer ends here; /clear forgets the conversation, -c gives a larger context)".into())
        }
        (None, _) => None,
    };
    Ok(Answer { text, end })
}

/// True if the prompt ends in the middle of thoughts: the model's answer begins with them.
pub fn begins_with_thoughts(model: &Model, prompt: &[u32]) -> bool {
    const LAST_TOKENS: usize = 4;
    let last = &prompt[prompt.len().saturating_sub(LAST_TOKENS)..];
    model.tokenizer().decode(last, false).is_ok_and(|text| text.trim_end().ends_with("<think>"))
}

fn write(part: Part<'_>, paint: Paint, dim: &mut bool) -> Result<(), Failure> {
    let (text, is_thought) = match part {
        Part::Thought(text) => (text, true),
        Part::Answer(text) => (text, false),
    };
    if is_thought != *dim {
        output::command(if is_thought { paint.start(Style::Thought) } else { paint.end() })?;
        *dim = is_thought;
    }
    output::write(text)
}
