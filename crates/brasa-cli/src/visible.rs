//! Text that comes from files, models and users, made harmless for a terminal.

use std::borrow::Cow;

/// True for characters that a terminal interprets instead of showing: control characters except line ends and tabs, and marks
/// that change the direction of text, which can disguise a text.
fn is_command(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// `text` with such characters, which a terminal would interpret, written as escapes like `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_command(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn only_what_a_terminal_obeys_is_escaped() {
        for text in ["", "plain\n\ttext", "süß, 日本語, 👩‍👩‍👧, עברית", "e\u{301}\u{200b}"]
        {
            assert!(matches!(visible(text), std::borrow::Cow::Borrowed(same) if same == text), "{text:?}");
        }
        for (text, shown) in [
            ("a\u{1b}[31mb\n", "a\\u{1b}[31mb\n"),
            ("\u{9b}2J\u{7f}\r\u{0}", "\\u{9b}2J\\u{7f}\\u{d}\\u{0}"),
            ("\u{202e}fdp.exe\u{2066}\u{200f}\u{61c}", "\\u{202e}fdp.exe\\u{2066}\\u{200f}\\u{61c}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
