//! Encoding for pre-tokenizers whose steps only cut text, as nearly all published ones do.
//!
//! The `tokenizers` crate makes three copies of each piece in each cut. Here a piece is a slice of the text. What becomes of a
//! piece depends on nothing but its text and the cuts that are still to come, so the ids of a short piece are copied if it was
//! seen before: a megabyte of newlines is then cut once, and prose, whose words repeat, is mostly copied.

use std::ops::Range;

use ahash::AHashMap;

use crate::decode::char_of_byte;
use crate::engine::AnyModel;
use crate::split::{Cut, Splitter, Splitters};

/// The longest piece that is remembered, in bytes.
const LONGEST_KNOWN: usize = 64;
/// The most pieces that are remembered of one text.
const MOST_KNOWN: usize = 1 << 16;

/// Encodes the parts of one text. Results for one part are reused for the others.
pub struct PieceEncoder<'e, 't> {
    cuts: Vec<&'e Cut>,
    /// Bytes are spelt in GPT-2's alphabet once all is cut.
    byte_level: bool,
    model: &'e AnyModel,
    /// The ids so far.
    pub ids: Vec<u32>,
    /// Places in `ids` of the ids of a piece, by the number of cuts behind it.
    known: AHashMap<(usize, &'t str), Range<usize>>,
    /// The last piece in GPT-2's alphabet.
    spelt: String,
}

impl<'e, 't> PieceEncoder<'e, 't> {
    /// An encoder; `None` if a step does more than cut.
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
    /// A pattern that fails or takes too long, or the model's own.
    pub fn encode(&mut self, text: &'t str) -> tokenizers::Result<()> {
        self.encode_behind(0, text)
    }

    /// Appends the ids of a piece that `done` cuts have made.
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
