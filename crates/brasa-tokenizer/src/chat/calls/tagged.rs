//! A call as tags around its name and arguments, as Qwen3-Coder, GLM and MiniMax write it.

use super::json::{push_letter, push_string};
use super::sink::Sink;
use super::tools::Types;
use super::until::Until;
use super::{LONGEST_NAME, LONGEST_VALUE, Step, Wrong};

/// The tags of a family.
#[derive(Debug)]
pub struct Tags {
    /// In front of the name.
    pub name: &'static str,
    /// Behind the name.
    pub name_end: &'static str,
    /// In front of an argument's name.
    pub key: &'static str,
    /// Behind an argument's name.
    pub key_end: &'static str,
    /// In front of the value.
    pub value: &'static str,
    /// Behind the value.
    pub value_end: &'static str,
    /// Behind the last argument.
    pub end: &'static str,
    /// True if a value may stand on lines of its own. The line break on each side is no part of it then.
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
    on_lines: false,
};

/// Reads a call in tags and writes its arguments as JSON, typed by the tool's schema.
#[derive(Clone, Debug)]
pub struct TaggedCall {
    tags: &'static Tags,
    state: State,
    /// A name or a tag while it comes.
    word: String,
    /// The tool's name.
    name: String,
    /// The argument's name.
    key: String,
    has_arguments: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// In front of the name's tag.
    Open,
    Name,
    /// Between arguments.
    Between,
    Key,
    /// Between an argument's name and its value.
    BeforeValue,
    Value(Value),
}

/// A value on its way.
#[derive(Clone, Debug)]
struct Value {
    until: Until,
    types: Types,
    /// The text of a value that may be something else than a string.
    text: String,
    is_first: bool,
    /// True if the value stands on lines of its own.
    on_lines: bool,
    /// A line break that belongs to the value if more of it comes.
    held_line: bool,
}

impl TaggedCall {
    /// A call in front of its first tag.
    pub fn new(tags: &'static Tags) -> Self {
        let state = if tags.name.is_empty() { State::Name } else { State::Open };
        Self {
            tags,
            state,
            word: String::new(),
            name: String::new(),
            key: String::new(),
            has_arguments: false,
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
            State::Value(value) => {
                let mut out = String::new();
                let is_end = value.read(letter, &mut out);
                if value.text.len() > LONGEST_VALUE {
                    return Err(Wrong);
                }
                if is_end {
                    if value.types.is_string() {
                        out.push('"');
                    } else {
                        out.push_str(&value.types.json(&value.text));
                    }
                    self.state = State::Between;
                }
                if !out.is_empty() {
                    sink.arguments(&out);
                }
            }
        }
        Ok(Step::More)
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
        let mut out = String::from(if std::mem::replace(&mut self.has_arguments, true) { ", " } else { "" });
        push_string(&self.key, &mut out);
        out.push_str(if types.is_string() { ": \"" } else { ": " });
        sink.arguments(&out);
        self.state = State::Value(Value {
            until: Until::new(self.tags.value_end),
            types,
            text: String::new(),
            is_first: true,
            on_lines: self.tags.on_lines,
            held_line: false,
        });
    }
}

impl Value {
    /// Reads a character; true behind the value's last tag. A string goes on to `out`.
    fn read(&mut self, letter: char, out: &mut String) -> bool {
        let Self { until, types, text, is_first, on_lines, held_line } = self;
        let mut put = |letter| if types.is_string() { push_letter(letter, out) } else { text.push(letter) };
        until.read(letter, |letter| {
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
        })
    }
}
