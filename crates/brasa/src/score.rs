//! Probabilities that a model gives to a text.

use std::ops::ControlFlow;
use std::task::{Poll, ready};

use brasa_engine::{ReadRequest, ReadRows, ReadValue, Token};

use crate::{Error, InOrder, Model, RequestOptions};

/// Rows of logits that are scored before a task lets others go on.
const ROWS_AT_ONCE: usize = 8;

/// The probability that a model gives a text, and the logits of the token that follows the text.
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
    /// Sum of −ln p over the scored tokens, in nats.
    pub nll: f64,
    /// Sum of (−ln p)² over the scored tokens.
    pub nll_squared: f64,
}

impl Perplexity {
    /// The perplexity: exp of the mean of −ln p.
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
    /// The text is a request among others, run as `request` says: running generations go on beside it. It is computed anew unless the
    /// request shares its keys and values.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`]: a deadline that has passed, an empty text, one longer than the context, an id outside the vocabulary, a full queue, a failed
    /// device.
    pub fn score(
        &self,
        ids: &[u32],
        request: &RequestOptions,
        mut rows: impl FnMut(&[f32]),
    ) -> Result<Score, Error> {
        let mut nll = 0.0;
        let mut last_logits = Vec::new();
        for (row, logits) in self.read_afresh(ids.to_vec(), 0, request)?.enumerate() {
            let logits = logits?;
            rows(&logits);
            if let Some(&next) = ids.get(row + 1) {
                nll += negative_log_likelihood(&logits, next);
            }
            last_logits = logits;
        }
        let predictions = ids.len() - 1;
        Ok(Score { mean_nll: (predictions > 0).then(|| nll / predictions as f64), last_logits })
    }

    /// Scores the tokens of each text: their log-probabilities, and the `top` most probable tokens in each place, in the order of
    /// the texts. The first token of a text has no probability.
    ///
    /// The texts are requests of the engine like any others, run as `request` says. A text that fails gives an error in its
    /// place, and the others go on.
    pub fn score_tokens<P>(
        &self,
        texts: P,
        top: usize,
        request: &RequestOptions,
    ) -> InOrder<P::IntoIter, Vec<Token>>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let (model, request) = (self.clone(), *request);
        self.in_order(texts, move |text| {
            let mut rows = model.read_afresh(text.to_vec(), 0, &request)?;
            let text = text.to_vec();
            let first = text.first().map(|&id| Token { id, ..Token::default() });
            let mut tokens: Vec<Token> = first.into_iter().collect();
            Ok(Box::new(move |context| {
                for _ in 0..ROWS_AT_ONCE {
                    let Some(row) = ready!(rows.poll_next(context)) else {
                        return Poll::Ready(Ok(std::mem::take(&mut tokens)));
                    };
                    let logits = row?;
                    if let Some(&id) = text.get(tokens.len()) {
                        tokens.push(scored(&logits, id, top));
                    }
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }))
        })
    }

    /// Perplexity of `ids`: windows of `window` tokens are computed afresh, each with the model's BOS (if it has one) in place of
    /// its first token, and the second half of each is scored. `progress` receives the sum after every window and may stop.
    ///
    /// # Errors
    ///
    /// [`Error::TextTooShort`] for less than two windows, [`Error::Options`] for windows of less than four tokens, the
    /// errors of [`score`](Self::score).
    pub fn perplexity(
        &self,
        ids: &[u32],
        window: usize,
        request: &RequestOptions,
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
            let first = window / 2;
            let scored = tokens[first + 1..].to_vec();
            sum.windows += 1;
            for (logits, next) in self.read_afresh(tokens, first, request)?.zip(scored) {
                let nll = negative_log_likelihood(&logits?, next);
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

    /// The logits behind each token of `tokens` from index `first` on, all of the text computed anew.
    fn read_afresh(
        &self,
        tokens: Vec<u32>,
        first: usize,
        request: &RequestOptions,
    ) -> Result<ReadRows, Error> {
        let mut options = *request;
        options.cache_prompt.get_or_insert(false);
        Ok(self.engine().read(ReadRequest { tokens, value: ReadValue::Logits, first, options })?)
    }
}

/// `logsumexp(logits) − logits[target]`, in f64.
pub(crate) fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[target as usize])
}

/// A token with its log-probability and the `top` most probable tokens, from the logits that it is drawn from.
fn scored(logits: &[f32], id: u32, top: usize) -> Token {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let logprob = |id: u32| (f64::from(logits[id as usize]) - largest - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top, by_logit);
    }
    order.truncate(top);
    order.sort_unstable_by(by_logit);
    let top = order.into_iter().map(|id| (id, logprob(id))).collect();
    Token { id, logprob: Some(logprob(id)), top, ..Token::default() }
}
