//! Encoding for pre-tokenizers with only cutting steps, which nearly all published ones are.
//!
//! The `tokenizers` crate makes three copies of each piece in each cut. Here a piece is a slice of the text. The ids of a piece
//! depend only on its text and the remaining cuts. So the ids of a short piece are copied if the piece occurred before: a
//! megabyte of newlines is cut only once, and ids of prose are mostly copied, since its words repeat.

use std::ops::Range;

use ahash::AHashMap;

use crate::decode::char_of_byte;
use crate::engine::AnyModel;
use crate::split::{Cut, Splitter, Splitters};

/// Most bytes of a piece that is remembered.
const LONGEST_KNOWN: usize = 64;
/// Most pieces that are remembered of one text.
const MOST_KNOWN: usize = 1 << 16;

/// Encodes the parts of one text. Results for one part are reused for the others.
pub struct PieceEncoder<'e, 't> {
    cuts: Vec<&'e Cut>,
    /// True if bytes are spelt in GPT-2's alphabet after all cuts.
    byte_level: bool,
    model: &'e AnyModel,
    /// The ids so far.
    pub ids: Vec<u32>,
    /// Ranges of `ids` for known pieces, by the number of cuts done and the text.
    known: AHashMap<(usize, &'t str), Range<usize>>,
    /// Scratch memory: a piece in GPT-2's alphabet.
    spelt: String,
}

impl<'e, 't> PieceEncoder<'e, 't> {
    /// An encoder; `None` if a step of `splitters` does more than cut.
    pub fn new(splitters: &'e Splitters, model: &'e AnyModel) -> Option<Self> {
        let (steps, byte_level) = match splitters.0.split_last() {
            Some((Splitter::Bytes, steps)) => (steps, true),
            _ => (&splitters.0[..], false),
        };
        let cut = |step: &'e Splitter| match step {
            Splitter::Cut(cut) => Some(cut).filter(|cut| cut.only_cuts()),
            _ => None,
        };
        let cuts = steps.iter().map(cut).collect::<Option<_>>()?;
        let known = AHashMap::new();
        Some(Self { cuts, byte_level, model, ids: Vec::new(), known, spelt: String::new() })
    }

    /// Appends the ids of a part of the text.
    ///
    /// # Errors
    ///
    /// The error of a pattern that fails or takes too long, or of the model.
    pub fn encode(&mut self, text: &'t str) -> tokenizers::Result<()> {
        self.encode_behind(0, text)
    }

    /// Appends the ids of a piece after `done` of the cuts.
    fn encode_behind(&mut self, done: usize, piece: &'t str) -> tokenizers::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        let key = (piece.len() <= LONGEST_KNOWN).then_some((done, piece));
        if let Some(ids) = key.and_then(|key| self.known.get(&key)) {
            self.ids.extend_from_within(ids.clone());
            return Ok(());
        }
        let start = self.ids.len();
        match self.cuts.get(done) {
            Some(cut) => {
                for piece in cut.pieces(piece)? {
                    self.encode_behind(done + 1, piece)?;
                }
            }
            None => self.merge(piece)?,
        }
        if let Some(key) = key.filter(|_| self.known.len() < MOST_KNOWN) {
            self.known.insert(key, start..self.ids.len());
        }
        Ok(())
    }

    /// Appends the ids of a piece that is not cut any further.
    fn merge(&mut self, piece: &str) -> tokenizers::Result<()> {
        let tokens = if self.byte_level {
            self.spelt.clear();
            self.spelt.extend(piece.bytes().map(char_of_byte));
            self.model.tokenize(&self.spelt)?
        } else {
            self.model.tokenize(piece)?
        };
        self.ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}
