//! JSON numbers of any length, with all their digits.
//!
//! A JSON number beyond 64 bits would become a float: an id of 23 digits would reach the model with 16 right digits. Such a
//! number is kept as a text with a special first character, and templates print it without quotation marks. Decimal numbers in a
//! tool's schema with more digits than a float are kept in the same way.

use serde_json::Value;

/// The character before the digits of a number that is kept as text: a private-use character.
const SIGN: char = '\u{F0A3E}';

/// Parses a JSON text without rounding its whole numbers. A number beyond 64 bits becomes a marked text of its digits, which
/// [`exact_json`] writes as a number again.
///
/// # Errors
///
/// The error of `serde_json`, if the text is not JSON.
pub fn exact_value(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&signed(text))
}

/// The JSON text with each whole number beyond 64 bits replaced by a marked text.
fn signed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(letter) = rest.chars().next() {
        if in_string {
            // Behind a backslash stands a quotation mark that ends nothing.
            let end = rest.find(['"', '\\']).unwrap_or(rest.len());
            let taken = (end + if rest[end..].starts_with('\\') { 2 } else { 1 }).min(rest.len());
            let taken = (taken..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
            in_string = !rest[end..].starts_with('"');
            out.push_str(&rest[..taken]);
            rest = &rest[taken..];
            continue;
        }
        let number = |letter: char| letter.is_ascii_digit() || matches!(letter, '-' | '+' | '.' | 'e' | 'E');
        let end = if letter == '-' || letter.is_ascii_digit() {
            rest.find(|letter| !number(letter)).unwrap_or(rest.len())
        } else {
            letter.len_utf8()
        };
        let (token, behind) = rest.split_at(end);
        if is_long(token) {
            out.extend(['"', SIGN]);
            out.push_str(token);
            out.push('"');
        } else {
            out.push_str(token);
        }
        in_string = letter == '"';
        rest = behind;
    }
    out
}

/// True for the JSON text of a whole number beyond 64 bits.
fn is_long(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    digits.len() > 18
        && !digits.starts_with('0')
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && token.parse::<i64>().is_err()
        && token.parse::<u64>().is_err()
}

/// True for the JSON text of a decimal number with more digits than a float is sure to keep.
fn is_fine(token: &str) -> bool {
    const SURE_DIGITS: usize = 15;
    let has_part = |letter: char| matches!(letter, '.' | 'e' | 'E');
    let digits = token.split(['e', 'E']).next().unwrap_or_default();
    token.contains(has_part)
        && digits.bytes().filter(u8::is_ascii_digit).count() > SURE_DIGITS
        && token.bytes().all(is_of_number)
        && serde_json::from_str::<serde_json::Number>(token).is_ok()
}

fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// The marked text for a number of a tool's schema that a JSON value would round. Templates and grammars of calls write it with
/// all its digits. `None` if `digits` is not such a number.
pub fn exact_number(digits: &str) -> Option<Value> {
    (is_long(digits) || is_fine(digits)).then(|| format!("{SIGN}{digits}").into())
}

/// The digits of a number that is kept as a marked text; `None` for other texts.
pub fn digits(text: &str) -> Option<&str> {
    text.strip_prefix(SIGN).filter(|digits| is_long(digits) || is_fine(digits))
}

/// Writes a value as JSON text. Numbers that [`exact_value`] or [`exact_number`] keep as marked texts are written as numbers, with all
/// their digits.
pub fn exact_json(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(SIGN) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let open = format!("\"{SIGN}");
    while let Some(at) = rest.find(&open) {
        let behind = &rest[at + open.len()..];
        let end = behind.bytes().position(|byte| !is_of_number(byte)).unwrap_or(behind.len());
        out.push_str(&rest[..at]);
        if exact_number(&behind[..end]).is_some() && behind[end..].starts_with('"') {
            out.push_str(&behind[..end]);
            rest = &behind[end + 1..];
        } else {
            out.push_str(&open);
            rest = behind;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{digits, exact_json, exact_number, exact_value};

    #[test]
    fn whole_numbers_keep_their_digits() {
        for text in [
            r#"{"a":12345678901234567890123,"b":[-98765432109876543210,18446744073709551615,-9223372036854775808]}"#,
            r#"{"a\"":"12345678901234567890123\\","é":"\\\"99999999999999999999","n":1.5,"m":99999999999999999999}"#,
            "[100000000000000000000000000000000000000000000000000]",
            "{}",
        ] {
            let parsed = exact_value(text).unwrap();
            assert_eq!(exact_json(&parsed), text);
        }
        for text in [
            "{\"a\": 012345678901234567890123}",
            "{\"a\": ",
            "{\"a",
            "{\"a\\",
            "[99999999999999999999x]",
            "\"é\\é",
        ] {
            assert!(exact_value(text).is_err(), "{text}");
        }
        assert_eq!(digits("\u{F0A3E}99999999999999999999"), Some("99999999999999999999"));
        assert_eq!(digits("\u{F0A3E}9"), None);
        for number in ["99999999999999999999", "0.10000000000000000001", "-1.2345678901234567e-7"] {
            assert_eq!(exact_json(&json!({"a": exact_number(number)})), format!("{{\"a\":{number}}}"));
        }
        for other in ["1", "0.5", "0.1000000000000000000x", "-", "1e400", "01.2345678901234567", "a\",9"] {
            assert_eq!(exact_number(other), None, "{other}");
        }
    }
}
