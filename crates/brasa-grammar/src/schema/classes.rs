//! Character classes that the parser would read too widely.
//!
//! In JSON, the parser adds `"` and `\` to a class with all control characters, or with all but the line break. Such a class
//! without `"` or without `\` is made to exclude U+0000 here, which no text needs.

use regex_syntax::hir::{Capture, Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition};

/// A pattern with the same matches, except those that contain U+0000; `None` if the parser reads `pattern` rightly. The dialect
/// is JSON Schema's.
pub fn narrowed(pattern: &str) -> Option<String> {
    if !pattern.contains("[^")
        && !pattern.contains("&&")
        && !pattern.contains("--")
        && !pattern.contains("\\x")
    {
        return None;
    }
    let hir = regex_syntax::parse(&llguidance::regex_to_lark(pattern, "dw")).ok()?;
    let (hir, is_changed) = narrow(&hir);
    is_changed.then(|| hir.to_string())
}

fn narrow(hir: &Hir) -> (Hir, bool) {
    let all = |parts: &[Hir]| {
        let parts: Vec<(Hir, bool)> = parts.iter().map(narrow).collect();
        let is_changed = parts.iter().any(|(_, is_changed)| *is_changed);
        (parts.into_iter().map(|(part, _)| part).collect::<Vec<_>>(), is_changed)
    };
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) if is_misread(class) => {
            let mut class = class.clone();
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
            (Hir::class(Class::Unicode(class)), true)
        }
        HirKind::Repetition(repetition) => {
            let (sub, is_changed) = narrow(&repetition.sub);
            (Hir::repetition(Repetition { sub: sub.into(), ..repetition.clone() }), is_changed)
        }
        HirKind::Capture(group) => {
            let (sub, is_changed) = narrow(&group.sub);
            (Hir::capture(Capture { sub: sub.into(), ..group.clone() }), is_changed)
        }
        HirKind::Concat(parts) => {
            let (parts, is_changed) = all(parts);
            (Hir::concat(parts), is_changed)
        }
        HirKind::Alternation(parts) => {
            let (parts, is_changed) = all(parts);
            (Hir::alternation(parts), is_changed)
        }
        _ => (hir.clone(), false),
    }
}

/// True for a class that lacks `"` or `\` and has all control characters, perhaps without the line break.
fn is_misread(class: &ClassUnicode) -> bool {
    let has =
        |letter: char| class.ranges().iter().any(|range| range.start() <= letter && letter <= range.end());
    let has_controls = ('\0'..=' ').filter(|letter| !matches!(letter, '\n' | ' ')).all(has);
    has_controls && !(has('"') && has('\\'))
}
