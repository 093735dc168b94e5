//! Writes text that may still change.
//!
//! Final words are written once. At a terminal, words that may still be revised follow dimmed on the rest of the line, and the
//! next update overwrites them. A pipe gets final words only.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};

use brasa::LiveUpdate;
use brasa::audio::transcript::{TranscriptFormat, Word};
use serde_json::{Value, json};

use super::text;
use crate::args::TranscribeArguments;
use crate::failure::Failure;
use crate::output;
use crate::paint::{Paint, Style, is_dumb};

/// Columns of a terminal of unknown width.
const COLUMNS: usize = 80;
/// Least columns for words that may be revised.
const LEAST_PENDING: usize = 24;
/// Saves the cursor's position, and turns line wrapping off.
const HOLD: &str = "\x1b7\x1b[?7l";
/// Turns line wrapping on, and returns to the saved position.
const RELEASE: &str = "\x1b[?7h\x1b8";
/// Clears the rest of the line.
const CLEAR: &str = "\x1b[K";

/// The form of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Plain words on one line.
    Text,
    /// For the words of each update, a line with times.
    Timed,
    /// For each word, a line with times.
    Words,
    /// For each update, a JSON object.
    Json,
}

/// Writes live text to standard output.
pub struct Screen {
    form: Form,
    /// True at a terminal whose text can be overwritten.
    revises: bool,
    /// Columns of the terminal; `None` for lines of any length.
    columns: Option<usize>,
    /// The column after the last final word.
    column: usize,
    paint: Paint,
}

impl Screen {
    /// Standard output, in the form that the arguments choose.
    pub fn new(arguments: &TranscribeArguments) -> Self {
        let form = match arguments.format {
            TranscriptFormat::Json => Form::Json,
            _ if arguments.words => Form::Words,
            _ if arguments.timestamps => Form::Timed,
            _ => Form::Text,
        };
        let revises = stdout().is_terminal() && !is_dumb() && form != Form::Json;
        let columns =
            revises.then(|| terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| width.0.into()));
        Self { form, revises, columns, column: 0, paint: Paint::of_output() }
    }

    /// Shows the latest state of a live transcript.
    pub fn show(&mut self, update: &LiveUpdate) -> Result<(), Failure> {
        self.keep(update)?;
        if !self.revises {
            return Ok(());
        }
        let pending = update.pending_text();
        self.pend(pending.trim_end())
    }

    /// Shows the last state of a live transcript, and ends the line.
    pub fn end(&mut self, update: &LiveUpdate) -> Result<(), Failure> {
        self.keep(update)?;
        if self.column > 0 { output::line("") } else { Ok(()) }
    }

    /// Writes the new final words.
    fn keep(&mut self, update: &LiveUpdate) -> Result<(), Failure> {
        if self.revises {
            output::command(CLEAR)?;
        }
        let words = &update.kept[..];
        match (self.form, words) {
            (Form::Json, _) => {
                if words.is_empty() && update.pending.is_empty() {
                    return Ok(());
                }
                let value: fn(&Word) -> Value = |word| {
                    json!({
                        "word": word.text.trim(),
                        "start": word.start_s,
                        "end": word.end_s,
                        "probability": word.probability,
                    })
                };
                let kept: Vec<Value> = words.iter().map(value).collect();
                output::line(
                    &json!({"text": update.kept_text(), "words": kept, "pending": update.pending_text()})
                        .to_string(),
                )
            }
            (Form::Timed, [first, .., last]) => {
                output::write(&text::timed(first.start_s, last.end_s, &update.kept_text()))
            }
            (Form::Timed | Form::Words, words) => {
                let lines = words.iter().map(|word| text::timed(word.start_s, word.end_s, &word.text));
                output::write(&lines.collect::<String>())
            }
            (Form::Text, words) => words.iter().try_for_each(|word| self.word(&word.text)),
        }
    }

    /// Writes a word after the last one, or on a new line.
    fn word(&mut self, word: &str) -> Result<(), Failure> {
        let width = word.chars().count();
        let breaks = self.columns.is_some_and(|columns| self.column + width >= columns);
        if breaks && self.column > 0 {
            output::line("")?;
            self.column = 0;
        }
        let word = if self.column == 0 { word.trim_start() } else { word };
        self.column += word.chars().count();
        output::write(word)
    }

    /// Shows words that may be revised, and leaves the cursor at its position.
    fn pend(&mut self, pending: &str) -> Result<(), Failure> {
        let columns = self.columns.unwrap_or(COLUMNS);
        if self.column > 0
            && columns.saturating_sub(self.column) < LEAST_PENDING.min(pending.chars().count() + 1)
        {
            output::line("")?;
            self.column = 0;
        }
        let pending = if self.column == 0 { pending.trim_start() } else { pending };
        let room = columns.saturating_sub(self.column + 1);
        let chars = pending.chars().count();
        let shown: Cow<'_, str> = if chars > room {
            // The newest words are at the end.
            let tail: String = pending.chars().skip(chars - room.saturating_sub(2).min(chars)).collect();
            format!(" …{tail}").into()
        } else {
            pending.into()
        };
        output::command(HOLD)?;
        output::command(self.paint.start(Style::Thought))?;
        output::write(&shown.replace('\n', " "))?;
        output::command(self.paint.end())?;
        output::command(RELEASE)
    }
}
