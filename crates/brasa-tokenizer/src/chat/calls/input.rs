//! Grammars of a tool's free text, the tool's only argument, within the grammar of its calls.
//!
//! If a model writes arguments as JSON, every terminal of the grammar is converted to match the JSON form of its texts: `/.+/`
//! then matches `\"` but never a bare quotation mark. Each character has one spelling, so the grammar's texts stay the same.

use std::fmt::Write;

use regex_syntax::hir::{Class, ClassUnicodeRange, Hir, HirKind, Look};
use serde_json::Value;

use super::lark::{Lark, quoted};
use crate::{Result, TokenizerError};

/// Longest grammar that is written, in bytes. Classes of characters take more bytes than their names.
const LONGEST: usize = 1 << 20;

/// The keyword of a property's schema that holds the grammar of its text: `{"syntax": "lark" | "regex", "definition": …}`.
const KEYWORD: &str = "x-grammar";

/// The grammar of a text.
#[derive(Clone, Copy, Debug)]
pub enum TextGrammar<'a> {
    Lark(&'a str),
    Regex(&'a str),
}

impl<'a> TextGrammar<'a> {
    /// The grammar in a property's schema.
    pub fn of(schema: &'a Value) -> Option<Self> {
        let grammar = schema.get(KEYWORD)?;
        let definition = grammar.get("definition")?.as_str()?;
        match grammar.get("syntax")?.as_str()? {
            "lark" => Some(Self::Lark(definition)),
            "regex" => Some(Self::Regex(definition)),
            _ => None,
        }
    }

    /// Adds the text in quotation marks, with JSON's escapes.
    pub fn in_json(self, lark: &mut Lark<'_>) -> Result<String> {
        Ok(match self {
            // One lexeme, which is never empty.
            Self::Regex(text) => lark.rule("STRING", &format!("\"\\\"\" {} \"\\\"\"", regex_in_json(text)?)),
            Self::Lark(text) => format!("\"\\\"\" %lark {{\n{}\n}} \"\\\"\"", lark_in_json(text)?),
        })
    }

    /// Writes the text, then `mark` behind it.
    pub fn until(self, mark: &str, lark: &mut Lark<'_>) -> Result<String> {
        let mark = lark.text(mark)?;
        Ok(match self {
            Self::Regex(text) if mark.starts_with('<') => format!("{} {mark}", regex_literal(text)),
            Self::Regex(text) => lark.lazy_rule("until", &format!("{} {mark}", regex_literal(text))),
            Self::Lark(text) => format!("%lark {{\n{text}\n}} {mark}"),
        })
    }
}

/// Adds the JSON object of arguments with a single member, a text of a grammar; `None` for another schema.
pub fn json_object(schema: &Value, lark: &mut Lark<'_>) -> Result<Option<String>> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let Some((key, property)) = properties.filter(|all| all.len() == 1).and_then(|all| all.iter().next())
    else {
        return Ok(None);
    };
    let Some(grammar) = TextGrammar::of(property) else { return Ok(None) };
    let head = quoted(&format!("{{{}: ", Value::from(key.as_str())));
    Ok(Some(format!("{head} {} \"}}\"", grammar.in_json(lark)?)))
}

/// A regular expression as Lark writes it.
fn regex_literal(text: &str) -> String {
    if text.is_empty() {
        return "/(?:)/".to_owned();
    }
    let mut literal = "/".to_owned();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => literal.extend(std::iter::once('\\').chain(letters.next())),
            '/' => literal.push_str("\\/"),
            letter => literal.push(letter),
        }
    }
    literal.push('/');
    literal
}

/// The regular expression of `text`'s matches as JSON writes them, as Lark writes it.
fn regex_in_json(text: &str) -> Result<String> {
    let parsed = regex_syntax::parse(text).map_err(|error| wrong(&error.to_string()))?;
    let mut out = String::new();
    // The ends of the text are where they are.
    match parsed.kind() {
        HirKind::Concat(parts) => {
            let first = usize::from(*parts[0].kind() == HirKind::Look(Look::Start));
            let is_end = *parts[parts.len() - 1].kind() == HirKind::Look(Look::End);
            for part in &parts[first..parts.len() - usize::from(is_end)] {
                write_part(part, &mut out)?;
            }
        }
        _ => write_part(&parsed, &mut out)?,
    }
    Ok(regex_literal(&out))
}

fn write_part(part: &Hir, out: &mut String) -> Result<()> {
    if out.len() > LONGEST {
        return Err(wrong(&format!("its terminals take more than {LONGEST} bytes")));
    }
    match part.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| wrong("it has bytes that are no text"))?;
            for letter in text.chars() {
                write_letter(letter, out);
            }
        }
        HirKind::Class(Class::Unicode(class)) => write_class(class.ranges(), out),
        HirKind::Class(Class::Bytes(_)) => return Err(wrong("it has bytes that are no text")),
        HirKind::Look(_) => return Err(wrong("it looks around, or for an end in its middle")),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write_part(&repetition.sub, out)?;
            let _ = match repetition.max {
                Some(max) => write!(out, "){{{},{max}}}", repetition.min),
                None => write!(out, "){{{},}}", repetition.min),
            };
        }
        HirKind::Capture(capture) => write_part(&capture.sub, out)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write_part(part, out))?,
        HirKind::Alternation(parts) => {
            for (at, part) in parts.iter().enumerate() {
                out.push_str(if at == 0 { "(?:" } else { "|" });
                write_part(part, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

/// True for a character that JSON escapes.
fn is_escaped(letter: char) -> bool {
    letter < ' ' || letter == '"' || letter == '\\'
}

/// Writes a character as JSON spells it.
fn write_letter(letter: char, out: &mut String) {
    let spelt = Value::from(letter.to_string()).to_string();
    out.push_str(&regex_syntax::escape(&spelt[1..spelt.len() - 1]));
}

fn write_class(ranges: &[ClassUnicodeRange], out: &mut String) {
    let (mut bare, mut spelt) = (String::new(), String::new());
    for range in ranges {
        let mut start = range.start();
        // Characters that JSON escapes are all ASCII.
        for letter in (range.start()..=range.end().min('\u{7f}')).filter(|letter| is_escaped(*letter)) {
            write_range(start, letter, &mut bare);
            start = char::from_u32(u32::from(letter) + 1).unwrap_or(letter);
            spelt.push('|');
            write_letter(letter, &mut spelt);
        }
        if start <= range.end() {
            let _ = write!(bare, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(start), u32::from(range.end()));
        }
    }
    // A class without a character matches nothing.
    let bare = if bare.is_empty() && !spelt.is_empty() {
        spelt.remove(0);
        bare
    } else {
        format!("[{bare}]")
    };
    let _ = write!(out, "(?:{bare}{spelt})");
}

/// Writes the characters from `start` up to, but without, `end`.
fn write_range(start: char, end: char, out: &mut String) {
    if start < end {
        let _ = write!(out, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(start), u32::from(end) - 1);
    }
}

/// A Lark grammar of the texts of `definition` as JSON writes them.
fn lark_in_json(definition: &str) -> Result<String> {
    let mut out = String::new();
    let mut rest = definition;
    while let Some(letter) = rest.chars().next() {
        if out.len() > LONGEST {
            return Err(wrong(&format!("its terminals take more than {LONGEST} bytes")));
        }
        if letter == '#' || rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if letter == '"' {
            let (first, flag, behind) = string(rest)?;
            rest = behind;
            let range = behind.trim_start().strip_prefix("..").map(str::trim_start);
            let expression = match range.filter(|behind| behind.starts_with('"')) {
                Some(behind) => {
                    let (last, _, behind) = string(behind)?;
                    rest = behind;
                    format!("[{}-{}]", regex_syntax::escape(&first), regex_syntax::escape(&last))
                }
                None if flag == "i" => format!("(?i){}", regex_syntax::escape(&first)),
                None => {
                    // The string of the string.
                    let spelt = Value::from(first).to_string();
                    out.push_str(&quoted(&spelt[1..spelt.len() - 1]));
                    continue;
                }
            };
            out.push_str(&regex_in_json(&expression)?);
        } else if letter == '/' {
            let (expression, behind) = regex(rest)?;
            rest = behind;
            out.push_str(&regex_in_json(&expression)?);
        } else if let Some(behind) = rest.strip_prefix("%import") {
            let (path, behind) = behind.split_at(behind.find('\n').unwrap_or(behind.len()));
            rest = behind;
            import(path, &mut out)?;
        } else if letter == '%' && !rest.starts_with("%ignore") {
            let word = rest.split(|letter: char| letter.is_whitespace() || letter == '{').next();
            return Err(wrong(&format!("`{}` has no form there", word.unwrap_or_default())));
        } else if matches!(letter, '<' | '@') || letter == '~' && !is_repetition(&rest[1..]) {
            return Err(wrong(&format!("`{letter}` has no form there")));
        } else {
            out.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    Ok(out)
}

/// True if the text after a `~` shows that it repeats, as in `~ 2` or `~ 2..3`, and does not negate.
fn is_repetition(behind: &str) -> bool {
    behind.trim_start().starts_with(|letter: char| letter.is_ascii_digit())
}

/// The offset of the second `mark` in a text that begins with one. A mark after a backslash is skipped.
fn closing(text: &str, mark: char) -> Option<usize> {
    let mut is_escaped = false;
    let end = text[1..].find(|letter| {
        let closes = letter == mark && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        closes
    });
    end.map(|end| end + 1)
}

/// The string at the beginning of a text, its flag, and the rest of the text.
fn string(text: &str) -> Result<(String, &str, &str)> {
    let end = closing(text, '"').ok_or_else(|| wrong("a string has no end"))?;
    let (literal, behind) = text.split_at(end + 1);
    let value =
        serde_json::from_str(literal).map_err(|error| wrong(&format!("the string {literal}: {error}")))?;
    Ok(match behind.strip_prefix('i') {
        Some(behind) => (value, "i", behind),
        None => (value, "", behind),
    })
}

/// The regular expression at the beginning of a text, and the rest of the text.
fn regex(text: &str) -> Result<(String, &str)> {
    let end = closing(text, '/').ok_or_else(|| wrong("a regular expression has no end"))?;
    let behind = &text[end + 1..];
    let flags = behind.find(|letter: char| !"imsux".contains(letter)).unwrap_or(behind.len());
    let (flags, behind) = behind.split_at(flags);
    let body = &text[1..end];
    Ok((if flags.is_empty() { body.to_owned() } else { format!("(?{flags}){body}") }, behind))
}

/// Writes the rule for `%import` of `path`.
fn import(path: &str, out: &mut String) -> Result<()> {
    let path = path.split("//").next().unwrap_or_default().trim();
    let (path, alias) = match path.split_once("->") {
        Some((path, alias)) => (path.trim(), Some(alias.trim())),
        None => (path, None),
    };
    let names = match path.split_once('(') {
        Some((_, names)) => names.trim_end_matches(')').split(',').map(str::trim).collect(),
        None => vec![path.strip_prefix("common.").unwrap_or(path)],
    };
    for name in names {
        let known = COMMON.iter().find(|(common, _)| *common == name && path.starts_with("common"));
        let (_, expression) = known.ok_or_else(|| wrong(&format!("`{path}` cannot be imported")))?;
        let _ = writeln!(out, "{}: {}", alias.unwrap_or(name), regex_in_json(expression)?);
    }
    Ok(())
}

fn wrong(why: &str) -> TokenizerError {
    let hint = "take a syntax without it, or leave out the tool's `format`";
    TokenizerError::unsupported("the grammar of a tool's text within JSON", why, hint)
}

/// Lark's library of terminals.
const COMMON: &[(&str, &str)] = &[
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", r"(\+|-)?[0-9]+"),
    ("DECIMAL", r"([0-9]+\.[0-9]*)|(\.[0-9]+)"),
    ("FLOAT", r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    ("NUMBER", r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+"),
    (
        "SIGNED_NUMBER",
        r"(\+|-)?(([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)",
    ),
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
];
