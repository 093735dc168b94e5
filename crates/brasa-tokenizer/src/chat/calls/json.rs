//! JSON, read one character at a time.

use super::Wrong;

/// Deepest nesting that is read. Many JSON parsers stop at 128 levels.
const DEEPEST: usize = 100;
/// Longest number that is read, in bytes.
const LONGEST_NUMBER: u8 = 100;

/// Checks a JSON value while it arrives, and writes it with small mistakes corrected.
///
/// Valid JSON is unchanged. Clear mistakes are corrected: control characters in strings, which JSON wants as escapes; backslashes
/// before characters that need none, as in `\d`; a comma after the last member; Python's `True`, `False`, `None` and single
/// quotes.
#[derive(Clone, Debug)]
pub struct JsonReader {
    /// The open containers: true for an object, false for an array.
    open: Vec<bool>,
    state: State,
    /// A comma and the space after it. If the container ends next, the comma is dropped.
    comma: String,
    /// The digits of an escape so far.
    digits: String,
}

/// Positions relative to the members of the outermost object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// In a key, between its quotes.
    Key,
    /// In a value.
    Value,
    /// Between members.
    Between,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    /// Before a comma or the end of a container.
    Next,
    String {
        is_key: bool,
        quote: char,
        letter: Letter,
    },
    /// In a number, with its length in bytes.
    Number(Number, u8),
    /// In `true`, `false` or `null`, with the remaining letters.
    Word(&'static str),
    /// In a Python word, with the remaining letters. Its JSON form has been written already.
    PythonWord(&'static str),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    Plain,
    Escape,
    /// In the digits of `\uXXXX`. `high` is true after the first half of a surrogate pair.
    Hex {
        high: bool,
    },
    /// After the first half of a surrogate pair: `\` and then `u` must follow.
    LowEscape,
    LowHex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
    /// After the first digit of an exponent.
    LastPower,
}

impl JsonReader {
    /// A reader at the beginning of a value.
    pub fn new() -> Self {
        Self { open: Vec::new(), state: State::Value, comma: String::new(), digits: String::new() }
    }

    /// True after the last character of an object, array, string or word.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The reader's position relative to the members of the outermost object.
    pub fn member(&self) -> Member {
        match self.state {
            _ if self.open.len() > 1 => Member::Value,
            State::String { is_key: true, .. } => Member::Key,
            State::String { is_key: false, .. }
            | State::Number(..)
            | State::Word(_)
            | State::PythonWord(_) => Member::Value,
            _ => Member::Between,
        }
    }

    /// True if nothing but a comma or the end of the outermost object may follow.
    pub fn is_behind_member(&self) -> bool {
        self.open.len() == 1 && self.state == State::Next
    }

    /// Reads a character and writes its JSON text.
    pub fn read(&mut self, letter: char, out: &mut String) -> Result<(), Wrong> {
        if let State::Number(number, length) = self.state {
            if let Some(next) = number.next(letter) {
                // No number of a hundred digits and a power of two digits is beyond the reach of f64.
                if length == LONGEST_NUMBER {
                    return Err(Wrong);
                }
                self.state = State::Number(next, length + 1);
                out.push(letter);
                return Ok(());
            }
            if !number.may_end() {
                return Err(Wrong);
            }
            self.complete();
        }
        if let State::String { is_key, quote, letter: at } = self.state {
            return self.read_string((is_key, quote), at, letter, out);
        }
        if let State::Word(rest) | State::PythonWord(rest) = self.state {
            let rest = rest.strip_prefix(letter).ok_or(Wrong)?;
            if let State::Word(_) = self.state {
                out.push(letter);
                self.state = State::Word(rest);
            } else {
                self.state = State::PythonWord(rest);
            }
            if rest.is_empty() {
                self.complete();
            }
            return Ok(());
        }
        if matches!(letter, ' ' | '\t' | '\n' | '\r') {
            if self.comma.is_empty() {
                out.push(letter);
            } else {
                self.comma.push(letter);
            }
            return Ok(());
        }
        let comma = std::mem::take(&mut self.comma);
        if !comma.is_empty() && matches!((self.state, letter), (State::Key, '}') | (State::Value, ']')) {
            out.push_str(&comma[1..]);
            out.push(letter);
            return self.leave(letter);
        }
        out.push_str(&comma);
        let word = match letter {
            'T' => ("true", "rue"),
            'F' => ("false", "alse"),
            'N' => ("null", "one"),
            _ => ("", ""),
        };
        if matches!(self.state, State::Value | State::FirstItem) && !word.0.is_empty() {
            out.push_str(word.0);
            self.state = State::PythonWord(word.1);
            return Ok(());
        }
        if (self.state, letter) == (State::Next, ',') {
            self.comma.push(letter);
        } else {
            out.push(if letter == '\'' { '"' } else { letter });
        }
        let string = |is_key| State::String { is_key, quote: letter, letter: Letter::Plain };
        self.state = match (self.state, letter) {
            (State::Value | State::FirstItem, '{') => return self.enter(true),
            (State::Value | State::FirstItem, '[') => return self.enter(false),
            (State::FirstItem | State::Next, ']') | (State::FirstKey | State::Next, '}') => {
                return self.leave(letter);
            }
            (State::Value | State::FirstItem, '"' | '\'') => string(false),
            (State::FirstKey | State::Key, '"' | '\'') => string(true),
            (State::Value | State::FirstItem, 't') => State::Word("rue"),
            (State::Value | State::FirstItem, 'f') => State::Word("alse"),
            (State::Value | State::FirstItem, 'n') => State::Word("ull"),
            (State::Value | State::FirstItem, '-') => State::Number(Number::Minus, 1),
            (State::Value | State::FirstItem, '0') => State::Number(Number::Zero, 1),
            (State::Value | State::FirstItem, '1'..='9') => State::Number(Number::Whole, 1),
            (State::Next, ',') if self.open.last() == Some(&true) => State::Key,
            (State::Colon, ':') | (State::Next, ',') => State::Value,
            _ => return Err(Wrong),
        };
        Ok(())
    }

    fn read_string(
        &mut self,
        (is_key, quote): (bool, char),
        at: Letter,
        letter: char,
        out: &mut String,
    ) -> Result<(), Wrong> {
        let next = match (at, letter) {
            (Letter::Plain, _) if letter == quote => {
                out.push('"');
                if is_key {
                    self.state = State::Colon;
                } else {
                    self.complete();
                }
                return Ok(());
            }
            (Letter::Plain, '\\') => Letter::Escape,
            (Letter::Plain, _) => {
                push_letter(letter, out);
                return Ok(());
            }
            (Letter::Escape, 'u') => Letter::Hex { high: false },
            (Letter::Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {
                out.extend(['\\', letter]);
                Letter::Plain
            }
            (Letter::Escape, '\'') => {
                out.push(letter);
                Letter::Plain
            }
            // The backslash stands for itself.
            (Letter::Escape, _) => {
                out.push_str("\\\\");
                push_letter(letter, out);
                Letter::Plain
            }
            (Letter::LowEscape, '\\') => Letter::LowHex,
            (Letter::LowHex, 'u') => Letter::Hex { high: true },
            (Letter::Hex { high }, _) if letter.is_ascii_hexdigit() => {
                self.digits.push(letter);
                if self.digits.len() < 4 {
                    return Ok(());
                }
                let digits = std::mem::take(&mut self.digits);
                let unit = u16::from_str_radix(&digits, 16).map_err(|_| Wrong)?;
                out.push_str("\\u");
                out.push_str(&digits);
                match unit {
                    0xDC00..=0xDFFF if high => Letter::Plain,
                    0xD800..=0xDBFF if !high => Letter::LowEscape,
                    // Half a pair is no character.
                    0xD800..=0xDFFF => return Err(Wrong),
                    _ if high => return Err(Wrong),
                    _ => Letter::Plain,
                }
            }
            // `C:\users`: no escape.
            (Letter::Hex { high: false }, _) => {
                out.push_str("\\\\u");
                out.push_str(&std::mem::take(&mut self.digits));
                self.state = State::String { is_key, quote, letter: Letter::Plain };
                return self.read_string((is_key, quote), Letter::Plain, letter, out);
            }
            _ => return Err(Wrong),
        };
        self.state = State::String { is_key, quote, letter: next };
        Ok(())
    }

    fn enter(&mut self, is_object: bool) -> Result<(), Wrong> {
        if self.open.len() == DEEPEST {
            return Err(Wrong);
        }
        self.open.push(is_object);
        self.state = if is_object { State::FirstKey } else { State::FirstItem };
        Ok(())
    }

    fn leave(&mut self, letter: char) -> Result<(), Wrong> {
        // A wrong end ends nothing: whoever asks afterwards has to see what is still open.
        if self.open.last() != Some(&(letter == '}')) {
            return Err(Wrong);
        }
        self.open.pop();
        self.complete();
        Ok(())
    }

    fn complete(&mut self) {
        self.state = if self.open.is_empty() { State::Done } else { State::Next };
    }
}

impl Number {
    fn next(self, letter: char) -> Option<Self> {
        Some(match (self, letter) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::Sign,
            (Self::Exponent | Self::Sign, '0'..='9') => Self::Power,
            (Self::Power, '0'..='9') => Self::LastPower,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power | Self::LastPower)
    }
}

/// Decodes a JSON string, without its quotation marks, while it arrives.
#[derive(Clone, Debug, Default)]
pub struct Unescaper {
    escape: String,
}

impl Unescaper {
    /// Takes a character of valid JSON; returns the decoded character that it completes. `None` within an escape.
    pub fn read(&mut self, letter: char) -> Option<char> {
        if self.escape.is_empty() && letter != '\\' {
            return Some(letter);
        }
        self.escape.push(letter);
        let is_unit = self.escape.starts_with("\\u");
        if self.escape.len() < if is_unit { 6 } else { 2 } {
            return None;
        }
        // The first half of a pair is no character, and is read on.
        let spelt = serde_json::from_str::<char>(&format!("\"{}\"", self.escape)).ok();
        if spelt.is_some() || self.escape.len() >= 12 {
            self.escape.clear();
        }
        spelt
    }
}

/// Writes a character of a JSON string, escaped if necessary.
pub fn push_letter(letter: char, out: &mut String) {
    use std::fmt::Write;
    match letter {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\u{1f}' => _ = write!(out, "\\u{:04x}", letter as u32),
        _ => out.push(letter),
    }
}

/// Writes a text as a JSON string.
pub fn push_string(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|letter| push_letter(letter, out));
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::JsonReader;

    /// The text that the reader writes for the first complete value; `None` for text that is no JSON.
    fn read(text: &str) -> Option<String> {
        let (mut reader, mut out) = (JsonReader::new(), String::new());
        for letter in text.chars() {
            reader.read(letter, &mut out).ok()?;
        }
        reader.is_done().then_some(out)
    }

    #[test]
    fn accepts_what_serde_accepts_and_slips_whose_meaning_is_beyond_doubt() {
        let good = [
            "{}",
            "[]",
            r#"{"a": [1, -0.5e+3, 0, true, false, null, {"b": {}}], "é": "\u00e9\ud83d\ude00\n\\"}"#,
            "[[[]], [1 , 2]]",
            "\"x\"",
        ];
        for text in good {
            assert_eq!(read(text).as_deref(), Some(text));
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
        }
        let bad = [
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "[1 2]",
            "{]",
            "[}",
            "[01]",
            "[1.]",
            "[-]",
            "[1e]",
            "[tru]",
            "[\"\\ud800\"]",
            "[\"\\udc00\"]",
            "[\"\\ud800\\u0041\"]",
            "{a:1}",
            "[+1]",
            "[NaN]",
            "[1,,]",
            "[,]",
            "{\"a\",}",
            "[Nope]",
        ];
        for text in bad {
            assert_eq!(read(text), None, "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_err(), "{text}");
        }
        for (slip, meant) in [
            ("[\"a\n\u{1}\tb\"]", r#"["a\n\u0001\tb"]"#),
            ("{\"a\":1,}", "{\"a\":1}"),
            ("[1, [2 ,\n], ]", "[1, [2 \n] ]"),
            (r#"["\d+\.\'\x"]"#, r#"["\\d+\\.'\\x"]"#),
            (r#"["C:\users\u12"]"#, r#"["C:\\users\\u12"]"#),
            (r#"{'a': 'say "\'x\'"', 'b': True}"#, r#"{"a": "say \"'x'\"", "b": true}"#),
            ("[True, False, None]", "[true, false, null]"),
        ] {
            assert_eq!(read(slip).as_deref(), Some(meant), "{slip}");
            assert!(serde_json::from_str::<serde_json::Value>(meant).is_ok(), "{meant}");
        }
        for too_much in [&"[".repeat(101), "[1e100]", &format!("[{}]", "1".repeat(101))] {
            assert_eq!(read(too_much), None);
        }
    }
}
