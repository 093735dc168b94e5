//! A call as a name followed by a JSON object, as Mistral, DeepSeek, Kimi and gpt-oss write it.

use super::json::JsonReader;
use super::sink::Sink;
use super::{LONGEST_NAME, Step};

/// Finds the tool's name in the text before the arguments.
pub type Head = fn(&str) -> Option<&str>;

/// Reads `name…{…}`.
#[derive(Clone, Debug)]
pub struct HeadedCall {
    head: Head,
    /// The text before the arguments.
    before: String,
    arguments: Option<JsonReader>,
}

impl HeadedCall {
    /// A reader at the beginning of a call.
    pub fn new(head: Head) -> Self {
        Self { head, before: String::new(), arguments: None }
    }

    /// Reads a character.
    pub fn read(&mut self, letter: char, sink: &mut Sink) -> Step {
        if self.arguments.is_none() {
            if letter != '{' {
                self.before.push(letter);
                return if self.before.len() > LONGEST_NAME { Step::Wrong } else { Step::More };
            }
            let name = (self.head)(&self.before).map(str::trim);
            if !name.is_some_and(|name| sink.begin(name)) {
                return Step::Wrong;
            }
        }
        let json = self.arguments.get_or_insert_with(JsonReader::new);
        let mut text = String::new();
        if json.read(letter, &mut text).is_err() {
            return Step::Wrong;
        }
        sink.arguments(&text);
        if json.is_done() {
            sink.end();
            return Step::Done;
        }
        Step::More
    }
}

/// Finds the name in `name`, `name[ARGS]` or `name[CALL_ID]id[ARGS]`.
pub fn mistral(head: &str) -> Option<&str> {
    let head = head.trim_end();
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    let name = head.split_once("[CALL_ID]").map_or(head, |(name, _)| name);
    (!name.contains('\n')).then_some(name)
}

/// Finds the name in `name<｜tool▁sep｜>`, or in `function<｜tool▁sep｜>name` with the beginning of a code block.
pub fn deepseek(head: &str) -> Option<&str> {
    let (kind, rest) = head.split_once("<｜tool▁sep｜>")?;
    match rest.trim() {
        "" => Some(kind),
        rest => Some(rest.split_once('\n').map_or(rest, |(name, _)| name)),
    }
}

/// Finds the name in `functions.name:0<|tool_call_argument_begin|>`.
pub fn kimi(head: &str) -> Option<&str> {
    let id = head.trim().strip_suffix("<|tool_call_argument_begin|>")?.trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    Some(id.rsplit_once(':').map_or(id, |(name, _)| name))
}

/// Finds the name before the channel and the type of the arguments, which end with `<|message|>`.
pub fn harmony(head: &str) -> Option<&str> {
    let head = head.trim_end().strip_suffix("<|message|>")?;
    let end = head.find(|letter: char| letter.is_whitespace() || letter == '<').unwrap_or(head.len());
    Some(&head[..end])
}
