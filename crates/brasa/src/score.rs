//! Probabilities that a model gives to a text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use brasa_engine::{Executor, SequenceRows};
use brasa_graph::step::Outs;

use crate::{Error, Model};

/// Probabilities of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Mean of −ln p over all tokens but the first, in nats; `None` for a single token.
    pub mean_nll: Option<f64>,
    /// Logits after the last token, `[vocab_size]`.
    pub last_logits: Vec<f32>,
}

/// Perplexity of a text, by llama-perplexity's method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Windows scored so far.
    pub windows: usize,
    /// Tokens scored so far.
    pub tokens: usize,
    /// Sum of −ln p over them, in nats.
    pub nll: f64,
    /// Sum of (−ln p)².
    pub nll_squared: f64,
}

impl Perplexity {
    /// exp of the mean of −ln p.
    pub fn value(&self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }

    /// Standard error of [`value`](Self::value).
    pub fn standard_error(&self) -> f64 {
        let count = self.tokens as f64;
        let mean = self.nll / count;
        let variance = (self.nll_squared / count - mean * mean).max(0.0);
        (variance / (count - 1.0).max(1.0)).sqrt() * self.value()
    }
}

impl Model {
    /// Computes the probabilities of `ids`; `rows` receives the logits after every token, in order.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]: an empty text, one longer than the context, an id outside the vocabulary, a failed device.
    pub fn score(&self, ids: &[u32], mut rows: impl FnMut(&[f32])) -> Result<Score, Error> {
        self.check_ids(ids)?;
        // Bounded: a reader slower than the device must not let a large vocabulary's rows pile up.
        let (sender, receiver) = sync_channel::<Vec<f32>>(4);
        let tokens: Arc<[u32]> = ids.into();
        let mut nll = 0.0;
        let mut last_logits = Vec::new();
        std::thread::scope(|scope| {
            let work = scope.spawn(move || {
                self.engine().with(move |executor| {
                    let mut sequence = executor.sequence();
                    let result = executor.score(&mut sequence, &tokens, &mut |_, logits| {
                        // A failed send means that the reader is gone; nothing is left to do.
                        if sender.send(logits.to_vec()).is_ok() {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(())
                        }
                    });
                    executor.release(sequence);
                    result
                })
            });
            for (row, logits) in receiver.into_iter().enumerate() {
                rows(&logits);
                if let Some(&next) = ids.get(row + 1) {
                    nll += negative_log_likelihood(&logits, next);
                }
                last_logits = logits;
            }
            match work.join() {
                Ok(result) => result?.map_err(Error::from),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        let predictions = ids.len() - 1;
        Ok(Score { mean_nll: (predictions > 0).then(|| nll / predictions as f64), last_logits })
    }

    /// Perplexity of `ids`: windows of `window` tokens are computed afresh, each with the model's BOS (if it has
    /// one) in place of its first token, and the second half of each is scored. `progress` sees the sum after every window
    /// and may stop.
    ///
    /// # Errors
    ///
    /// [`Error::TextTooShort`] for less than two windows, [`Error::Options`] for windows of less than four tokens, the
    /// errors of [`score`](Self::score).
    pub fn perplexity(
        &self,
        ids: &[u32],
        window: usize,
        mut progress: impl FnMut(&Perplexity, usize) -> ControlFlow<()>,
    ) -> Result<Perplexity, Error> {
        if window < 4 {
            return Err(Error::Options(format!("windows of {window} tokens, at least 4 are needed")));
        }
        if ids.len() < 2 * window {
            return Err(Error::TextTooShort { tokens: ids.len(), needed: 2 * window, window });
        }
        let windows = ids.len() / window;
        let bos = self
            .tokenizer()
            .special_tokens()
            .bos
            .filter(|bos| self.tokenizer().added_around().0.contains(bos));
        let mut sum = Perplexity::default();
        for tokens in ids.chunks_exact(window) {
            let mut tokens = tokens.to_vec();
            if let Some(bos) = bos {
                tokens[0] = bos;
            }
            self.check_ids(&tokens)?;
            let losses = self.engine().with(move |executor| window_losses(executor, &tokens))??;
            sum.windows += 1;
            for nll in losses {
                sum.tokens += 1;
                sum.nll += nll;
                sum.nll_squared += nll * nll;
            }
            if progress(&sum, windows).is_break() {
                break;
            }
        }
        Ok(sum)
    }
}

/// −ln p of the tokens that the second half of a window predicts.
fn window_losses(executor: &mut Executor, tokens: &[u32]) -> Result<Vec<f64>, brasa_engine::EngineError> {
    let first = tokens.len() / 2;
    let mut losses = Vec::with_capacity(tokens.len() - first - 1);
    let mut sequence = executor.sequence();
    let result = (|| {
        for chunk in tokens[..first].chunks(executor.max_rows()) {
            let outs = Outs::None;
            executor.run(&mut [SequenceRows { sequence: &mut sequence, tokens: chunk, outs }])?;
        }
        executor.score(&mut sequence, &tokens[first..], &mut |row, logits| {
            match tokens.get(first + row + 1) {
                Some(&next) => losses.push(negative_log_likelihood(logits, next)),
                None => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        })
    })();
    executor.release(sequence);
    result.map(|()| losses)
}

/// `logsumexp(logits) − logits[target]`, in f64.
fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[target as usize])
}
