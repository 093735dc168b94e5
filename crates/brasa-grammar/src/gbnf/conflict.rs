//! Proves that a lexer which takes the longest match reads texts rightly.
//!
//! A lexer that takes the longest match reads a text wrongly if a lexeme should end although a longer match has begun: after a
//! match of `A`, the next byte both continues some `B` and may begin what follows `A`. If no pair of lexemes has such a byte, the
//! longest match is part of every reading of the text.

use std::collections::HashSet;

use super::automaton::{Automaton, Bytes, START};

/// Number of pairs of states that all proofs of one grammar may still examine.
pub struct Budget(pub usize);

/// True if a lexer may confuse `one`, after which the bytes `follow` may come, with `other`. Also true if the budget is too small
/// for a decision.
pub fn conflict(one: &Automaton, follow: Bytes, other: &Automaton, budget: &mut Budget) -> bool {
    let mut seen = HashSet::from([(START, START)]);
    let mut open = vec![(START, START)];
    while let Some((own, others)) = open.pop() {
        let Some(left) = budget.0.checked_sub(1) else { return true };
        budget.0 = left;
        // An empty match is no lexeme.
        if own != START && one.ends(own) && other.onward(others).meets(&follow) {
            return true;
        }
        for byte in one.onward(own).iter() {
            if let (Some(own), Some(others)) = (one.next(own, byte), other.next(others, byte))
                && seen.insert((own, others))
            {
                open.push((own, others));
            }
        }
    }
    false
}
