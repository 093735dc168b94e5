//! Computes masks inside strings for many tokens at once.
//!
//! `llguidance` allows all tokens of plain text at once if it proves that a lexeme goes on with any plain text. It decides this
//! by the lexeme's expression, and so fails to prove it for most patterns: `[a-z0-9-]{1,63}`, a pattern together with a length,
//! the text of a URI. Such a mask is a walk over the tree of all tokens, which takes a millisecond and more.
//!
//! Here tokens are grouped by shapes, such as words of lower-case letters. A shape is a small automaton. The lexer's automaton
//! and the shape's are followed together from the lexer's state. If all pairs of states within *n* bytes stay inside the lexeme,
//! all tokens of the shape with up to *n* bytes are allowed, as the walk would have found. Other tokens are walked.

use std::sync::Arc;

use llguidance::HashSet;
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};

/// Most bytes of the tokens in each part of a shape. A last part has all longer tokens.
const LENGTHS: [usize; 2] = [8, 16];
/// Most new pairs of states that one byte may lead to. Text has 9 for each state of the lexer. If a pattern needs more, following
/// all text would fill the lexer with states that no token of the vocabulary needs.
const MOST_PAIRS: usize = 12;
/// The number of `llguidance`'s slice of plain text with up to 10 characters. If the slice is allowed, `llguidance` computes
/// masks by itself.
const PLAIN_SLICE: usize = 1;
/// Work limit for checking whether that slice is allowed, in `llguidance`'s unit.
const SLICE_BUDGET: u64 = 1_000;

/// The tokens of a vocabulary, grouped by shape.
pub struct Shapes {
    environment: TokEnv,
    slicer: Arc<SlicedBiasComputer>,
    by_shape: Vec<Shape>,
    /// Tokens without a shape.
    others: TokTrie,
}

/// The tokens that an automaton accepts.
struct Shape {
    automaton: Automaton,
    /// The tokens by length.
    parts: Vec<Part>,
}

/// For each state, the bytes that may follow and the next states. The first state is 0.
type Automaton = Vec<Vec<(u8, usize)>>;

struct Part {
    tokens: SimpleVob,
    trie: TokTrie,
    longest_bytes: usize,
}

impl Shapes {
    /// Groups the tokens of a vocabulary by shape.
    pub fn new(environment: &TokEnv, slicer: Arc<SlicedBiasComputer>) -> Self {
        let trie = environment.tok_trie();
        let mut others = trie.alloc_token_set();
        others.set_all(true);
        let by_shape = automatons().into_iter().map(|automaton| {
            let mut parts: Vec<_> = (0..=LENGTHS.len()).map(|_| (trie.alloc_token_set(), 0_usize)).collect();
            for id in 0..trie.vocab_size() as u32 {
                let bytes = trie.token(id);
                if others.is_allowed(id) && goes_through(&automaton, bytes) {
                    let (tokens, longest) =
                        &mut parts[LENGTHS.iter().filter(|&&most| bytes.len() > most).count()];
                    tokens.allow_token(id);
                    *longest = (*longest).max(bytes.len());
                }
            }
            let parts = parts.into_iter().filter(|part| part.1 > 0).map(|(tokens, longest_bytes)| {
                others.sub(&tokens);
                Part { trie: trie.filter(&tokens), tokens, longest_bytes }
            });
            Shape { parts: parts.collect(), automaton }
        });
        let by_shape = by_shape.collect();
        Self { environment: environment.clone(), slicer, by_shape, others: trie.filter(&others) }
    }
}

impl BiasComputer for Shapes {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = parser.lexer_state();
        if !start.is_empty() || is_plain(parser, state) {
            return self.slicer.compute_bias(parser, start);
        }
        let mut allowed = self.trie().alloc_token_set();
        let (mut walked, mut is_some_allowed) = (vec![&self.others], false);
        for shape in &self.by_shape {
            let reach_bytes = reach(parser, state, &shape.automaton);
            for part in &shape.parts {
                if part.longest_bytes <= reach_bytes {
                    allowed.or(&part.tokens);
                    is_some_allowed = true;
                } else {
                    walked.push(&part.trie);
                }
            }
        }
        if !is_some_allowed {
            return self.slicer.compute_bias(parser, start);
        }
        for trie in walked {
            trie.add_bias(parser, &mut allowed, &[]);
        }
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.environment.tok_trie()
    }
}

/// True if `llguidance` proves that plain text may follow.
fn is_plain(parser: &mut ParserRecognizer<'_>, state: StateID) -> bool {
    let lexer = parser.lexer_mut();
    lexer.subsume_possible(state)
        && lexer.check_subsume(state, PLAIN_SLICE, SLICE_BUDGET, None).unwrap_or(false)
}

/// The number of bytes up to which a lexeme accepts every text of an automaton.
fn reach(parser: &mut ParserRecognizer<'_>, state: StateID, automaton: &Automaton) -> usize {
    let first = (state, 0);
    let (mut seen, mut here) = (HashSet::default(), vec![first]);
    seen.insert(first);
    let longest = LENGTHS[LENGTHS.len() - 1];
    for depth_bytes in 0..longest {
        let mut behind = Vec::new();
        let mut last = first;
        for (state, place) in here {
            for &(byte, to) in &automaton[place] {
                let next = parser.lexer_mut().transition_start_state(state, Some(byte), &None);
                // The lexeme ends here, or may not go on.
                if next.is_dead() || next.has_lowest_match() {
                    return depth_bytes;
                }
                if (next, to) != last {
                    last = (next, to);
                    if seen.insert(last) {
                        behind.push(last);
                        if behind.len() > MOST_PAIRS {
                            return depth_bytes;
                        }
                    }
                }
            }
        }
        if behind.is_empty() {
            return usize::MAX;
        }
        here = behind;
    }
    longest
}

/// True if an automaton accepts `bytes`.
fn goes_through(automaton: &Automaton, bytes: &[u8]) -> bool {
    let step =
        |place: usize, byte: u8| automaton[place].iter().find(|edge| edge.0 == byte).map(|edge| edge.1);
    !bytes.is_empty() && bytes.iter().try_fold(0, |place, &byte| step(place, byte)).is_some()
}

/// The automata of the shapes. A token belongs to the first one that accepts it.
fn automatons() -> Vec<Automaton> {
    let edges = |bytes: &mut dyn Iterator<Item = u8>, to| bytes.map(|byte| (byte, to)).collect::<Vec<_>>();
    let small = || b'a'..=b'z';
    let letters = || (b'a'..=b'z').chain(b'A'..=b'Z');
    // What a JSON text has as it is.
    let plain = || (b' '..=b'~').filter(|byte| !matches!(byte, b'"' | b'\\'));
    let behind_blank = |bytes: &mut dyn Iterator<Item = u8>| vec![vec![(b' ', 1)], edges(bytes, 1)];
    vec![
        vec![edges(&mut small(), 0)],
        vec![edges(&mut letters(), 0)],
        behind_blank(&mut small()),
        behind_blank(&mut letters()),
        vec![edges(&mut plain(), 0)],
        text(edges(&mut plain(), 0)),
    ]
}

/// An automaton of text in UTF-8 (RFC 3629, section 4), with the characters of one byte in `first`.
fn text(mut first: Vec<(u8, usize)>) -> Automaton {
    let mut places = vec![Vec::new()];
    let mut place = |low: u8, high: u8, to: usize| {
        places.push((low..=high).map(|byte| (byte, to)).collect::<Vec<_>>());
        places.len() - 1
    };
    let last = place(0x80, 0xbf, 0);
    let two = place(0x80, 0xbf, last);
    let three = place(0x80, 0xbf, two);
    for (low, high, to) in [
        (0xc2, 0xdf, last),
        (0xe0, 0xe0, place(0xa0, 0xbf, last)),
        (0xe1, 0xec, two),
        (0xed, 0xed, place(0x80, 0x9f, last)),
        (0xee, 0xef, two),
        (0xf0, 0xf0, place(0x90, 0xbf, two)),
        (0xf1, 0xf3, three),
        (0xf4, 0xf4, place(0x80, 0x8f, two)),
    ] {
        first.extend((low..=high).map(|byte: u8| (byte, to)));
    }
    places[0] = first;
    places
}
