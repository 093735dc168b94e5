//! The proof that a lexer may take the longest match.
//!
//! A lexer that takes the longest match goes wrong where a lexeme could end although a longer match has begun: behind a match of
//! `A`, the next byte both goes on in some `B` and may begin what follows `A`. If no pair of lexemes has such a byte, whatever
//! the lexer takes is what every reading of the text takes.

use std::collections::HashSet;

use super::automaton::{Automaton, Bytes, START};

/// Pairs of states that all proofs of one grammar may look at.
pub struct Budget(pub usize);

/// True if a lexer may confuse `one`, which bytes of `follow` may follow, with `other`. Also true if that is too hard to decide.
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
