//! Messages from the keyboard or a pipe: one line each, or several lines if marked.

use std::io::{BufRead, BufReader, IsTerminal, Read, Stdin, Write, stdin, stdout};

use super::editor::LineEditor;
use super::history::History;
use super::line::Line;
use crate::failure::Failure;
use crate::paint::{Paint, Style, is_dumb};
use crate::{interrupt, output, terminal};

/// The prompt of a message.
const PROMPT: &str = "> ";
/// The prompt for further lines of a message.
const MORE: &str = "… ";
/// The mark that begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";
/// Most bytes of a line that is read from a pipe.
const LONGEST_LINE: u64 = 16 << 20;
/// Milliseconds within which the lines of a paste follow each other. Typed lines take longer.
const PASTE_PAUSE_MS: u16 = 8;

/// The source of messages.
pub struct Reader {
    lines: Lines,
    history: History,
}

/// The source of lines.
enum Lines {
    Edited(Box<LineEditor>),
    Plain(PlainLines),
}

impl Reader {
    /// A reader with a line editor at a terminal, otherwise of plain lines.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the terminal cannot be used.
    pub fn new(paint: Paint) -> Result<Self, Failure> {
        let at_terminal = stdin().is_terminal() && stdout().is_terminal();
        if !at_terminal || is_dumb() {
            let lines = PlainLines { input: BufReader::new(stdin()), at_terminal, paint };
            return Ok(Self { lines: Lines::Plain(lines), history: History::none() });
        }
        terminal::save();
        let (history, entries) = History::open();
        let lines = Lines::Edited(Box::new(LineEditor::new(paint, &entries)?));
        Ok(Self { lines, history })
    }

    /// True if messages are typed at a terminal.
    pub fn is_at_terminal(&self) -> bool {
        match &self.lines {
            Lines::Edited(_) => true,
            Lines::Plain(lines) => lines.at_terminal,
        }
    }

    /// Reads a message or a command. A backslash at the end of a line continues the message, and a pair of `"""` encloses several
    /// lines.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the terminal or the pipe fails.
    pub fn message(&mut self) -> Result<Line, Failure> {
        let mut text = match self.line(PROMPT)? {
            Line::Text(text) => text,
            other => return Ok(other),
        };
        let mut entry = text.clone();
        let quoted = text.trim_start().starts_with(QUOTES);
        loop {
            let goes_on = if quoted { !is_closed(&text) } else { text.ends_with('\\') };
            if !goes_on {
                break;
            }
            match self.line(MORE)? {
                Line::Text(line) => {
                    if !quoted {
                        text.pop();
                    }
                    for whole in [&mut text, &mut entry] {
                        whole.push('\n');
                        whole.push_str(&line);
                    }
                }
                // The end of the input ends the message, too.
                Line::End => break,
                Line::Interrupted | Line::Abandoned => return Ok(Line::Abandoned),
            }
        }
        self.remember(&entry);
        if quoted {
            let inner = text.trim();
            let inner = inner.strip_prefix(QUOTES).unwrap_or(inner);
            let inner = inner.strip_suffix(QUOTES).unwrap_or(inner);
            return Ok(Line::Text(inner.trim_matches('\n').to_owned()));
        }
        Ok(Line::Text(text))
    }

    fn remember(&mut self, entry: &str) {
        if let Lines::Edited(editor) = &mut self.lines
            && !entry.trim().is_empty()
        {
            editor.remember(entry);
            self.history.add(entry);
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        match &mut self.lines {
            Lines::Edited(editor) => editor.line(prompt),
            Lines::Plain(lines) => lines.line(prompt),
        }
    }
}

/// True if a text that begins with `"""` also ends with it.
fn is_closed(text: &str) -> bool {
    text.trim().strip_prefix(QUOTES).is_some_and(|rest| rest.ends_with(QUOTES))
}

/// Reads lines without an editor: from a pipe, or from a terminal without any features.
struct PlainLines {
    input: BufReader<Stdin>,
    at_terminal: bool,
    paint: Paint,
}

impl PlainLines {
    fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        if self.at_terminal {
            output::command(self.paint.start(Style::Prompt))?;
            output::write(prompt)?;
            output::command(self.paint.end())?;
            stdout().flush()?;
        }
        let mut bytes = Vec::new();
        loop {
            let at_prompt = interrupt::at_prompt();
            let count = (&mut self.input).take(LONGEST_LINE).read_until(b'\n', &mut bytes);
            drop(at_prompt);
            if count? == 0 {
                break;
            }
            // Lines that come at once are of one paste.
            let pasted = self.at_terminal
                && (!self.input.buffer().is_empty() || terminal::wait_for_input(PASTE_PAUSE_MS));
            if !pasted || bytes.len() as u64 >= LONGEST_LINE {
                break;
            }
        }
        if bytes.is_empty() {
            return Ok(Line::End);
        }
        let mut text = String::from_utf8(bytes).unwrap_or_else(|error| {
            output::note("(the input is not UTF-8; invalid bytes are read as \u{fffd})");
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(Line::Text(text))
    }
}
