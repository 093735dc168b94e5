//! A recogniser whose logits are a hash of its texts.

use std::collections::BTreeMap;

use brasa_audio::Features;
use brasa_graph::step::Outs;
use brasa_speech::{CrossScores, Recogniser, Result, Rows, Shape, TextId, WindowId};

use crate::golden::VOCAB;

const TIMESTAMPS: usize = 50_364;
const EOT: usize = 50_257;

/// The logits behind `tokens`, whose transcript starts at place `sot` (`logits` of the golden script).
pub fn logits(seed: u32, tokens: &[u32], sot: usize) -> Vec<f32> {
    let hash = tokens.iter().fold(seed, |hash, &token| mix(hash.wrapping_mul(31).wrapping_add(token)));
    let number = |id: u32| (mix(hash ^ id.wrapping_mul(0x9E37_79B9)) >> 8) as f32 * 2.0_f32.powi(-21) - 4.0;
    let mut row: Vec<f32> = (0..VOCAB as u32).map(number).collect();
    for logit in &mut row[TIMESTAMPS..] {
        *logit -= 5.0;
    }
    row[EOT] += (0.25 * (tokens.len() as f64 - sot as f64) - 2.0) as f32;
    row
}

fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// Texts of any number of windows; each window has a seed of its own.
#[derive(Default)]
pub struct Synthetic {
    /// The place of the start of transcript in each text.
    pub sot: usize,
    /// Texts that have not ended, by window and tokens.
    pub texts: BTreeMap<TextId, (WindowId, Vec<u32>)>,
    /// Rows that were computed.
    pub rows: usize,
    /// Steps that were run.
    pub steps: usize,
    made: u64,
    logits: Vec<f32>,
}

impl Synthetic {
    fn add(&mut self, window: WindowId, tokens: Vec<u32>) -> TextId {
        self.made += 1;
        self.texts.insert(TextId(self.made), (window, tokens));
        TextId(self.made)
    }
}

impl Recogniser for Synthetic {
    fn shape(&self) -> Shape {
        Shape {
            vocab_size: VOCAB,
            text_context: 448,
            mel_bins: 80,
            positions: 1500,
            max_windows: 4,
            max_rows: 448,
            max_outs: 20,
        }
    }

    fn encode(&mut self, windows: &[&Features]) -> Result<Vec<WindowId>> {
        Ok((0..windows.len() as u64).map(WindowId).collect())
    }

    fn forget(&mut self, window: WindowId) {
        assert!(self.texts.values().all(|(other, _)| *other != window), "texts of {window:?} have not ended");
    }

    fn begin(&mut self, window: WindowId) -> Result<TextId> {
        Ok(self.add(window, Vec::new()))
    }

    fn fork(&mut self, text: TextId) -> Result<TextId> {
        let (window, tokens) = self.texts[&text].clone();
        Ok(self.add(window, tokens))
    }

    fn end(&mut self, text: TextId) {
        assert!(self.texts.remove(&text).is_some(), "{text:?} ends twice");
    }

    fn run(&mut self, rows: &[Rows]) -> Result<&[f32]> {
        self.logits.clear();
        self.steps += 1;
        let (mut all, mut outs) = (0, 0);
        for Rows { text, tokens, outs: wanted } in rows {
            let (window, known) = self.texts.get_mut(text).unwrap();
            let before = known.len();
            known.extend_from_slice(tokens);
            let rows: Vec<usize> = match wanted {
                Outs::None => Vec::new(),
                Outs::Last => vec![tokens.len() - 1],
                Outs::All => (0..tokens.len()).collect(),
                Outs::Rows(rows) => rows.iter().map(|&row| row as usize).collect(),
            };
            all += tokens.len();
            outs += rows.len();
            for row in rows {
                self.logits.extend(logits(window.0 as u32, &known[..=before + row], self.sot));
            }
        }
        assert!(all <= self.shape().max_rows && outs <= self.shape().max_outs, "{all} rows, {outs} outs");
        self.rows += all;
        Ok(&self.logits)
    }

    fn cross_scores(&mut self, _: WindowId, _: &[u32]) -> Result<CrossScores> {
        unreachable!("no times of words are asked for")
    }
}
