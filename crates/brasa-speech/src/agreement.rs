//! The certain part of live speech: the words on which two transcripts in a row agree.
//!
//! Local agreement (Macháček, Dabre & Bojar 2023, arXiv:2307.14743): the sound so far is transcribed again and again, each time with a
//! little more of it; the longest common beginning of two transcripts in a row is kept for good, the rest may be revised.

use brasa_audio::transcript::Word;

/// New words that begin earlier than this many seconds before the end of the kept words are dropped.
const OVERLAP_S: f64 = 0.1;
/// Most words that are compared for repetitions at the boundary between two transcripts.
const SEAM: usize = 5;

/// Words of live sound: the certain words, followed by the uncertain words of the latest transcript.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    kept: Vec<Word>,
    pending: Vec<Word>,
}

impl Agreement {
    /// Takes the words of the latest transcript, with times from the beginning of the sound; returns the words that are kept from now
    /// on.
    pub fn insert(&mut self, words: impl IntoIterator<Item = Word>) -> Vec<Word> {
        let end_s = self.end_s();
        let mut words: Vec<Word> =
            words.into_iter().filter(|word| word.start_s > end_s - OVERLAP_S).collect();
        let repeated = self.repeated(&words, end_s);
        words.drain(..repeated);
        let agree = |(old, new): &(&Word, &Word)| old.text == new.text;
        let agreed = self.pending.iter().zip(&words).take_while(agree).count();
        let rest = words.split_off(agreed);
        self.kept.extend_from_slice(&words);
        self.pending = rest;
        words
    }

    /// Ends the sound: makes the words of the latest transcript certain too, and returns them.
    pub fn finish(&mut self) -> Vec<Word> {
        let words = std::mem::take(&mut self.pending);
        self.kept.extend_from_slice(&words);
        words
    }

    /// All words that are kept.
    pub fn kept(&self) -> &[Word] {
        &self.kept
    }

    /// Words of the latest transcript that may be revised.
    pub fn pending(&self) -> &[Word] {
        &self.pending
    }

    /// The end of the last word that is kept, in seconds; 0 if there is none.
    pub fn end_s(&self) -> f64 {
        self.kept.last().map_or(0.0, |word| word.end_s)
    }

    /// Number of first words that repeat the last kept words.
    fn repeated(&self, words: &[Word], end_s: f64) -> usize {
        if words.first().is_none_or(|first| first.start_s - end_s > 1.0) {
            return 0;
        }
        let most = SEAM.min(words.len()).min(self.kept.len());
        let same = |count: &usize| {
            let tail = &self.kept[self.kept.len() - count..];
            tail.iter().zip(words).all(|(kept, word)| kept.text == word.text)
        };
        // A word that is spoken twice begins behind the first one's end.
        let overlaps = |count: &usize| words[count - 1].start_s < end_s;
        (1..=most).rev().find(|count| same(count) && overlaps(count)).unwrap_or(0)
    }
}
