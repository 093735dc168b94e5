//! The thread that makes text of drawn tokens: it decodes, searches for stop strings and fills the readers' queues.
//!
//! The engine's thread hands each token over and goes on. It decides by itself about every end that shows in ids and counts: stop
//! ids, lengths, the context. A stop string shows in text alone, so the engine learns of it late, through [`Progress`]. Tokens drawn
//! after the stop string are thrown away, and the reader never receives them.
//!
//! Each token that is sent at once wakes this thread, the reader's thread and the reader's receivers, on processors that compute
//! the next token. So a token waits to be sent together with others until [`PACE`] has passed since the last sending. First
//! tokens, ends and texts with stop strings are sent at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use crate::delivery::{Delivery, Event};
use crate::gate::{Gate, Wake};
use crate::stop::{Passed, StopMatcher};
use crate::{EngineError, FinishReason, Fragment, Metrics, TextDecoder, Token};

/// Longest time that a token waits to be sent together with others. It is too short to be seen on a screen, and models that take
/// longer for a token have no tokens that wait.
const PACE: Duration = Duration::from_millis(2);

/// The end of a generation.
pub(crate) type End = Result<FinishReason, EngineError>;

/// A message to the text's thread, with the number of its generation.
enum Message {
    Begin(u64, Box<RunningText>),
    Drawn(u64, TokenOrEnd),
    Prefilled(u64, Metrics),
    Row(u64, Vec<f32>),
}

/// A drawn token, or the end of a generation, or both.
pub(crate) struct TokenOrEnd {
    pub(crate) token: Option<Token>,
    pub(crate) end: Option<End>,
    /// The token at which the generation ended, which is no part of the answer.
    pub(crate) end_token: Option<Token>,
    /// Metrics of the generation up to this message.
    pub(crate) metrics: Metrics,
}

/// The progress of the text's thread with one generation, for the engine's thread.
pub(crate) struct Progress {
    /// Tokens that became text and held no stop string; opened once the generation's text is complete.
    tokens: Gate,
    /// Number of tokens up to the one that completed a stop string; `usize::MAX` while none was found.
    stop: AtomicUsize,
}

impl Progress {
    /// Counts tokens that became text and held no stop string.
    pub(crate) fn tokens(&self) -> &Gate {
        &self.tokens
    }

    /// Number of tokens up to the one that completed a stop string; `None` while none was found.
    pub(crate) fn stop(&self) -> Option<usize> {
        Some(self.stop.load(Ordering::SeqCst)).filter(|&tokens| tokens != usize::MAX)
    }
}

/// Starts the texts of generations. The text's thread ends when this and all [writers](TextWriter) are dropped.
pub(crate) struct Texts {
    messages: Sender<Message>,
    thread: Thread,
    begun: u64,
    wake: Wake,
}

/// Sends one generation's tokens from the engine's thread to the text's thread.
pub(crate) struct TextWriter {
    number: u64,
    messages: Sender<Message>,
    thread: Thread,
    /// True if the text may have stop strings, so that the engine draws only a few tokens ahead of the text.
    may_stop: bool,
    progress: Arc<Progress>,
}

impl Texts {
    /// Starts the text's thread. `wake` wakes the engine's thread.
    ///
    /// # Errors
    ///
    /// The system's error if the thread cannot be started.
    pub(crate) fn start(wake: Wake) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (messages, receiver) = channel();
        let thread = std::thread::Builder::new().name("brasa-text".into()).spawn(move || run(&receiver))?;
        Ok((Self { messages, thread: thread.thread().clone(), begun: 0, wake }, thread))
    }

    /// Begins the text of a generation.
    pub(crate) fn begin(
        &mut self,
        decoder: Box<dyn TextDecoder>,
        stops: StopMatcher,
        delivery: Delivery,
    ) -> TextWriter {
        self.begun += 1;
        let tokens = Gate::new(Arc::clone(&self.wake));
        let progress = Arc::new(Progress { tokens, stop: AtomicUsize::new(usize::MAX) });
        let may_stop = stops.may_find();
        let running = RunningText { decoder, stops, delivery, progress: Arc::clone(&progress), tokens: 0 };
        let (messages, thread) = (self.messages.clone(), self.thread.clone());
        let writer = TextWriter { number: self.begun, messages, thread, may_stop, progress };
        writer.send(Message::Begin(self.begun, Box::new(running)));
        writer
    }
}

impl TextWriter {
    /// Sends a token or an end to the text's thread.
    pub(crate) fn write(&self, drawn: TokenOrEnd) {
        let may_wait = !self.may_stop && drawn.end.is_none() && drawn.metrics.generated_tokens > 1;
        self.hand_over(Message::Drawn(self.number, drawn));
        if !may_wait {
            self.hurry();
        }
    }

    /// Has all waiting tokens of the generation sent to the reader now.
    pub(crate) fn hurry(&self) {
        self.thread.unpark();
    }

    /// Sends the metrics of a prompt that is being computed.
    pub(crate) fn report(&self, metrics: Metrics) {
        self.send(Message::Prefilled(self.number, metrics));
    }

    /// Sends a row of values, which needs no decoding, to the reader.
    pub(crate) fn pass_on(&self, values: Vec<f32>) {
        self.send(Message::Row(self.number, values));
    }

    /// The progress of the text's thread with this generation.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn send(&self, message: Message) {
        self.hand_over(message);
        self.hurry();
    }

    fn hand_over(&self, message: Message) {
        // A message that comes back is dropped with its text, and a thread that is gone has dropped all of them: every
        // reader sees a closed engine, and nobody waits for text.
        let _ = self.messages.send(message);
    }
}

/// Processes messages until all senders are dropped.
fn run(messages: &Receiver<Message>) {
    let mut texts = RunningTexts::default();
    // Asleep until a message comes.
    while let Ok(first) = messages.recv() {
        let mut come = Some(first);
        while let Some(message) = come {
            texts.take(message);
            for message in messages.try_iter() {
                texts.take(message);
            }
            texts.notify();
            // What may wait does so, until something else wakes the thread.
            std::thread::park_timeout(PACE);
            come = messages.try_recv().ok();
        }
    }
}

/// The texts of all generations that have not ended, by the generations' numbers.
#[derive(Default)]
struct RunningTexts {
    texts: HashMap<u64, RunningText>,
    /// Numbers of generations with new events of which their readers have not been woken yet.
    news: Vec<u64>,
}

impl RunningTexts {
    fn take(&mut self, message: Message) {
        let (number, event) = match message {
            Message::Begin(number, running) => {
                self.texts.insert(number, *running);
                return;
            }
            Message::Prefilled(number, metrics) => (number, Event::Fragment(Fragment::default(), metrics)),
            Message::Row(number, values) => (number, Event::Row(values)),
            Message::Drawn(number, drawn) => {
                // A text that has ended at a stop string takes no more tokens.
                let Some(running) = self.texts.get_mut(&number) else { return };
                if let Some(event) = running.push(drawn)
                    && let Some(running) = self.texts.remove(&number)
                {
                    return running.end(event);
                }
                return self.has_news(number);
            }
        };
        if let Some(running) = self.texts.get(&number) {
            running.delivery.put(event);
            self.has_news(number);
        }
    }

    fn has_news(&mut self, number: u64) {
        if self.news.last() != Some(&number) {
            self.news.push(number);
        }
    }

    /// Wakes the readers of all generations with new events.
    fn notify(&mut self) {
        self.news.sort_unstable();
        self.news.dedup();
        for number in self.news.drain(..) {
            if let Some(running) = self.texts.get(&number) {
                running.delivery.notify();
            }
        }
    }
}

/// Makes the text of one generation.
struct RunningText {
    decoder: Box<dyn TextDecoder>,
    stops: StopMatcher,
    delivery: Delivery,
    progress: Arc<Progress>,
    tokens: usize,
}

impl RunningText {
    /// Decodes a token and puts its fragment into the queue, without waking the reader. Returns the last event if the text is
    /// complete.
    fn push(&mut self, drawn: TokenOrEnd) -> Option<Event> {
        let TokenOrEnd { token, mut end, mut end_token, metrics } = drawn;
        let mut passed = Passed::default();
        if let Some(token) = &token {
            self.tokens += 1;
            passed = self.stops.push(&self.decoder.push(token.id));
        }
        if passed.stop.is_none() && end.is_some() {
            // The last fragment takes the text along that was held back.
            let held = self.held_back();
            passed.text.push_str(&held.text);
            passed.stop = held.stop;
        }
        let Passed { text, stop } = passed;
        if let Some(place) = stop {
            // Whatever else ends the text came behind it.
            end = Some(Ok(FinishReason::Text(place)));
            end_token = None;
            self.progress.stop.store(self.tokens, Ordering::SeqCst);
        } else if end.is_none() {
            self.progress.tokens.raise();
        }
        if token.is_some() || !text.is_empty() {
            self.delivery.put(Event::Fragment(Fragment { text, token }, metrics));
        }
        Some(match end? {
            Ok(reason) => Event::Done(reason, end_token, metrics),
            Err(error) => Event::Failed(error, metrics),
        })
    }

    /// The held-back text of an incomplete character or a possible stop string, at the end of the text.
    fn held_back(&mut self) -> Passed {
        let rest = self.decoder.finish();
        let mut passed = self.stops.push(&rest);
        if passed.stop.is_none() {
            let held = self.stops.finish();
            passed.text.push_str(&held.text);
            passed.stop = held.stop;
        }
        passed
    }

    /// Sends the last event. The engine's thread is informed first, so that it has recorded the end before the reader's next
    /// request arrives.
    fn end(self, event: Event) {
        self.progress.tokens.open();
        if self.progress.stop().is_some() {
            self.progress.tokens.wake();
        }
        self.delivery.put(event);
        self.delivery.notify();
    }
}

impl Drop for RunningText {
    fn drop(&mut self) {
        // Nobody waits for a text of which nothing more comes.
        self.progress.tokens.open();
    }
}
