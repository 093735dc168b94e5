//! Counts of a file of examples: read, cut, left out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts of a file of examples: read, cut, left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Number of rows of the file.
    pub rows: usize,
    /// Number of documents made of the rows.
    pub documents: usize,
    /// Number of tokens of the documents.
    pub tokens: u64,
    /// Number of learned tokens.
    pub learned: u64,
    /// Lengths of all documents before cutting.
    pub lengths: Lengths,
    /// Documents whose end was cut off, and the tokens that were cut.
    pub cut: Counted,
    /// Documents that were left out because they were too long or had no learned tokens left, and the tokens of these.
    pub skipped: Counted,
}

/// Lengths of documents in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// Length of the shortest document.
    pub shortest: u32,
    /// The median length.
    pub median: u32,
    /// The 95th percentile of lengths.
    pub long: u32,
    /// Length of the longest document.
    pub longest: u32,
}

/// Documents that were cut or left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Number of documents.
    pub documents: usize,
    /// Number of tokens that were lost.
    pub tokens: u64,
    /// Line of the first of these documents; `None` if there are none.
    pub first_line: Option<usize>,
}

impl Counted {
    pub(super) fn count(&mut self, line: usize, tokens: usize) {
        self.documents += 1;
        self.tokens += tokens as u64;
        self.first_line.get_or_insert(line);
    }
}

impl Lengths {
    pub(super) fn of(mut lengths: Vec<u32>) -> Self {
        lengths.sort_unstable();
        let Some(last) = lengths.len().checked_sub(1) else { return Self::default() };
        let at = |share: usize| lengths[last * share / 20];
        Self { shortest: at(0), median: at(10), long: at(19), longest: at(20) }
    }
}

/// Prints one line each: the documents, those that were cut, those that were left out.
impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, documents, tokens, learned, lengths, cut, skipped } = self;
        let Lengths { shortest, median, long, longest } = lengths;
        write!(out, "{rows} rows, {documents} documents, {tokens} tokens, {learned} of them learned; ")?;
        write!(out, "lengths {shortest} to {longest}, median {median}, 95 % up to {long}")?;
        for (what, counted) in [("cut", cut), ("left out", skipped)] {
            if let Some(line) = counted.first_line {
                write!(out, "\n{} too long and {what}, the first on line {line}: ", counted.documents)?;
                write!(out, "{} tokens lost", counted.tokens)?;
            }
        }
        Ok(())
    }
}
