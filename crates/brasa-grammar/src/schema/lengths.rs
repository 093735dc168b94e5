//! The lengths of the texts that match a pattern.

use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look};

/// Lengths of the texts that match a pattern, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Length of the shortest text.
    pub least: usize,
    /// Length of the longest text; `None` if there is no limit.
    pub most: Option<usize>,
    /// Most characters that are needed to complete any beginning of a text.
    pub rest: usize,
}

impl Lengths {
    /// The lengths of texts that contain a match of `pattern`, in JSON Schema's dialect as the parser reads it; `None` if they
    /// are not known.
    pub fn of(pattern: &str) -> Option<Self> {
        let hir = regex_syntax::parse(&llguidance::regex_to_lark(pattern, "dw")).ok()?;
        Self::of_search(&hir)
    }

    /// The lengths of texts that contain a match of an expression, which may have anchors at its ends.
    fn of_search(hir: &Hir) -> Option<Self> {
        match hir.kind() {
            HirKind::Alternation(branches) => either(branches.iter().map(Self::of_search)),
            HirKind::Capture(group) => Self::of_search(group_of_text(group)?),
            _ => {
                let parts = match hir.kind() {
                    HirKind::Concat(parts) => parts.as_slice(),
                    _ => std::slice::from_ref(hir),
                };
                let is = |part: &Hir, look| matches!(part.kind(), HirKind::Look(found) if *found == look);
                let first = parts.iter().take_while(|part| is(part, Look::Start)).count();
                let behind = parts[first..].iter().rev().take_while(|part| is(part, Look::End)).count();
                let last = parts.len() - behind;
                let lengths = of_concat(&parts[first..last])?;
                let is_whole = first > 0 && behind > 0;
                Some(Self { most: lengths.most.filter(|_| is_whole), ..lengths })
            }
        }
    }
}

/// The lengths of the matches of an expression without anchors.
fn of_expression(hir: &Hir) -> Option<Lengths> {
    let exactly = |count: usize| Some(Lengths { least: count, most: Some(count), rest: count });
    match hir.kind() {
        HirKind::Empty => exactly(0),
        HirKind::Literal(literal) => exactly(std::str::from_utf8(&literal.0).ok()?.chars().count()),
        HirKind::Class(Class::Unicode(class)) if !class.ranges().is_empty() => exactly(1),
        HirKind::Repetition(repetition) => {
            let each = of_expression(&repetition.sub)?;
            let least = each.least.saturating_mul(repetition.min as usize);
            let most = match (each.most, repetition.max) {
                (Some(0), _) | (_, Some(0)) => Some(0),
                (Some(most), Some(max)) => Some(most.saturating_mul(max as usize)),
                _ => None,
            };
            Some(Lengths { least, most, rest: each.rest.saturating_add(least) })
        }
        HirKind::Concat(parts) => of_concat(parts),
        HirKind::Alternation(branches) => either(branches.iter().map(of_expression)),
        HirKind::Capture(group) => of_expression(group_of_text(group)?),
        HirKind::Class(_) | HirKind::Look(_) => None,
    }
}

/// The expression inside a group; `None` for a group name to which the parser gives another meaning.
fn group_of_text(group: &Capture) -> Option<&Hir> {
    (group.name.as_deref() != Some("stop")).then_some(&group.sub)
}

fn of_concat(parts: &[Hir]) -> Option<Lengths> {
    parts.iter().rev().try_fold(Lengths { least: 0, most: Some(0), rest: 0 }, |behind, part| {
        let part = of_expression(part)?;
        Some(Lengths {
            least: part.least.saturating_add(behind.least),
            most: part.most.zip(behind.most).map(|(part, behind)| part.saturating_add(behind)),
            rest: part.rest.saturating_add(behind.least).max(behind.rest),
        })
    })
}

fn either(branches: impl Iterator<Item = Option<Lengths>>) -> Option<Lengths> {
    let longer = |one: Lengths, other: Lengths| Lengths {
        least: one.least.min(other.least),
        most: one.most.zip(other.most).map(|(one, other)| one.max(other)),
        rest: one.rest.max(other.rest),
    };
    branches.reduce(|one, other| Some(longer(one?, other?)))?
}
