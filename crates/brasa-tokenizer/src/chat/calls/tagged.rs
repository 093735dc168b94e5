//! Calls in tags around a name and arguments, as Qwen3-Coder, GLM and MiniMax write them.

use super::json::{push_letter, push_string};
use super::sink::Sink;
use super::tools::Types;
use super::{LONGEST_NAME, LONGEST_VALUE, Step, Wrong};

/// The tags with which a family writes calls.
#[derive(Debug)]
pub struct Tags {
    /// Text before the tool's name.
    pub name: &'static str,
    /// Text after the tool's name.
    pub name_end: &'static str,
    /// Text before an argument's name.
    pub key: &'static str,
    /// Text after an argument's name.
    pub key_end: &'static str,
    /// Text before a value.
    pub value: &'static str,
    /// Text after a value.
    pub value_end: &'static str,
    /// Text after the last argument.
    pub end: &'static str,
    /// Texts that may follow the end of a call. One of them, or the end of the answer, shows that `end` does not belong to a
    /// value.
    pub next: &'static [&'static str],
    /// True if a value may be on lines of its own. The line breaks around it then do not belong to the value.
    pub on_lines: bool,
}

/// Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS.
pub const QWEN: Tags = Tags {
    name: "<function=",
    name_end: ">",
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    end: "</function>",
    next: &["</tool_call>", "</seed:tool_call>", "<tool_call>", "<seed:tool_call>", "<function="],
    on_lines: true,
};
/// MiniMax-M2.
pub const MINIMAX: Tags = Tags {
    name: "<invoke name=\"",
    name_end: "\">",
    key: "<parameter name=\"",
    key_end: "\">",
    value: "",
    value_end: "</parameter>",
    end: "</invoke>",
    next: &["</minimax:tool_call>", "<invoke name=\""],
    on_lines: false,
};
/// GLM-4.5 and later, Laguna.
pub const GLM: Tags = Tags {
    name: "",
    // Behind the name is a line break or the next tag.
    name_end: "",
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
    next: &["<tool_call>"],
    on_lines: false,
};

/// Reads a call in tags and writes its arguments as JSON, typed by the tool's schema.
#[derive(Clone, Debug)]
pub struct TaggedCall {
    tags: &'static Tags,
    state: State,
    /// The beginning of a name or a tag.
    word: String,
    /// The tool's name.
    name: String,
    /// The argument's name.
    key: String,
    /// Names of the arguments so far.
    given: Vec<String>,
    /// Characters that were read but come after the call.
    unread: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the tag of the name.
    Open,
    Name,
    /// Between arguments.
    Between,
    Key,
    /// Between an argument's name and its value.
    BeforeValue,
    Value(Value),
}

/// A value that is being read.
#[derive(Clone, Debug)]
struct Value {
    /// Characters that may be the end of the value.
    held: String,
    types: Types,
    /// The text of a value that need not be a string.
    text: String,
    is_first: bool,
    /// True if the value is on lines of its own.
    on_lines: bool,
    /// A line break that belongs to the value if more of the value follows.
    held_line: bool,
}

impl TaggedCall {
    /// A reader before the first tag.
    pub fn new(tags: &'static Tags) -> Self {
        let state = if tags.name.is_empty() { State::Name } else { State::Open };
        Self {
            tags,
            state,
            word: String::new(),
            name: String::new(),
            key: String::new(),
            given: Vec::new(),
            unread: String::new(),
        }
    }

    /// Reads a character.
    pub fn read(&mut self, letter: char, sink: &mut Sink) -> Step {
        self.try_read(letter, sink).unwrap_or(Step::Wrong)
    }

    fn try_read(&mut self, letter: char, sink: &mut Sink) -> Result<Step, Wrong> {
        let is_space = self.word.is_empty() && letter.is_whitespace();
        match &mut self.state {
            State::Open | State::Between | State::BeforeValue | State::Name if is_space => {}
            State::Open | State::Between | State::BeforeValue => return self.read_tag(letter, sink),
            State::Name => self.read_name(letter, sink)?,
            State::Key => {
                self.push(letter)?;
                if let Some(key) = self.word.strip_suffix(self.tags.key_end) {
                    key.trim().clone_into(&mut self.key);
                    self.word.clear();
                    self.state = State::BeforeValue;
                    if self.tags.value.is_empty() {
                        self.begin_value(sink);
                    }
                }
            }
            State::Value(_) => return self.read_value(letter, sink),
        }
        Ok(Step::More)
    }

    /// Takes the characters that were read after the end of the call.
    pub fn take_unread(&mut self) -> String {
        std::mem::take(&mut self.unread)
    }

    /// Ends a call at the end of the text; returns false if more than white space is missing.
    pub fn finish(&mut self, sink: &mut Sink) -> bool {
        let State::Value(value) = &self.state else { return false };
        // The last argument's closing tag is left out at times.
        let line = if self.tags.on_lines { "\n" } else { "" };
        let end = value.held.trim_end();
        if end.strip_prefix('\n').unwrap_or(end) != self.tags.end || !value.held.starts_with(line) {
            return false;
        }
        self.end_value(sink);
        sink.arguments("}");
        sink.end();
        true
    }

    fn read_value(&mut self, letter: char, sink: &mut Sink) -> Result<Step, Wrong> {
        let State::Value(value) = &mut self.state else { return Err(Wrong) };
        value.held.push(letter);
        let mut out = String::new();
        let fit = loop {
            let names = sink.tools.arguments(&self.name);
            match self
                .tags
                .fit(&value.held, names.filter(|name| !self.given.iter().any(|given| given == name)))
            {
                Fit::Other => value.release(&mut out),
                fit => break fit,
            }
            if value.held.is_empty() {
                break Fit::MayEnd;
            }
        };
        if value.text.len() > LONGEST_VALUE {
            return Err(Wrong);
        }
        if !out.is_empty() {
            sink.arguments(&out);
        }
        if fit == Fit::MayEnd {
            return Ok(Step::More);
        }
        let held = std::mem::take(&mut value.held);
        self.end_value(sink);
        match fit {
            Fit::Key => self.state = State::Key,
            Fit::NamedKey(name) => {
                self.key = name;
                self.state = State::BeforeValue;
                if self.tags.value.is_empty() {
                    self.begin_value(sink);
                }
            }
            Fit::End { next } => {
                sink.arguments("}");
                sink.end();
                held[next..].clone_into(&mut self.unread);
                return Ok(if self.unread.is_empty() { Step::Done } else { Step::DoneBefore });
            }
            Fit::MayEnd | Fit::Other => {}
        }
        Ok(Step::More)
    }

    /// Writes the end of a value.
    fn end_value(&mut self, sink: &mut Sink) {
        if let State::Value(value) = std::mem::replace(&mut self.state, State::Between) {
            if value.types.is_string() {
                sink.arguments("\"");
            } else {
                sink.arguments(&value.types.json(&value.text));
            }
        }
    }

    fn push(&mut self, letter: char) -> Result<(), Wrong> {
        self.word.push(letter);
        if self.word.len() > LONGEST_NAME { Err(Wrong) } else { Ok(()) }
    }

    fn read_name(&mut self, letter: char, sink: &mut Sink) -> Result<(), Wrong> {
        // Without a tag, a line break or the next tag ends the name.
        let is_bare_end = self.tags.name_end.is_empty() && matches!(letter, '\n' | '<');
        if !is_bare_end {
            self.push(letter)?;
        }
        let name = match self.word.strip_suffix(self.tags.name_end) {
            Some(name) if is_bare_end || !self.tags.name_end.is_empty() => name.trim(),
            _ => return Ok(()),
        };
        if !sink.begin(name) {
            return Err(Wrong);
        }
        sink.arguments("{");
        name.clone_into(&mut self.name);
        self.word.clear();
        if is_bare_end && letter == '<' {
            self.word.push(letter);
        }
        self.state = State::Between;
        Ok(())
    }

    fn read_tag(&mut self, letter: char, sink: &mut Sink) -> Result<Step, Wrong> {
        self.word.push(letter);
        let Tags { name, key, value, end, .. } = *self.tags;
        let awaited: &[&str] = match self.state {
            State::Open => &[name],
            State::Between => &[key, end],
            _ => &[value],
        };
        if !awaited.iter().any(|tag| tag.starts_with(&self.word)) {
            return Err(Wrong);
        }
        if !awaited.contains(&self.word.as_str()) {
            return Ok(Step::More);
        }
        let is_end = self.word == end;
        self.word.clear();
        self.state = match self.state {
            State::Between if is_end => {
                sink.arguments("}");
                sink.end();
                return Ok(Step::Done);
            }
            State::Open => State::Name,
            State::Between => State::Key,
            _ => {
                self.begin_value(sink);
                return Ok(Step::More);
            }
        };
        Ok(Step::More)
    }

    fn begin_value(&mut self, sink: &mut Sink) {
        let types = sink.tools.types(&self.name, &self.key);
        let mut out = String::from(if self.given.is_empty() { "" } else { ", " });
        self.given.push(self.key.clone());
        push_string(&self.key, &mut out);
        out.push_str(if types.is_string() { ": \"" } else { ": " });
        sink.arguments(&out);
        self.state = State::Value(Value {
            held: String::new(),
            types,
            text: String::new(),
            is_first: true,
            on_lines: self.tags.on_lines,
            held_line: false,
        });
    }
}

impl Value {
    /// Passes on the first held character, which belongs to the value: to `out` if the value is a string.
    fn release(&mut self, out: &mut String) {
        let letter = self.held.remove(0);
        let Self { types, text, is_first, on_lines, held_line, .. } = self;
        let mut put = |letter| if types.is_string() { push_letter(letter, out) } else { text.push(letter) };
        if std::mem::take(is_first) && *on_lines {
            *on_lines = letter == '\n';
            if *on_lines {
                return;
            }
        }
        if std::mem::take(held_line) {
            put('\n');
        }
        *held_line = letter == '\n' && *on_lines;
        if !*held_line {
            put(letter);
        }
    }
}

/// The meaning of held text that may end a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fit {
    /// The text belongs to the value.
    Other,
    /// The text ends the value if the right text follows.
    MayEnd,
    /// The text ends the value, and has the tag before the next argument's name.
    Key,
    /// The text has the next argument up to its name, without the closing tag of the value.
    NamedKey(String),
    /// The text ends the call. From byte `next` on it comes after the call.
    End { next: usize },
}

/// Longest text that is held back at the end of a value, in bytes. Most of it may be space.
const LONGEST_END: usize = 128;

/// The text after `start`; `None` if the text begins differently, `Some(None)` while it is too short to decide.
#[expect(clippy::option_option, reason = "another text, or too short a text")]
fn behind<'a>(text: &'a str, start: &str) -> Option<Option<&'a str>> {
    match text.strip_prefix(start) {
        Some(rest) => Some(Some(rest)),
        None => start.starts_with(text).then_some(None),
    }
}

impl Tags {
    /// Decides whether `held` ends a value. A value may hold tags itself: its closing tag counts if the next argument or the end of
    /// the call follows. Models leave the closing tag out at times; then a line that begins with the end of the call, or with the
    /// tag of an argument in `names`, ends the value.
    fn fit<'a>(&self, held: &str, names: impl Iterator<Item = &'a str>) -> Fit {
        let is_short = held.len() <= LONGEST_END;
        let may_end = if is_short { Fit::MayEnd } else { Fit::Other };
        match behind(held, self.value_end) {
            Some(None) => return may_end,
            Some(Some(rest)) => {
                let rest = rest.trim_start();
                return match (behind(rest, self.key), behind(rest, self.end)) {
                    (Some(Some(_)), _) => Fit::Key,
                    (_, Some(Some(_))) => Fit::End { next: held.len() },
                    (None, None) => Fit::Other,
                    _ => may_end,
                };
            }
            None => {}
        }
        let line = held.strip_prefix('\n');
        if let Some(text) = line.or((!self.on_lines).then_some(held)) {
            match behind(text, self.end) {
                Some(None) => return may_end,
                Some(Some(rest)) => {
                    let next = rest.trim_start();
                    let follows = self.next.iter().filter_map(|tag| behind(next, tag));
                    return match follows.max_by_key(Option::is_some) {
                        Some(Some(_)) => Fit::End { next: held.len() - rest.len() },
                        Some(None) => may_end,
                        None => Fit::Other,
                    };
                }
                None => {}
            }
        }
        match line.and_then(|text| behind(text, self.key)) {
            Some(None) => may_end,
            Some(Some(rest)) => {
                let mut fit = Fit::Other;
                for name in names {
                    match behind(rest, name).map(|rest| rest.map(|rest| behind(rest, self.key_end))) {
                        Some(Some(Some(Some(_)))) => return Fit::NamedKey(name.to_owned()),
                        Some(None | Some(Some(None))) => fit = Fit::MayEnd,
                        _ => {}
                    }
                }
                fit
            }
            None => Fit::Other,
        }
    }
}
