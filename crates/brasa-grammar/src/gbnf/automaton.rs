//! Finite automata of lexemes, over bytes.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::{Anchored, MatchKind};

/// Most bytes of an automaton. A lexeme with a larger one is cut.
const MOST_BYTES: usize = 1 << 20;

/// Most states of an automaton that is examined.
const MOST_STATES: usize = 2_000;

/// A set of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes([u64; 4]);

impl Bytes {
    /// Adds all bytes of another set; returns true if one of them is new.
    pub fn add_all(&mut self, other: Self) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
        *self != before
    }

    pub fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    pub fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
    }

    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |&byte| self.has(byte))
    }
}

/// The automaton of a lexeme: which bytes may follow which, and where the lexeme may end.
pub struct Automaton {
    /// The next state by state and byte; 0 if the byte cannot follow. States are numbered from 1, the first one.
    next: Vec<[u16; 256]>,
    /// For each state, true if the lexeme may end there.
    ends: Vec<bool>,
}

/// The state at the beginning of a lexeme.
pub const START: u16 = 1;

impl Automaton {
    /// The automaton of a regular expression; `None` if it would be too large.
    pub fn new(expression: &str) -> Option<Self> {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(MOST_BYTES))
            .determinize_size_limit(Some(4 * MOST_BYTES));
        let thompson = regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(4 * MOST_BYTES));
        let automaton = dense::Builder::new().configure(config).thompson(thompson).build(expression).ok()?;
        let start = automaton.universal_start_state(Anchored::Yes)?;
        let ends = |state| automaton.is_match_state(automaton.next_eoi_state(state));
        let is_dead = |state| automaton.is_dead_state(state);
        // The crate tells of a match one byte late: it has states in which nothing ends and that nothing but death follows.
        let is_late = |state| {
            automaton.is_match_state(state)
                && !ends(state)
                && (0..=u8::MAX).all(|byte| is_dead(automaton.next_state(state, byte)))
        };
        let mut numbers = HashMap::from([(start, START)]);
        let mut own = Self { next: vec![[0; 256]; 2], ends: vec![false, ends(start)] };
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let number = usize::from(numbers[&state]);
            for byte in 0..=u8::MAX {
                let next = automaton.next_state(state, byte);
                if is_dead(next) || is_late(next) {
                    continue;
                }
                let count = own.next.len();
                let target = *numbers.entry(next).or_insert(count as u16);
                if usize::from(target) == count {
                    if count > MOST_STATES {
                        return None;
                    }
                    own.next.push([0; 256]);
                    own.ends.push(ends(next));
                    open.push(next);
                }
                own.next[number][usize::from(byte)] = target;
            }
        }
        Some(own)
    }

    /// The state after `byte`; `None` if the byte cannot follow.
    pub fn next(&self, state: u16, byte: u8) -> Option<u16> {
        Some(self.next[usize::from(state)][usize::from(byte)]).filter(|&next| next != 0)
    }

    /// True if the lexeme may end in `state`.
    pub fn ends(&self, state: u16) -> bool {
        self.ends[usize::from(state)]
    }

    /// The bytes that may continue the lexeme in `state`; at the start, the bytes that may begin it.
    pub fn onward(&self, state: u16) -> Bytes {
        let mut bytes = Bytes::default();
        (0..=u8::MAX).filter(|&byte| self.next(state, byte).is_some()).for_each(|byte| bytes.add(byte));
        bytes
    }
}
