//! Calls with a text as their only argument.

/// Reads the text in a call's arguments, `{"input": "…"}`, while they arrive.
///
/// Arguments of another form, which a model may write if no grammar forbids it, are taken as the text unchanged. The text does
/// not depend on how the arguments are cut.
///
/// ```
/// use brasa_tokenizer::InputReader;
///
/// let mut reader = InputReader::default();
/// assert_eq!(reader.push(r#"{"input": "a\"#), "a");
/// assert_eq!(reader.push(r#"nb"}"#), "\nb");
/// ```
#[derive(Clone, Debug, Default)]
pub struct InputReader {
    state: State,
    /// The arguments before the text.
    head: String,
    /// An escape that is incomplete so far.
    escape: String,
    /// The first half of a surrogate pair of escapes.
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
    /// Takes more of the arguments; returns the further text that is certain.
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

    /// Writes U+FFFD for the first half of a surrogate pair without a second half.
    fn end_pair(&mut self, text: &mut String) {
        if self.high.take().is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads arguments cut at every position, and checks that the result never differs.
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
            assert_eq!(read(&serde_json::json!({"input": text}).to_string()), text);
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
