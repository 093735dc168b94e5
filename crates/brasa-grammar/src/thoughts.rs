//! Grammars for models that think first: the grammar applies after the thoughts.
//!
//! Within thoughts, every token may come except those that end the answer. At the beginning, unless the prompt has closed the
//! thoughts already, either the thoughts or the answer proper may begin. After the thoughts, one token of line breaks may precede
//! the answer, since models write one there.

use std::fmt;
use std::sync::Arc;

use brasa_engine::MaskSource;
use brasa_graph::sampling::{SamplingError, TokenMask};
use brasa_tokenizer::{AddSpecial, ParseSpecial, ThoughtMarks, TokenKind, Tokenizer};

/// Makes masks with a grammar that applies after the thoughts.
pub struct AfterThoughts {
    grammar: Arc<dyn MaskSource>,
    vocabulary: Arc<Vocabulary>,
    place: Place,
}

/// The tokens of a model, grouped as the masks need them.
struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    /// Token ids of the mark before the thoughts.
    start: Vec<u32>,
    /// The mark after the thoughts.
    end: &'static str,
    /// Tokens that may occur in thoughts.
    plain: Vec<u32>,
    /// Tokens that consist of line breaks.
    breaks: Vec<u32>,
}

/// The place in an answer.
#[derive(Clone)]
enum Place {
    /// At the beginning. The number counts tokens of the mark before the thoughts.
    Front(usize),
    /// In the thoughts, with the last bytes of their text.
    Thoughts(Vec<u8>),
    /// Directly after the thoughts.
    Behind,
    /// In the answer proper.
    Answer,
    /// The answer began within the token that ended the thoughts, so the grammar does not apply.
    Lost,
}

struct Mask {
    grammar: Box<dyn TokenMask>,
    vocabulary: Arc<Vocabulary>,
    place: Place,
}

impl AfterThoughts {
    /// Makes a grammar for the whole answer: thoughts first, then `grammar`. If the prompt has closed the thoughts, `grammar`
    /// itself.
    pub fn wrap(
        grammar: Arc<dyn MaskSource>,
        tokenizer: &Arc<Tokenizer>,
        marks: &'static ThoughtMarks,
        prompt_end: &str,
        vocab_size: usize,
    ) -> Arc<dyn MaskSource> {
        let prompt = prompt_end.trim_end();
        let start = tokenizer.encode(marks.start, AddSpecial::No, ParseSpecial::Yes).unwrap_or_default();
        let place = if prompt.ends_with(marks.start) {
            Place::Thoughts(Vec::new())
        } else if prompt.ends_with(marks.end) || start.is_empty() {
            return grammar;
        } else {
            Place::Front(0)
        };
        let mut vocabulary = Vocabulary {
            tokenizer: Arc::clone(tokenizer),
            start,
            end: marks.end,
            plain: vec![0; vocab_size.div_ceil(32)],
            breaks: vec![0; vocab_size.div_ceil(32)],
        };
        for (id, text, kind) in tokenizer.vocabulary().iter().filter(|&(id, ..)| (id as usize) < vocab_size) {
            let is_text = !matches!(kind, TokenKind::Missing | TokenKind::Unused | TokenKind::Unknown);
            if is_text && !text.is_empty() && !tokenizer.is_end_of_generation(id) {
                set(&mut vocabulary.plain, id);
            }
            let bytes = tokenizer.piece_bytes(id).unwrap_or_default();
            if kind == TokenKind::Normal && !bytes.is_empty() && bytes.iter().all(|&byte| byte == b'\n') {
                set(&mut vocabulary.breaks, id);
            }
        }
        Arc::new(Self { grammar, vocabulary: Arc::new(vocabulary), place })
    }
}

impl MaskSource for AfterThoughts {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Mask {
            grammar: self.grammar.start(),
            vocabulary: Arc::clone(&self.vocabulary),
            place: self.place.clone(),
        })
    }

    fn warnings(&self) -> &[String] {
        self.grammar.warnings()
    }
}

impl fmt::Debug for AfterThoughts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterThoughts").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The place after a token, and true if the token belongs to the answer proper.
    fn step(&self, place: Place, id: u32) -> (Place, bool) {
        match place {
            Place::Front(count) if self.start.get(count) == Some(&id) => {
                let count = count + 1;
                (
                    if count == self.start.len() { Place::Thoughts(Vec::new()) } else { Place::Front(count) },
                    false,
                )
            }
            Place::Thoughts(mut text) => {
                text.extend_from_slice(&self.tokenizer.piece_bytes(id).unwrap_or_default());
                (self.behind(text), false)
            }
            Place::Behind if is_set(&self.breaks, id) => (Place::Answer, false),
            Place::Front(_) | Place::Behind | Place::Answer => (Place::Answer, true),
            Place::Lost => (Place::Lost, false),
        }
    }

    /// The place after thoughts that end with `text`.
    fn behind(&self, mut text: Vec<u8>) -> Place {
        let end = self.end.as_bytes();
        let Some(at) = text.windows(end.len()).position(|window| window == end) else {
            // A mark may still end with what comes.
            text.drain(..text.len().saturating_sub(end.len() - 1));
            return Place::Thoughts(text);
        };
        match &text[at + end.len()..] {
            [] => Place::Behind,
            rest if rest.iter().all(u8::is_ascii_whitespace) => Place::Answer,
            _ => Place::Lost,
        }
    }
}

impl TokenMask for Mask {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        let vocabulary = &*self.vocabulary;
        let (mut place, mut taken) = (self.place.clone(), 0);
        // Behind the first token of the answer proper, all drafts are the grammar's.
        while taken < drafts.len() && !matches!(place, Place::Answer) {
            let (next, is_answer) = vocabulary.step(place, drafts[taken]);
            place = next;
            if is_answer {
                break;
            }
            taken += 1;
        }
        match place {
            Place::Front(0) => {
                self.grammar.fill(&[], words)?;
                set(words, vocabulary.start[0]);
            }
            Place::Front(count) => {
                words.fill(0);
                set(words, vocabulary.start[count]);
            }
            Place::Thoughts(_) => {
                words.fill(0);
                words.iter_mut().zip(&vocabulary.plain).for_each(|(word, plain)| *word = *plain);
            }
            Place::Behind => {
                self.grammar.fill(&[], words)?;
                words.iter_mut().zip(&vocabulary.breaks).for_each(|(word, breaks)| *word |= *breaks);
            }
            Place::Answer => self.grammar.fill(&drafts[taken..], words)?,
            Place::Lost => {
                let reason = "the answer began inside the token that ended the thoughts";
                return Err(SamplingError::Mask { reason: reason.into() });
            }
        }
        Ok(())
    }

    fn forced(&mut self, tokens: &mut Vec<u32>) {
        match self.place {
            Place::Answer => self.grammar.forced(tokens),
            // The mark has begun.
            Place::Front(count) if count > 0 => tokens.extend(&self.vocabulary.start[count..]),
            Place::Front(_) | Place::Thoughts(_) | Place::Behind | Place::Lost => {}
        }
    }

    fn accept(&mut self, id: u32) {
        let place = std::mem::replace(&mut self.place, Place::Answer);
        let (place, is_answer) = self.vocabulary.step(place, id);
        self.place = place;
        if is_answer {
            self.grammar.accept(id);
        }
    }
}

fn set(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

fn is_set(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}
