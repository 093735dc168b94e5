//! The model's interface to the procedure: encoding, decoding, attention.

use brasa_audio::Features;
use brasa_graph::step::Outs;

use crate::Result;

/// Names a window of sound that has been encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowId(pub u64);

/// Names a text that is being decoded over one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TextId(pub u64);

/// Sizes of a model of speech and of the steps that its device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the logits.
    pub vocab_size: usize,
    /// Most tokens of a text, its prompt included.
    pub text_context: usize,
    /// Mel bins of a frame.
    pub mel_bins: usize,
    /// Rows of an encoded window, 20 ms each.
    pub positions: usize,
    /// Most windows that are encoded in one call.
    pub max_windows: usize,
    /// Most tokens of all texts together in one step; at least `text_context`.
    pub max_rows: usize,
    /// Most rows with logits in one step.
    pub max_outs: usize,
}

/// Tokens that a step appends to a text.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The text.
    pub text: TextId,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Rows with outputs.
    pub outs: Outs,
}

impl Rows {
    /// Number of rows with outputs.
    pub fn outs(&self) -> usize {
        match &self.outs {
            Outs::None => 0,
            Outs::Last => self.tokens.len().min(1),
            Outs::All => self.tokens.len(),
            Outs::Rows(rows) => rows.len(),
        }
    }
}

/// Attention scores of one text's tokens over its window, by the heads used for alignment: `q · k / √E`, before any softmax.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossScores {
    /// `[heads, tokens, positions]`.
    pub values: Vec<f32>,
    /// Number of heads.
    pub heads: usize,
    /// Number of tokens.
    pub tokens: usize,
}

/// A model of speech on a device: encodes windows, decodes texts.
///
/// Texts are owned by the caller, who ends each of them; the window stays in memory after its last text has ended.
pub trait Recogniser {
    /// Sizes of model and steps.
    fn shape(&self) -> Shape;

    /// Encodes windows of 30 s, at most [`Shape::max_windows`] of them.
    ///
    /// # Errors
    ///
    /// Errors of the device. No window is kept.
    fn encode(&mut self, windows: &[&Features]) -> Result<Vec<WindowId>>;

    /// Releases the memory of a window. Its texts must have ended.
    fn forget(&mut self, window: WindowId);

    /// Begins an empty text over a window.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    fn begin(&mut self, window: WindowId) -> Result<TextId>;

    /// Makes a copy of a text, which shares what it can.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    fn fork(&mut self, text: TextId) -> Result<TextId>;

    /// Ends a text.
    fn end(&mut self, text: TextId);

    /// Appends tokens to texts in one step; returns the logits of the rows that asked, `[outs, vocab_size]`, in order.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    fn run(&mut self, rows: &[Rows]) -> Result<&[f32]>;

    /// Scores of `tokens` over a window, from a pass of its own.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    fn cross_scores(&mut self, window: WindowId, tokens: &[u32]) -> Result<CrossScores>;
}
