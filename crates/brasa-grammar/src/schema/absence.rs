//! The negation of patterns: texts in which a pattern does not occur, as patterns and lengths.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use serde_json::{Value, json};

use super::negation::{escaped, other_texts, text};

/// Characters that some regular expression dialects count as white space and others do not.
const DISPUTED: [(char, char); 3] = [('\x1c', '\x1f'), ('\u{85}', '\u{85}'), ('\u{feff}', '\u{feff}')];
/// A pattern of any number of any characters.
const ANY: &str = r"[\s\S]*";

/// Schemas of texts such that a text matches at least one of them exactly if `pattern` does not occur in it. `None` if no such
/// schemas are known.
///
/// Supported patterns: one character class anywhere; a run of such characters as the whole text; one of a few texts as the whole
/// text; and a fixed beginning.
pub fn of_pattern(pattern: &str) -> Option<Vec<Value>> {
    let hir = regex_syntax::parse(&llguidance::regex_to_lark(pattern, "dw")).ok()?;
    let parts = match hir.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        _ => std::slice::from_ref(&hir),
    };
    let is = |part: Option<&Hir>, look: Look| part.is_some_and(|part| *part.kind() == HirKind::Look(look));
    let is_begun = is(parts.first(), Look::Start);
    let is_ended = parts.len() > 1 && is(parts.last(), Look::End);
    let inner = &parts[usize::from(is_begun)..parts.len() - usize::from(is_ended)];
    let is_whole = is_begun && is_ended;
    match inner {
        [only] if !is_begun && !is_ended => Some(vec![text(format!("^{}*$", negated(class(only)?)?))]),
        // Wherever the row begins, its first letters are one.
        [only] if is_whole => match only.kind() {
            HirKind::Repetition(row) => {
                let mut alternatives = vec![text(negated(class(&row.sub)?)?)];
                alternatives
                    .extend(row.min.checked_sub(1).map(|most| json!({"type": "string", "maxLength": most})));
                alternatives
                    .extend(row.max.map(|most| json!({"type": "string", "minLength": u64::from(most) + 1})));
                Some(alternatives)
            }
            _ => whole_texts(inner).map(|texts| {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                vec![text(format!("^{}$", other_texts(&texts)))]
            }),
        },
        inner if is_whole => {
            let texts = whole_texts(inner)?;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            Some(vec![text(format!("^{}$", other_texts(&texts)))])
        }
        inner if is_begun && !is_ended => {
            let [beginning] = <[String; 1]>::try_from(whole_texts(inner)?).ok()?;
            (!beginning.is_empty()).then(|| vec![text(format!("^{}$", other_beginning(&beginning)))])
        }
        _ => None,
    }
}

/// The character class that an expression consists of; `None` if it is not a class.
fn class(hir: &Hir) -> Option<ClassUnicode> {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class.clone()),
        HirKind::Class(Class::Bytes(class)) => class.to_unicode_class(),
        HirKind::Literal(literal) => {
            let mut letters = std::str::from_utf8(&literal.0).ok()?.chars();
            let letter = letters.next().filter(|_| letters.next().is_none())?;
            Some(ClassUnicode::new([ClassUnicodeRange::new(letter, letter)]))
        }
        HirKind::Capture(group) => class(&group.sub),
        _ => None,
    }
}

/// The expression of the characters outside a class; `None` if there are none.
///
/// Dialects disagree about whether the characters [`DISPUTED`] are white space, so the expression contains none of them.
fn negated(mut class: ClassUnicode) -> Option<String> {
    class.negate();
    let disputed = DISPUTED.map(|(first, last)| ClassUnicodeRange::new(first, last));
    class.difference(&ClassUnicode::new(disputed));
    (!class.ranges().is_empty()).then(|| format!("(?:{})", Hir::class(Class::Unicode(class))))
}

/// All texts that an expression matches, if there are few.
fn whole_texts(parts: &[Hir]) -> Option<Vec<String>> {
    const MOST: usize = 64;
    let mut texts = vec![String::new()];
    for part in parts {
        let choices: Vec<String> = match part.kind() {
            HirKind::Literal(literal) => vec![std::str::from_utf8(&literal.0).ok()?.to_owned()],
            HirKind::Empty => vec![String::new()],
            HirKind::Capture(group) => whole_texts(std::slice::from_ref(&group.sub))?,
            HirKind::Concat(parts) => whole_texts(parts)?,
            HirKind::Alternation(branches) => {
                let branches: Option<Vec<Vec<String>>> =
                    branches.iter().map(|branch| whole_texts(std::slice::from_ref(branch))).collect();
                branches?.concat()
            }
            HirKind::Class(Class::Unicode(class)) => {
                let count: usize = class
                    .ranges()
                    .iter()
                    .map(|range| range.end() as usize - range.start() as usize + 1)
                    .sum();
                if count > MOST {
                    return None;
                }
                let letters = class.ranges().iter().flat_map(|range| range.start()..=range.end());
                letters.map(String::from).collect()
            }
            _ => return None,
        };
        texts = texts
            .iter()
            .flat_map(|text| choices.iter().map(move |choice| format!("{text}{choice}")))
            .collect();
        if texts.len() > MOST {
            return None;
        }
    }
    Some(texts)
}

/// A pattern of the texts that do not begin with `text`.
fn other_beginning(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        None => "[]".into(),
        Some(letter) => {
            let letter_code = escaped(letter);
            let behind = match letters.as_str() {
                "" => String::new(),
                rest => format!("|{letter_code}{}", other_beginning(rest)),
            };
            format!("([^{letter_code}]{ANY}{behind})?")
        }
    }
}
