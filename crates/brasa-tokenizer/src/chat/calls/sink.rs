//! Collects the events of an answer.

use super::AnswerEvent;
use super::tools::Tools;

/// Bytes of arguments that are held back, in case the call turns out to be malformed.
const HELD_ARGUMENTS: usize = 96;

/// Collects events. A call and its text are held back until the call is complete or its arguments are long. If it turns out not
/// to be a call, its text is content.
#[derive(Clone, Debug)]
pub struct Sink {
    /// The tools that may be called.
    pub tools: Tools,
    /// The text of the call that is being held back.
    pub raw: String,
    out: Vec<AnswerEvent>,
    /// The name and the arguments so far of the call that is being held back.
    held: Option<(String, String)>,
    /// True if the beginning of the current call was passed on.
    is_open: bool,
    /// Number of calls begun.
    calls: usize,
}

impl Sink {
    pub fn new(tools: Tools) -> Self {
        Self { tools, raw: String::new(), out: Vec::new(), held: None, is_open: false, calls: 0 }
    }

    /// Takes the events since the last call of this function.
    pub fn take(&mut self) -> Vec<AnswerEvent> {
        std::mem::take(&mut self.out)
    }

    /// Begins a call; returns false if no offered tool has the name. A prefix `functions.` of the name is dropped.
    pub fn begin(&mut self, name: &str) -> bool {
        let bare =
            name.strip_prefix("functions.").filter(|bare| !self.tools.has(name) && self.tools.has(bare));
        let name = bare.unwrap_or(name);
        let known = self.tools.has(name);
        if known {
            self.held = Some((name.to_owned(), String::new()));
        }
        known
    }

    /// Adds `text` to the arguments of the current call.
    pub fn arguments(&mut self, text: &str) {
        if let Some((_, held)) = &mut self.held {
            held.push_str(text);
            if held.len() > HELD_ARGUMENTS {
                self.pass();
            }
        } else {
            self.pass_arguments(text);
        }
    }

    /// Ends the current call.
    pub fn end(&mut self) {
        self.pass();
        self.close();
    }

    /// True once the beginning of the current call was passed on.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// True if the current call has the name of an offered tool, whether or not it was passed on.
    pub fn has_begun(&self) -> bool {
        self.is_open || self.held.is_some()
    }

    /// Gives up a malformed call; returns the text that was held back, which is content.
    pub fn abandon(&mut self) -> String {
        self.held = None;
        self.close();
        std::mem::take(&mut self.raw)
    }

    /// Adds a character to the thoughts if `is_thought`, else to the answer proper.
    pub fn text(&mut self, letter: char, is_thought: bool) {
        match (self.out.last_mut(), is_thought) {
            (Some(AnswerEvent::Content(text)), false) | (Some(AnswerEvent::Reasoning(text)), true) => {
                text.push(letter);
            }
            (_, true) => self.out.push(AnswerEvent::Reasoning(letter.into())),
            (_, false) => self.out.push(AnswerEvent::Content(letter.into())),
        }
    }

    fn pass(&mut self) {
        if let Some((name, arguments)) = self.held.take() {
            self.raw.clear();
            self.is_open = true;
            self.out.push(AnswerEvent::CallBegin { index: self.calls, name });
            self.calls += 1;
            self.pass_arguments(&arguments);
        }
    }

    fn pass_arguments(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(AnswerEvent::CallArguments { text, .. }) = self.out.last_mut() {
            text.push_str(more);
        } else {
            self.out.push(AnswerEvent::CallArguments { index: self.calls - 1, text: more.to_owned() });
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.out.push(AnswerEvent::CallEnd { index: self.calls - 1 });
        }
    }
}
