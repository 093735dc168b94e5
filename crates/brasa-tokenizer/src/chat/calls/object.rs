//! A call as a JSON object with a name and arguments.

use super::json::{JsonReader, Member, Unescaper};
use super::sink::Sink;
use super::{LONGEST_NAME, Step, Wrong};

/// Keys for the name.
const NAME: [&str; 2] = ["name", "tool_name"];
/// Keys for the arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Further keys that families write in calls. Any other key shows that the object is not a call.
const OTHERS: [&str; 5] = ["id", "type", "call_id", "tool_call_id", "index"];

/// Reads `{"name": …, "arguments": {…}}`, its members in any order.
#[derive(Clone, Debug)]
pub struct ObjectCall {
    json: JsonReader,
    /// JSON text of the member's key, without quotes.
    key: String,
    role: Role,
    /// JSON text of the name, as far as it has come.
    name: String,
    /// Arguments that came before the name.
    waiting: String,
    /// Arguments that are written as a string.
    encoded: Option<Encoded>,
    has_name: bool,
    has_arguments: bool,
}

/// An object within the text of a JSON string.
#[derive(Clone, Debug)]
struct Encoded {
    string: Unescaper,
    json: JsonReader,
    /// True once the object has begun.
    has_begun: bool,
}

impl Encoded {
    /// Takes more of the string's JSON text; returns more of the object's.
    fn read(&mut self, text: &str) -> Result<String, Wrong> {
        let mut out = String::new();
        for letter in text.chars() {
            let Some(letter) = self.string.read(letter) else { continue };
            if letter.is_whitespace() && (!self.has_begun || self.json.is_done()) {
                continue;
            }
            if self.json.is_done() || !self.has_begun && letter != '{' {
                return Err(Wrong);
            }
            self.has_begun = true;
            self.json.read(letter, &mut out)?;
        }
        Ok(out)
    }
}

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Name,
    /// Arguments that are passed on while they arrive.
    Flowing,
    /// Arguments before the name, which are held back.
    Waiting,
    Other,
}

impl ObjectCall {
    /// A reader before the opening brace.
    pub fn new() -> Self {
        Self {
            json: JsonReader::new(),
            key: String::new(),
            role: Role::Other,
            name: String::new(),
            waiting: String::new(),
            encoded: None,
            has_name: false,
            has_arguments: false,
        }
    }

    /// Reads a character.
    pub fn read(&mut self, letter: char, sink: &mut Sink) -> Step {
        match self.try_read(letter, sink) {
            Ok(()) if !self.json.is_done() => Step::More,
            Ok(()) if !self.has_name => Step::Wrong,
            Ok(()) => {
                if !self.has_arguments {
                    sink.arguments("{}");
                }
                sink.end();
                Step::Done
            }
            // Small models forget the last brace.
            Err(Wrong) if self.finish(sink) => Step::DoneBefore,
            Err(Wrong) => Step::Wrong,
        }
    }

    /// Ends a call that lacks only its last brace; returns false if more is missing.
    pub fn finish(&mut self, sink: &mut Sink) -> bool {
        let is_complete = self.has_name && self.has_arguments && self.json.is_behind_member();
        if is_complete {
            sink.end();
        }
        is_complete
    }

    fn try_read(&mut self, letter: char, sink: &mut Sink) -> Result<(), Wrong> {
        let mut text = String::new();
        let before = self.json.member();
        self.json.read(letter, &mut text)?;
        match (before, self.json.member()) {
            (Member::Between, Member::Key) => self.key.clear(),
            (Member::Key, Member::Key) => push_short(&mut self.key, &text)?,
            (Member::Key, Member::Between) => self.end_key()?,
            (Member::Between, Member::Value) => self.begin_value(&text, sink)?,
            (Member::Value, Member::Value) => self.add_to_value(&text, sink)?,
            (Member::Value, Member::Between) => {
                self.add_to_value(&text, sink)?;
                self.end_value(sink)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn end_key(&self) -> Result<(), Wrong> {
        let key = self.key.as_str();
        let known = NAME.contains(&key) || ARGUMENTS.contains(&key) || OTHERS.contains(&key);
        if known { Ok(()) } else { Err(Wrong) }
    }

    fn begin_value(&mut self, text: &str, sink: &mut Sink) -> Result<(), Wrong> {
        self.role = Role::Other;
        if NAME.contains(&self.key.as_str()) {
            if self.has_name || text != "\"" {
                return Err(Wrong);
            }
            self.role = Role::Name;
            self.name.push_str(text);
        } else if ARGUMENTS.contains(&self.key.as_str()) {
            // `null` stands for no arguments.
            let is_null = text.starts_with('n');
            let arguments = if is_null { "{}" } else { text };
            let is_encoded = arguments == "\"";
            if self.has_arguments || !arguments.starts_with('{') && !is_encoded {
                return Err(Wrong);
            }
            self.has_arguments = true;
            if is_encoded {
                self.encoded =
                    Some(Encoded { string: Unescaper::default(), json: JsonReader::new(), has_begun: false });
                self.role = if self.has_name { Role::Flowing } else { Role::Waiting };
                return Ok(());
            }
            if self.has_name {
                sink.arguments(arguments);
            } else {
                self.waiting.push_str(arguments);
            }
            self.role = match (is_null, self.has_name) {
                (true, _) => Role::Other,
                (_, true) => Role::Flowing,
                (_, false) => Role::Waiting,
            };
        }
        Ok(())
    }

    fn add_to_value(&mut self, text: &str, sink: &mut Sink) -> Result<(), Wrong> {
        let decoded;
        let text = match (&mut self.encoded, self.role) {
            (Some(encoded), Role::Flowing | Role::Waiting) => {
                // The quotation mark at the end is no part of the string.
                let is_end = self.json.member() == Member::Between;
                decoded = match encoded.read(if is_end { &text[..text.len() - 1] } else { text })? {
                    none if is_end && !encoded.has_begun => none + "{}",
                    _ if is_end && !encoded.json.is_done() => return Err(Wrong),
                    more => more,
                };
                decoded.as_str()
            }
            _ => text,
        };
        match self.role {
            Role::Name => push_short(&mut self.name, text)?,
            Role::Flowing => sink.arguments(text),
            Role::Waiting => self.waiting.push_str(text),
            Role::Other => {}
        }
        Ok(())
    }

    fn end_value(&mut self, sink: &mut Sink) -> Result<(), Wrong> {
        if self.role == Role::Name {
            let name: String = serde_json::from_str(&self.name).map_err(|_| Wrong)?;
            if !sink.begin(&name) {
                return Err(Wrong);
            }
            self.has_name = true;
            if self.has_arguments {
                sink.arguments(&std::mem::take(&mut self.waiting));
            }
        }
        Ok(())
    }
}

fn push_short(to: &mut String, text: &str) -> Result<(), Wrong> {
    to.push_str(text);
    if to.len() > LONGEST_NAME { Err(Wrong) } else { Ok(()) }
}
