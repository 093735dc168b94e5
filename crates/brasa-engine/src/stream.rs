//! The caller's end of a generation.

use std::task::{Context, Poll};

use crate::delivery::{Event, Inbox};
use crate::{EngineError, FinishReason, Fragment, Metrics, Token};

/// The text of one generation, as it appears.
///
/// The iterator waits for the next [`Fragment`]; [`try_next`](Self::try_next) and
/// [`poll_next`](Self::poll_next) do not wait. The last fragment holds all text that was held back for a possible stop
/// string or an incomplete character, so the fragments' texts joined are the whole answer. A failed stream yields its
/// error once, after the text that was generated.
///
/// The engine generates whether or not the stream is read, and runs ahead of the reader by at most
/// [`run_ahead`](crate::RequestOptions::run_ahead) fragments. Dropping the stream cancels the generation and frees its
/// pages at the next step.
pub struct TokenStream {
    inbox: Inbox,
    finish: Option<FinishReason>,
    end_token: Option<Token>,
    metrics: Metrics,
    ended: bool,
}

/// The values that a [`ReadRequest`](crate::ReadRequest) reports: a row for each token asked for, in order.
///
/// The engine runs ahead of the reader by at most [`run_ahead`](crate::RequestOptions::run_ahead) rows or 64 MiB, plus the rows
/// of one step. A failed stream yields its error once. Dropping it cancels the request.
pub struct ReadRows(TokenStream);

impl ReadRows {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self(TokenStream::new(inbox))
    }

    /// The next row if there is one; otherwise `Pending`, and the next row wakes the task of `context`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, EngineError>>> {
        if self.0.ended {
            return Poll::Ready(None);
        }
        self.0.inbox.poll(Some(context)).map(|event| self.see(event))
    }

    /// A handle that cancels the request from another thread.
    pub fn canceller(&self) -> Canceller {
        self.0.canceller()
    }

    /// The cost of the request; complete once the stream has ended.
    pub fn metrics(&self) -> &Metrics {
        self.0.metrics()
    }

    fn see(&mut self, event: Option<Event>) -> Option<Result<Vec<f32>, EngineError>> {
        match event {
            Some(Event::Row(row)) => Some(Ok(row)),
            end => self.0.see(end)?.err().map(Err),
        }
    }
}

impl Iterator for ReadRows {
    type Item = Result<Vec<f32>, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.ended {
            return None;
        }
        let event = self.0.inbox.receive();
        self.see(event)
    }
}

/// Cancels a generation, for example from another thread.
#[derive(Clone)]
pub struct Canceller(Inbox);

impl Canceller {
    /// Asks the generation to end; fragments already made are still yielded.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl TokenStream {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self { inbox, finish: None, end_token: None, metrics: Metrics::default(), ended: false }
    }

    /// The whole remaining text, waited for.
    ///
    /// # Errors
    ///
    /// The stream's error; the text before it is lost.
    pub fn into_text(self) -> Result<String, EngineError> {
        self.map(|fragment| fragment.map(|fragment| fragment.text)).collect()
    }

    /// Returns the next fragment without waiting: `Pending` if there is none yet, `Ready(None)` after the end.
    pub fn try_next(&mut self) -> Poll<Option<Result<Fragment, EngineError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.inbox.poll(None).map(|event| self.see(event))
    }

    /// Like [`try_next`](Self::try_next), but `Pending` has the next fragment wake the task of `context`.
    ///
    /// This is the method of the same name of `futures`' `Stream`: `futures::stream::poll_fn(|cx| stream.poll_next(cx))`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Fragment, EngineError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.inbox.poll(Some(context)).map(|event| self.see(event))
    }

    /// Asks the generation to end; fragments already made are still yielded.
    pub fn cancel(&self) {
        self.inbox.cancel();
    }

    /// A handle that cancels the generation, for example from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.inbox.clone())
    }

    /// The reason why the generation ended; `None` while it runs and after an error.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The token at which the generation ended, with its log-probability if these were requested: one of the model's end tokens
    /// or the request's stop ids. It is no part of the answer. `None` while the generation runs and after every other end.
    pub fn end_token(&self) -> Option<&Token> {
        self.end_token.as_ref()
    }

    /// The cost of the generation up to the last fragment; complete once the stream has ended.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn see(&mut self, event: Option<Event>) -> Option<Result<Fragment, EngineError>> {
        match event {
            Some(Event::Fragment(fragment, metrics)) => {
                self.metrics = metrics;
                Some(Ok(fragment))
            }
            Some(Event::Row(_)) => unreachable!("a row among the text of a generation"),
            Some(Event::Done(reason, end_token, metrics)) => {
                (self.ended, self.finish, self.metrics) = (true, Some(reason), metrics);
                self.end_token = end_token;
                None
            }
            Some(Event::Failed(error, metrics)) => {
                (self.ended, self.metrics) = (true, metrics);
                Some(Err(error))
            }
            None => {
                self.ended = true;
                Some(Err(EngineError::Closed))
            }
        }
    }
}

impl Iterator for TokenStream {
    type Item = Result<Fragment, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.inbox.receive();
        self.see(event)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel();
        }
    }
}
