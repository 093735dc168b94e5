//! Comparisons of answers, by name.

use super::EvalCheck;

/// Checks so far, in the order in which they were first made.
#[derive(Debug, Default)]
pub(super) struct Comparisons(Vec<EvalCheck>);

impl Comparisons {
    /// Compares two answers. A check of several pairs fails with the first pair that differs.
    pub(super) fn see(&mut self, name: &'static str, required: bool, found: &[u32], expected: &[u32]) {
        let known = self.0.iter().position(|check| check.name == name);
        if known.is_none() {
            self.0.push(EvalCheck { name, required, difference: None });
        }
        let place = known.unwrap_or(self.0.len() - 1);
        let check = &mut self.0[place];
        if check.difference.is_none() {
            check.difference = difference(found, expected);
        }
    }

    pub(super) fn into_checks(self) -> Vec<EvalCheck> {
        self.0
    }
}

/// The first difference between two answers; `None` if they are equal.
fn difference(found: &[u32], expected: &[u32]) -> Option<String> {
    let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
    match place {
        Some(place) => Some(format!("token {place} is {}, expected {}", found[place], expected[place])),
        None if found.len() != expected.len() => {
            Some(format!("{} tokens, expected {}", found.len(), expected.len()))
        }
        None => None,
    }
}
