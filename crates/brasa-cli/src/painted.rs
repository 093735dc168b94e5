//! Prints an answer to standard output, with thoughts dimmed if there are colours.

use brasa::tokenizer::{AnswerPart, Thoughts};

use crate::failure::Failure;
use crate::output;
use crate::paint::{Paint, Style};

/// Prints an answer that arrives in fragments, and keeps its text.
pub struct PaintedAnswer {
    paint: Paint,
    thoughts: Thoughts,
    dim: bool,
    /// The thoughts so far.
    pub thought: String,
    /// The answer proper so far.
    pub answer: String,
    /// True if something was written and the last line is not ended.
    within_line: bool,
}

impl PaintedAnswer {
    /// A printer for an answer that `thoughts` splits.
    pub fn new(paint: Paint, thoughts: Thoughts) -> Self {
        Self {
            paint,
            thoughts,
            dim: false,
            thought: String::new(),
            answer: String::new(),
            within_line: false,
        }
    }

    /// True if nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.answer.is_empty()
    }

    /// Writes the next fragment.
    ///
    /// # Errors
    ///
    /// [`Failure::OutputClosed`].
    pub fn write(&mut self, fragment: &str) -> Result<(), Failure> {
        let parts = self.thoughts.take(fragment);
        parts.into_iter().try_for_each(|part| self.part(part))
    }

    /// Writes the text that was held back, and ends colours and the line.
    ///
    /// # Errors
    ///
    /// [`Failure::OutputClosed`].
    pub fn finish(&mut self) -> Result<(), Failure> {
        if let Some(part) = self.thoughts.finish() {
            self.part(part)?;
        }
        self.set_dim(false)?;
        if self.within_line {
            output::write("\n")?;
        }
        Ok(())
    }

    /// Writes a part that is known to be a thought or the answer proper.
    ///
    /// # Errors
    ///
    /// [`Failure::OutputClosed`].
    pub fn part(&mut self, part: AnswerPart) -> Result<(), Failure> {
        let (text, dim) = match &part {
            AnswerPart::Thought(text) => (text.as_str(), true),
            AnswerPart::Mark(text) => (*text, true),
            AnswerPart::Answer(text) => (text.as_str(), false),
        };
        self.set_dim(dim)?;
        self.within_line = !text.ends_with('\n');
        output::write(text)?;
        match part {
            AnswerPart::Thought(text) => self.thought += &text,
            AnswerPart::Answer(text) => self.answer += &text,
            AnswerPart::Mark(_) => {}
        }
        Ok(())
    }

    fn set_dim(&mut self, dim: bool) -> Result<(), Failure> {
        if std::mem::replace(&mut self.dim, dim) != dim {
            output::command(if dim { self.paint.start(Style::Thought) } else { self.paint.end() })?;
        }
        Ok(())
    }
}
