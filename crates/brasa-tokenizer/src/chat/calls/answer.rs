//! Parsing of an answer while it arrives: thoughts, content, calls.

use serde_json::Value;

use super::choice::ToolChoice;
use super::format::{Mark, Place, ToolFormat};
use super::region::Region;
use super::sink::Sink;
use super::tools::Tools;
use super::{LONGEST_HELD, Step};
use crate::chat::thoughts::{AnswerPart, ThoughtMarks, Thoughts};

/// An event of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// A further part of the thoughts.
    Reasoning(String),
    /// A further part of the answer proper.
    Content(String),
    /// A call begins.
    CallBegin {
        /// The number of the call in the answer, from 0.
        index: usize,
        /// Name of the called tool.
        name: String,
    },
    /// A further part of the JSON text of a call's arguments.
    CallArguments {
        /// The number of the call in the answer, from 0.
        index: usize,
        /// The further part of the text.
        text: String,
    },
    /// The end of a call. Its arguments are a JSON object, unless the answer was cut off within the call, or the call became
    /// malformed after part of it was passed on.
    CallEnd {
        /// The number of the call in the answer, from 0.
        index: usize,
    },
}

/// Parses an answer in fragments into thoughts, content and calls of tools.
///
/// Reading never fails: text that only looks like a call is content, and so is a call of a tool that was not offered. The events
/// of an answer do not depend on how the answer is cut into fragments, except for cuts within their texts. Space around thoughts
/// and calls belongs to neither.
///
/// A call is held back until it is complete or its arguments are longer than about 100 bytes; from then on arguments are passed
/// on as they arrive. Other text is held back only while it may be the beginning of a mark.
///
/// ```
/// use brasa_tokenizer::{AnswerEvent, AnswerParser, ToolChoice, ToolFormat};
///
/// let tools = [serde_json::json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}})];
/// let format = ToolFormat::by_name("hermes").expect("known");
/// let mut parser = AnswerParser::new(format, None, "", &tools, &ToolChoice::Auto);
/// assert_eq!(parser.push("Let me see. <tool_"), [AnswerEvent::Content("Let me see.".into())]);
/// let events = parser.push("call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>");
/// assert_eq!(
///     events,
///     [
///         AnswerEvent::CallBegin { index: 0, name: "add".into() },
///         AnswerEvent::CallArguments { index: 0, text: "{\"a\": 1}".into() },
///         AnswerEvent::CallEnd { index: 0 },
///     ]
/// );
/// assert_eq!(parser.finish(), []);
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about an answer, which are independent")]
pub struct AnswerParser {
    thoughts: Thoughts,
    marks: &'static [Mark],
    /// The marks that are recognised within thoughts.
    marks_in_thoughts: &'static [Mark],
    sink: Sink,
    /// Text that may be the beginning of a mark.
    held: String,
    /// Space that is dropped if a mark follows.
    space: String,
    /// The position after the text and the space read so far.
    position: Position,
    /// True if the next text belongs to the thoughts.
    is_thought: bool,
    /// True if space is dropped until the next text.
    trims: bool,
    has_content: bool,
    calls: Calls,
    /// True if the form has marks before calls.
    is_marked: bool,
    region: Option<Region>,
}

/// How calls and content may occur in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    BesideContent,
    InsteadOfContent,
}

/// A position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    AfterCall,
    Line,
    Middle,
}

impl AnswerParser {
    /// A parser for the answer to `prompt`. The end of the prompt tells whether the template has opened the thoughts.
    ///
    /// Without tools, or with [`ToolChoice::None`], the whole answer is thoughts and content.
    pub fn new(
        format: ToolFormat,
        thoughts: Option<&'static ThoughtMarks>,
        prompt: &str,
        tools: &[Value],
        choice: &ToolChoice,
    ) -> Self {
        let tools = Tools::new(tools, |name| choice.allows(name));
        let marks = if tools.is_empty() { &[] } else { format.marks() };
        let marks_in_thoughts = if format.ends_thoughts() { marks } else { &[] };
        let thoughts = Thoughts::new(thoughts, prompt);
        let is_thought = thoughts.is_open();
        Self {
            thoughts,
            marks,
            marks_in_thoughts,
            sink: Sink::new(tools),
            held: String::new(),
            space: String::new(),
            position: Position::Line,
            is_thought,
            trims: is_thought,
            has_content: false,
            calls: Calls::BesideContent,
            is_marked: format.is_marked(),
            region: None,
        }
    }

    /// Makes the parser read answers that are either calls or content, as grammars of [`ToolFormat::calls_alone`] make them. An
    /// answer that does not begin with the mark of calls is content to its end, even if it looks like a call. In forms without
    /// marks, an answer consists of calls if it begins with a call of an offered tool.
    #[must_use]
    pub fn either(mut self) -> Self {
        self.calls = Calls::InsteadOfContent;
        self
    }

    /// Takes the next fragment; returns the events that are certain with it, in order.
    pub fn push(&mut self, fragment: &str) -> Vec<AnswerEvent> {
        let mut letters = [0; 4];
        for letter in fragment.chars() {
            if self.thoughts.is_answer() {
                self.read(letter, false);
                continue;
            }
            for part in self.thoughts.take(letter.encode_utf8(&mut letters)) {
                self.read_part(&part);
            }
        }
        self.sink.take()
    }

    /// Ends an answer that was cut off, for instance by a limit of tokens. A call with a known name is reported with the arguments
    /// that arrived. [`finish`](Self::finish) treats such a call as content.
    pub fn cut_off(&mut self) -> Vec<AnswerEvent> {
        if let Some(part) = self.thoughts.finish() {
            self.read_part(&part);
        }
        if let Some(region) = self.region.take_if(|_| self.sink.has_begun())
            && !{ region }.finish(&mut self.sink)
        {
            self.sink.end();
            self.end_call();
        }
        self.finish()
    }

    /// Ends the answer and returns the remaining events. An incomplete call that was held back becomes content.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        if let Some(part) = self.thoughts.finish() {
            self.read_part(&part);
        }
        self.end_region();
        self.release_held();
        if self.position != Position::AfterCall && !self.is_thought {
            self.release_space();
        }
        self.sink.take()
    }

    fn read_part(&mut self, part: &AnswerPart) {
        match part {
            AnswerPart::Thought(text) => text.chars().for_each(|letter| self.read(letter, true)),
            AnswerPart::Answer(text) => text.chars().for_each(|letter| self.read(letter, false)),
            AnswerPart::Mark(_) => {
                self.end_region();
                self.release_held();
                self.space.clear();
                self.trims = true;
                self.position = Position::Line;
            }
        }
    }

    /// Reads a character that does not belong to a mark around thoughts.
    fn read(&mut self, letter: char, is_thought: bool) {
        self.is_thought = is_thought;
        let Some(region) = &mut self.region else { return self.read_text(letter) };
        if !self.sink.is_open() {
            self.sink.raw.push(letter);
        }
        let step = match region.read(letter, &mut self.sink) {
            Step::More if self.sink.raw.len() > LONGEST_HELD => Step::Wrong,
            step => step,
        };
        match step {
            Step::More => {}
            Step::Done => self.end_call(),
            Step::DoneBefore => {
                let unread = region.unread(letter);
                self.end_call();
                unread.chars().for_each(|letter| self.read(letter, self.is_thought));
            }
            Step::Wrong => {
                // The character may begin a mark.
                self.sink.raw.pop();
                self.abandon();
                self.read_text(letter);
            }
        }
    }

    fn read_text(&mut self, letter: char) {
        self.held.push(letter);
        while !self.held.is_empty() {
            let mut may_be = false;
            for mark in self.marks_here() {
                if mark.text.starts_with(&self.held) {
                    if mark.text.len() == self.held.len() {
                        return self.meet(mark);
                    }
                    may_be = true;
                }
            }
            if may_be {
                return;
            }
            let first = self.held.remove(0);
            self.release(first);
        }
    }

    /// The marks that are recognised at the present position.
    fn marks_here(&self) -> impl Iterator<Item = &'static Mark> + use<> {
        let (position, is_either, is_marked) =
            (self.position, self.calls == Calls::InsteadOfContent, self.is_marked);
        let marks = match self.is_thought {
            true => self.marks_in_thoughts,
            false if is_either && self.has_content => &[],
            false => self.marks,
        };
        marks.iter().filter(move |mark| match mark.place {
            Place::Anywhere => true,
            // Content of another grammar may begin like a call without a mark.
            Place::Line => position != Position::Middle && !(is_either && is_marked),
            Place::AfterCall => position == Position::AfterCall,
        })
    }

    fn meet(&mut self, mark: &'static Mark) {
        let Some(form) = mark.opens else {
            self.held.clear();
            self.space.clear();
            return;
        };
        let mut region = Region::new(form);
        for letter in mark.text[mark.text.len() - mark.shared_bytes..].chars() {
            region.read(letter, &mut self.sink);
        }
        self.region = Some(region);
        // If this is no call, the text in front of it counts.
        self.sink.raw = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
    }

    fn end_call(&mut self) {
        self.region = None;
        self.sink.raw.clear();
        self.position = Position::AfterCall;
        self.trims = !self.has_content;
        if self.is_thought {
            self.thoughts.close();
            self.is_thought = false;
        }
    }

    /// Ends the current call at the end of the text.
    fn end_region(&mut self) {
        if let Some(mut region) = self.region.take() {
            if region.finish(&mut self.sink) {
                self.end_call();
            } else {
                self.abandon();
            }
        }
    }

    /// Turns the text of a malformed call into content.
    fn abandon(&mut self) {
        self.region = None;
        if self.sink.is_open() {
            self.position = Position::AfterCall;
        }
        for letter in self.sink.abandon().chars() {
            self.release(letter);
        }
    }

    fn release_held(&mut self) {
        for letter in std::mem::take(&mut self.held).chars() {
            self.release(letter);
        }
    }

    /// Passes on a character that belongs to no mark.
    fn release(&mut self, letter: char) {
        if letter.is_whitespace() {
            if letter == '\n' && self.position == Position::Middle {
                self.position = Position::Line;
            }
            self.space.push(letter);
            let is_needless = self.marks.is_empty() && !self.is_thought && !self.thoughts.is_at_start();
            if is_needless || self.space.len() > LONGEST_HELD {
                self.release_space();
            }
            return;
        }
        self.release_space();
        self.trims = false;
        self.has_content |= !self.is_thought;
        self.position = Position::Middle;
        self.sink.text(letter, self.is_thought);
    }

    fn release_space(&mut self) {
        let space = std::mem::take(&mut self.space);
        if !self.trims {
            space.chars().for_each(|letter| self.sink.text(letter, self.is_thought));
        }
    }
}
