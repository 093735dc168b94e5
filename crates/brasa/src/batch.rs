//! Many prompts at once, results in order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;

use brasa_engine::{EngineError, ReadRequest, ReadRows, ReadValue};

use crate::{Error, FinishReason, GenerateOptions, Metrics, Model, RequestOptions, TokenStream};

/// The answer to one prompt of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchAnswer {
    /// The text.
    pub text: String,
    /// The token ids of the text.
    pub tokens: Vec<u32>,
    /// The reason why the text ended.
    pub finish: FinishReason,
    /// The cost of the answer.
    pub metrics: Metrics,
}

impl Model {
    /// Continues every prompt. The answers come in the order of the prompts, each as soon as it and those before it are complete. A
    /// prompt that fails gives an error in its place, and the others go on.
    ///
    /// The prompts are requests of the engine like any others: as many run together as
    /// [`max_sequences`](crate::LoadOptions::max_sequences) allows, and prompts are taken as places become free. An answer does
    /// not depend on the other prompts.
    pub fn batch<P>(&self, prompts: P, options: &GenerateOptions) -> InOrder<P::IntoIter, BatchAnswer>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let (model, options) = (self.clone(), options.clone());
        self.in_order(prompts, move |prompt| {
            let stream = model.generate_ids(prompt.to_vec(), &options)?;
            Ok(answer(stream))
        })
    }

    /// The logits of the token that follows each prompt, `[vocab_size]`, in the order of the prompts, for classifying and
    /// ranking. Prompts may differ in length; the beginning that they share is computed once.
    ///
    /// A prompt that fails gives an error in its place, and the others go on.
    pub fn next_logits<P>(&self, prompts: P, request: &RequestOptions) -> InOrder<P::IntoIter, Vec<f32>>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        let mut start = self.next_row(request);
        self.in_order(prompts, move |prompt| {
            let mut collect = start(prompt)?;
            Ok(Box::new(move |context| collect(context).map_ok(|(row, _)| row)))
        })
    }

    /// Like [`next_logits`](Self::next_logits), with the cost of each prompt.
    pub(crate) fn next_rows<P>(
        &self,
        prompts: P,
        request: &RequestOptions,
    ) -> InOrder<P::IntoIter, (Vec<f32>, Metrics)>
    where
        P: IntoIterator<Item = Vec<u32>>,
    {
        self.in_order(prompts, self.next_row(request))
    }

    /// Returns a function that starts to compute the logits of the token that follows a prompt.
    fn next_row(&self, request: &RequestOptions) -> Start<(Vec<f32>, Metrics)> {
        let mut options = *request;
        options.cache_prompt.get_or_insert(true);
        let model = self.clone();
        Box::new(move |prompt| {
            let first = prompt.len().saturating_sub(1);
            let value = ReadValue::Logits;
            let rows = model.engine().read(ReadRequest { tokens: prompt.to_vec(), value, first, options })?;
            Ok(rows_then(rows, |mut rows, cost| Ok((rows.pop().ok_or(EngineError::Closed)?, cost))))
        })
    }

    /// Calls `start` for each prompt and yields the results in order. As many requests run or wait as the engine has places.
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

/// Polls a running request for its result.
pub(crate) type Collect<T> = Box<dyn FnMut(&mut Context<'_>) -> Poll<Result<T, Error>> + Send>;

/// Submits the request for a prompt; returns the function that collects its result.
type Start<T> = Box<dyn FnMut(&[u32]) -> Result<Collect<T>, Error> + Send>;

/// Results of a batch, in the order of its prompts. The iterator waits for the next one; [`poll_next`](Self::poll_next) does not.
/// Dropping it cancels the requests that still run.
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

impl<P: Iterator<Item = Vec<u32>>, T> InOrder<P, T> {
    /// The next result if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to read.
    ///
    /// This is the method of the same name of `futures`' `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Error>>> {
        self.start_more();
        let result = match self.running.front_mut() {
            None => return Poll::Ready(None),
            Some(Ok(collect)) => Some(ready!(collect(context))),
            Some(Err(_)) => None,
        };
        let first = self.running.pop_front();
        Poll::Ready(result.or_else(|| first.and_then(Result::err).map(Err)))
    }
}

impl<P: Iterator<Item = Vec<u32>>, T> Iterator for InOrder<P, T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let waker = Waker::from(Arc::new(ThisThread(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match self.poll_next(&mut context) {
                Poll::Ready(next) => return next,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

/// Wakes the thread that waits.
struct ThisThread(Thread);

impl Wake for ThisThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<P, T> fmt::Debug for InOrder<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InOrder").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

fn answer(mut stream: TokenStream) -> Collect<BatchAnswer> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    Box::new(move |context| {
        while let Some(fragment) = ready!(stream.poll_next(context)) {
            let fragment = fragment?;
            text.push_str(&fragment.text);
            tokens.extend(fragment.token.map(|token| token.id));
        }
        let (text, tokens) = (std::mem::take(&mut text), std::mem::take(&mut tokens));
        let finish = stream.finish_reason().ok_or(EngineError::Closed)?;
        Poll::Ready(Ok(BatchAnswer { text, tokens, finish, metrics: *stream.metrics() }))
    })
}

/// Makes a value of a request's rows and metrics with `make`. The request has ended behind its last row.
pub(crate) fn rows_then<T: 'static>(
    mut rows: ReadRows,
    make: impl FnOnce(Vec<Vec<f32>>, Metrics) -> Result<T, Error> + Send + 'static,
) -> Collect<T> {
    let (mut read, mut make) = (Vec::new(), Some(make));
    Box::new(move |context| {
        while let Some(row) = ready!(rows.poll_next(context)) {
            read.push(row?);
        }
        let make = make.take().ok_or(EngineError::Closed)?;
        Poll::Ready(make(std::mem::take(&mut read), *rows.metrics()))
    })
}
