//! Custom tools: tools that take a free text where functions take JSON.
//!
//! A model knows functions alone. It is told of a function whose only argument is the text, `input`, and its calls of that function are
//! read back as texts.

use brasa::Grammar;
use serde_json::{Value, json};

use crate::constraint::Constraint;
use crate::error::{ApiError, Result};
use crate::fields::Fields;

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A function with JSON arguments.
    Function,
    /// A custom tool with a text.
    Custom,
}

/// A custom tool of a request.
#[derive(Clone, Debug)]
pub(crate) struct CustomTool {
    pub name: String,
    /// The grammar of its text, by itself.
    pub constraint: Option<Constraint>,
}

impl CustomTool {
    /// Reads a tool, `name`, `description` and `format`; also returns the function that the model is told of.
    ///
    /// # Errors
    ///
    /// 400 that names the field.
    pub fn read(body: &Fields, place: &str, tool: Value) -> Result<(Self, Value)> {
        let mut fields = body.inside(place, tool)?;
        fields.value("type");
        let name: String = fields.required("name")?;
        if name.is_empty() {
            return Err(fields.missing("name"));
        }
        let mut input = json!({"type": "string"});
        let mut function = json!({"name": name});
        if let Some(description) = fields.optional::<String>("description")? {
            function["description"] = description.into();
        }
        let mut constraint = None;
        if let Some(format) = fields.value("format") {
            let format = body.inside(&fields.name("format"), format)?;
            if let Some((grammar, keyword)) = read_format(body, format)? {
                input["x-grammar"] = keyword;
                constraint = Some(grammar);
            }
        }
        function["parameters"] = json!({"type": "object", "properties": {"input": input}, "required": ["input"],
            "additionalProperties": false});
        if constraint.is_some() {
            function["strict"] = true.into();
        }
        Ok((Self { name, constraint }, json!({"type": "function", "function": function})))
    }
}

/// Reads a text's format: its grammar, and the keyword of a schema that tells it to the model. `None` for any text.
fn read_format(body: &Fields, mut format: Fields) -> Result<Option<(Constraint, Value)>> {
    let kind: String = format.required("type")?;
    match kind.as_str() {
        "text" => Ok(None),
        "grammar" => {
            // Chat completions have the grammar in an object of its own.
            let mut inner = match format.value("grammar") {
                Some(inner) => body.inside(&format.name("grammar"), inner)?,
                None => format,
            };
            let syntax: String = inner.required("syntax")?;
            let definition: String = inner.required("definition")?;
            let grammar = match syntax.as_str() {
                "lark" => Grammar::Lark(definition.clone()),
                "regex" => Grammar::Regex(definition.clone()),
                other => {
                    let name = inner.name("syntax");
                    let message = format!("`{name}` is `{other}`, expected lark or regex");
                    return Err(ApiError::field(&name, message));
                }
            };
            let constraint = Constraint::new(inner.name("definition"), grammar);
            Ok(Some((constraint, json!({"syntax": syntax, "definition": definition}))))
        }
        other => {
            let name = format.name("type");
            Err(ApiError::field(&name, format!("`{name}` is `{other}`, expected text or grammar")))
        }
    }
}

/// The arguments of a call that stands for a custom tool's.
pub(crate) fn arguments(input: &str) -> Value {
    json!({"input": input})
}

/// Reads the text out of a call's arguments, `{"input": "…"}`, while they come.
///
/// Arguments of another form, which a model may write if nothing keeps it from that, are the text as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputReader {
    state: State,
    /// The arguments up to the text.
    head: String,
    /// An escape that is not complete.
    escape: String,
    /// The first half of a pair of escapes that stand for one character.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Text,
    Behind,
    Other,
}

impl InputReader {
    /// The text that is sure with more of the arguments.
    pub fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        for letter in arguments.chars() {
            match self.state {
                State::Head => self.read_head(letter, &mut text),
                State::Text => self.read_text(letter, &mut text),
                State::Behind => {}
                State::Other => text.push(letter),
            }
        }
        text
    }

    fn read_head(&mut self, letter: char, text: &mut String) {
        self.head.push(letter);
        let mut rest = self.head.as_str();
        for part in ["{", "\"input\"", ":", "\""] {
            rest = rest.trim_start();
            match rest.strip_prefix(part) {
                Some(behind) => rest = behind,
                None if part.starts_with(rest) => return,
                None => {
                    self.state = State::Other;
                    return text.push_str(&self.head);
                }
            }
        }
        self.state = State::Text;
    }

    fn read_text(&mut self, letter: char, text: &mut String) {
        if self.escape.is_empty() && letter != '\\' {
            self.end_pair(text);
            match letter {
                '"' => self.state = State::Behind,
                letter => text.push(letter),
            }
            return;
        }
        self.escape.push(letter);
        let letters = if self.escape.starts_with("\\u") { 6 } else { 2 };
        if self.escape.chars().count() < letters {
            return;
        }
        let escape = std::mem::take(&mut self.escape);
        let unit = escape.strip_prefix("\\u").and_then(|digits| u16::from_str_radix(digits, 16).ok());
        if let (Some(high), Some(low)) = (self.high, unit)
            && let Some(Ok(letter)) = char::decode_utf16([high, low]).next()
        {
            self.high = None;
            text.push(letter);
            return;
        }
        self.end_pair(text);
        match unit {
            Some(high @ 0xd800..0xdc00) => self.high = Some(high),
            Some(unit) => text.push(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER)),
            None => {
                let spelt: Option<String> = serde_json::from_str(&format!("\"{escape}\"")).ok();
                text.push_str(spelt.as_deref().unwrap_or("\u{fffd}"));
            }
        }
    }

    /// Replaces the first half of a pair that has no second one.
    fn end_pair(&mut self, text: &mut String) {
        if self.high.take().is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of arguments cut at every position, which has to be the same.
    fn read(arguments: &str) -> String {
        let whole = InputReader::default().push(arguments);
        for (at, _) in arguments.char_indices() {
            let mut reader = InputReader::default();
            let (first, second) = arguments.split_at(at);
            assert_eq!(reader.push(first) + &reader.push(second), whole, "{first} | {second}");
        }
        let mut reader = InputReader::default();
        let letters: String =
            arguments.chars().map(|letter| reader.push(letter.encode_utf8(&mut [0; 4]))).collect();
        assert_eq!(letters, whole);
        whole
    }

    #[test]
    fn a_text_is_what_the_argument_says() {
        for text in ["", "*** Begin Patch\n+\"a\\b\"\t\u{1}\r\n", "größer 🦀 \u{7f}", "{\"input\": \"x\"}"]
        {
            assert_eq!(read(&arguments(text).to_string()), text);
        }
        assert_eq!(read("\n{ \"input\" :\t\"a\\/\\u00e9\\ud83e\\udd80\" , \"more\": 1}"), "a/é🦀");
    }

    #[test]
    fn halves_of_pairs_are_replaced() {
        let halves = r#"{"input": "\ud83ex\udd80\ud83e\n\ud83e\ud83e\udd80\x\u00g0\ud83e"}"#;
        assert_eq!(read(halves), "�x��\n�🦀���");
    }

    #[test]
    fn other_arguments_are_the_text() {
        for other in ["{}", "{\"patch\": \"x\"}", "{\"input\": 7}", "[1]", "{\"inputs\": \"a\"}"] {
            assert_eq!(read(other), other);
        }
        // An answer that was cut off.
        assert_eq!(read("{\"input\": \"ab\\"), "ab");
        assert_eq!(read("{\"inp"), "");
    }
}
