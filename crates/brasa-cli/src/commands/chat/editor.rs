//! The line editor at a terminal, which handles pasted text safely.
//!
//! A paste that the terminal does not mark looks like typed lines. So Enter ends a message only if no further key is waiting: the
//! terminal is set to return nothing instead of waiting, and if it returns nothing, the message is complete. Otherwise Enter was
//! a line end within a paste, and the next key is inserted after that line end.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustyline::completion::Completer;
use rustyline::config::{ColorMode, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, Movement, RepeatCount,
};

use super::line::Line;
use super::paths;
use crate::failure::Failure;
use crate::paint::{Paint, Style};
use crate::{interrupt, output, terminal};

/// Milliseconds within which the lines of a paste follow each other. Typed lines take longer.
const PASTE_PAUSE_MS: u16 = 8;

/// A line editor with a history.
pub struct LineEditor {
    editor: Editor<Assistant, DefaultHistory>,
    typing: Arc<Typing>,
}

/// The line being typed, shared by the editor's owner and the hooks that the editor calls.
#[derive(Default)]
struct Typing(Mutex<Typed>);

/// The state of the line being typed.
#[derive(Default)]
struct Typed {
    /// The text so far; it is kept after a failure.
    line: String,
    /// The line end after which no further input is known.
    ended: Option<LineEnd>,
    /// True if Ctrl-D was pressed after Enter: the next line is the end.
    leaves: bool,
}

/// A line end as a terminal sends it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Return,
    Feed,
}

impl Typing {
    fn lock(&self) -> MutexGuard<'_, Typed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineEditor {
    /// An editor with these entries as its history, oldest first.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the terminal cannot be used.
    pub fn new(paint: Paint, entries: &[String]) -> Result<Self, Failure> {
        let failed = |error: ReadlineError| Failure::Failed(error.to_string());
        let colors = if paint.is_on() { ColorMode::Forced } else { ColorMode::Disabled };
        let config = Config::builder().color_mode(colors).build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        let typing = Arc::new(Typing::default());
        editor.set_helper(Some(Assistant { typing: typing.clone(), paint }));
        if cfg!(unix) {
            editor.bind_sequence(
                Event::Any,
                EventHandler::Conditional(Box::new(Keys { typing: typing.clone() })),
            );
        }
        for entry in entries {
            // History is a convenience.
            let _ = editor.add_history_entry(entry);
        }
        Ok(Self { editor, typing })
    }

    /// Reads a line, which has several lines if they were pasted.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the terminal fails.
    pub fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        if std::mem::take(&mut self.typing.lock().leaves) {
            return Ok(Line::End);
        }
        let mut start = String::new();
        loop {
            *self.typing.lock() = Typed { line: start.clone(), ..Typed::default() };
            let at_prompt = interrupt::at_prompt();
            let result = self.editor.readline_with_initial(prompt, (&start, ""));
            drop(at_prompt);
            let Typed { line, ended, .. } = &mut *self.typing.lock();
            let line = std::mem::take(line);
            return match result {
                Ok(line) => Ok(Line::Text(line)),
                // Nothing followed Enter, so it was the end of the message.
                Err(ReadlineError::Eof) if ended.is_some() => Ok(Line::Text(line)),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Interrupted) => {
                    Ok(if line.is_empty() { Line::Interrupted } else { Line::Abandoned })
                }
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    terminal::discard_input();
                    output::note(
                        "(that input is not UTF-8 text and was left out; nothing is sent yet, the conversation goes on)",
                    );
                    start = line;
                    continue;
                }
                Err(error) => Err(Failure::Failed(format!("the terminal: {error}"))),
            };
        }
    }

    /// Makes `entry` the latest entry of the history.
    pub fn remember(&mut self, entry: &str) {
        // History is a convenience; a line that cannot be kept is still answered.
        let _ = self.editor.add_history_entry(entry);
    }
}

/// Examines each key before the editor processes it.
struct Keys {
    typing: Arc<Typing>,
}

impl ConditionalEventHandler for Keys {
    fn handle(&self, event: &Event, _: RepeatCount, _: bool, _: &EventContext) -> Option<Cmd> {
        let &KeyEvent(code, modifiers) = event.get(0)?;
        let mut typed = self.typing.lock();
        let before = typed.ended.take();
        let end = match (code, modifiers) {
            (KeyCode::Enter, Modifiers::NONE) => Some(LineEnd::Return),
            (KeyCode::Char('J'), Modifiers::CTRL) => Some(LineEnd::Feed),
            _ => None,
        };
        if end.is_some() {
            typed.ended = end;
            if (before, end) == (Some(LineEnd::Return), Some(LineEnd::Feed)) {
                return Some(Cmd::Noop);
            }
            terminal::wait_for_input(PASTE_PAUSE_MS);
            if before.is_some() {
                return Some(Cmd::Insert(1, "\n".into()));
            }
            if !terminal::return_when_empty(true) {
                // A terminal that cannot be asked keeps the editor's own Enter.
                typed.ended = None;
                return None;
            }
            return Some(Cmd::Move(Movement::EndOfBuffer));
        }
        before?;
        terminal::return_when_empty(false);
        match (code, modifiers) {
            (KeyCode::Char(c), Modifiers::NONE | Modifiers::SHIFT) => Some(Cmd::Insert(1, format!("\n{c}"))),
            (KeyCode::Tab, _) => Some(Cmd::Insert(1, "\n\t".into())),
            (KeyCode::BracketedPasteStart, _) => None,
            (code, _) => {
                // Another key is pressed by hand, and too late for this line.
                typed.leaves = (code, modifiers) == (KeyCode::Char('D'), Modifiers::CTRL);
                Some(Cmd::AcceptLine)
            }
        }
    }
}

/// Implements the editor's hooks: completions of commands and files, and the prompt's colour.
struct Assistant {
    typing: Arc<Typing>,
    paint: Paint,
}

impl Helper for Assistant {}
impl Validator for Assistant {}

impl Hinter for Assistant {
    type Hint = String;

    /// Returns no hint. The editor calls it at every change of the line, which is recorded here.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        line.clone_into(&mut self.typing.lock().line);
        None
    }
}

impl Highlighter for Assistant {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> std::borrow::Cow<'b, str> {
        self.paint.text(Style::Prompt, prompt)
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(line.get(..cursor).map_or((0, Vec::new()), paths::completions))
    }
}
