//! Many prompts at once, results in order.

use std::collections::VecDeque;
use std::fmt;

use brasa_engine::{EngineError, ReadRequest, ReadRows, Reading};

use crate::{Error, FinishReason, GenerateOptions, Metrics, Model, TokenStream};

/// The answer to one prompt of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchAnswer {
    /// The text.
    pub text: String,
    /// The ids of its tokens.
    pub tokens: Vec<u32>,
    /// The reason why it ended.
    pub finish: FinishReason,
    /// The cost of the answer.
    pub metrics: Metrics,
}

impl Model {
    /// Continues every prompt; the answers come in the order of the prompts, each as soon as it and those before it are
    /// there. A prompt that fails gives an error in its place, and the others go on.
    ///
    /// The prompts are requests of the engine like any others: as many run together as
    /// [`max_sequences`](crate::LoadOptions::max_sequences) allows, and prompts are taken as places become free. An answer
    /// is the text that its prompt has alone.
    pub fn batch<P>(&self, prompts: P, options: &GenerateOptions) -> InOrder<P::IntoIter, BatchAnswer>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let (model, options) = (self.clone(), options.clone());
        self.in_order(prompts, move |prompt| {
            let stream = model.generate_ids(prompt.to_vec(), &options)?;
            Ok(Box::new(move || answer(stream)))
        })
    }

    /// The logits of the token that follows each prompt, `[vocab_size]`, in the order of the prompts, for classifying and
    /// ranking. Prompts may differ in length; the beginning that they share is computed once.
    ///
    /// A prompt that fails gives an error in its place, and the others go on.
    pub fn next_logits<P>(&self, prompts: P) -> InOrder<P::IntoIter, Vec<f32>>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let model = self.clone();
        self.in_order(prompts, move |prompt| {
            let options = GenerateOptions { cache_prompt: Some(true), ..GenerateOptions::default() };
            let first = prompt.len().saturating_sub(1);
            let what = Reading::Logits;
            let rows = model.engine().read(ReadRequest { tokens: prompt.to_vec(), what, first, options })?;
            Ok(Box::new(move || only_row(rows)))
        })
    }

    /// Results of `start` for each prompt, in order, as many at once as have places.
    pub(crate) fn in_order<P, T>(
        &self,
        prompts: P,
        start: impl FnMut(&[u32]) -> Result<Collect<T>, Error> + Send + 'static,
    ) -> InOrder<P::IntoIter, T>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let config = self.engine().config();
        InOrder {
            prompts: prompts.into_iter(),
            refused: None,
            start: Box::new(start),
            running: VecDeque::new(),
            // Places that become free are taken at once.
            most_running: config.max_sequences.saturating_mul(2).min(config.max_waiting).max(1),
        }
    }
}

/// Waits for a result.
type Collect<T> = Box<dyn FnOnce() -> Result<T, Error> + Send>;

/// Starts to work on a prompt.
type Start<T> = Box<dyn FnMut(&[u32]) -> Result<Collect<T>, Error> + Send>;

/// Results of a batch, in the order of its prompts. Dropping it cancels the requests that still run.
pub struct InOrder<P, T> {
    prompts: P,
    /// The prompt that found the engine's queue full.
    refused: Option<Vec<u32>>,
    start: Start<T>,
    running: VecDeque<Result<Collect<T>, Error>>,
    most_running: usize,
}

impl<P: Iterator<Item = Vec<u32>>, T> InOrder<P, T> {
    fn start_more(&mut self) {
        while self.running.len() < self.most_running {
            let Some(prompt) = self.refused.take().or_else(|| self.prompts.next()) else { return };
            match (self.start)(&prompt) {
                Err(Error::Engine(EngineError::QueueFull { .. })) if !self.running.is_empty() => {
                    self.refused = Some(prompt);
                    return;
                }
                started => self.running.push_back(started),
            }
        }
    }
}

impl<P: Iterator<Item = Vec<u32>>, T> Iterator for InOrder<P, T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.start_more();
        Some(self.running.pop_front()?.and_then(|collect| collect()))
    }
}

impl<P, T> fmt::Debug for InOrder<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InOrder").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

fn answer(mut stream: TokenStream) -> Result<BatchAnswer, Error> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for fragment in &mut stream {
        let fragment = fragment?;
        text.push_str(&fragment.text);
        tokens.extend(fragment.token.map(|token| token.id));
    }
    let finish = stream.finish_reason().ok_or(EngineError::Closed)?;
    Ok(BatchAnswer { text, tokens, finish, metrics: *stream.metrics() })
}

fn only_row(mut rows: ReadRows) -> Result<Vec<f32>, Error> {
    let row = rows.next().ok_or(EngineError::Closed)??;
    // Behind its last row a request has ended.
    rows.next();
    Ok(row)
}
