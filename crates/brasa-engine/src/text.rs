//! The thread that makes text of drawn tokens: it decodes, looks for stop strings and fills the readers' queues.
//!
//! The engine's thread hands each token over and goes on. It decides by itself about every end that shows in numbers: stop
//! ids, lengths, the context. A stop string shows in text alone, so the engine learns of it late, through
//! [`Progress`]: what was drawn behind it is thrown away, and the reader never sees it.
//!
//! Each token that is passed on at once wakes this thread, the reader's, and whoever the reader sends it to, on processors that compute the
//! next token. A token therefore waits for those that come within [`PACE`] after the last ones were passed on. First tokens, ends and
//! texts with stop strings wait for nothing.

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

/// A message to the text's thread, by the number of its generation.
enum Message {
    Begin(u64, Box<RunningText>),
    Drawn(u64, Drawn),
    Prefilled(u64, Metrics),
    Row(u64, Vec<f32>),
}

/// A drawn token, or the end of a generation, or both.
pub(crate) struct Drawn {
    pub(crate) token: Option<Token>,
    pub(crate) end: Option<End>,
    /// The token at which the generation ended, which is no part of the answer.
    pub(crate) end_token: Option<Token>,
    /// Figures of the generation up to here.
    pub(crate) metrics: Metrics,
}

/// How far the text's thread has come with a generation.
pub(crate) struct Progress {
    /// Tokens that became text and held no stop string; beyond all numbers once the generation's text is complete.
    tokens: Gate,
    /// Tokens up to the one with which a stop string was complete; `usize::MAX` for no stop string.
    stop: AtomicUsize,
}

impl Progress {
    /// Counts tokens that became text and held no stop string.
    pub(crate) fn tokens(&self) -> &Gate {
        &self.tokens
    }

    /// Tokens up to the one with which a stop string was complete; `None` if no stop string was found so far.
    pub(crate) fn stop(&self) -> Option<usize> {
        Some(self.stop.load(Ordering::SeqCst)).filter(|&tokens| tokens != usize::MAX)
    }
}

/// Starts generations' texts. The text's thread ends when this and all [writers](TextWriter) are gone.
pub(crate) struct Texts {
    messages: Sender<Message>,
    thread: Thread,
    begun: u64,
    wake: Wake,
}

/// The engine's end of one generation's text.
pub(crate) struct TextWriter {
    number: u64,
    messages: Sender<Message>,
    thread: Thread,
    /// True if the engine draws only a few tokens ahead of the text.
    may_stop: bool,
    progress: Arc<Progress>,
}

impl Texts {
    /// Starts the text's thread. `wake` wakes the engine's thread.
    ///
    /// # Errors
    ///
    /// The system's reason why there is no thread.
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
    /// Hands over a token or an end.
    pub(crate) fn write(&self, drawn: Drawn) {
        let may_wait = !self.may_stop && drawn.end.is_none() && drawn.metrics.generated_tokens > 1;
        self.hand_over(Message::Drawn(self.number, drawn));
        if !may_wait {
            self.hurry();
        }
    }

    /// Has everything passed on that waits for more.
    pub(crate) fn hurry(&self) {
        self.thread.unpark();
    }

    /// Hands over the figures of a prompt on its way.
    pub(crate) fn report(&self, metrics: Metrics) {
        self.send(Message::Prefilled(self.number, metrics));
    }

    /// Hands over a row that was read, of which nothing is made.
    pub(crate) fn pass_on(&self, values: Vec<f32>) {
        self.send(Message::Row(self.number, values));
    }

    /// How far the text has come.
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

/// Takes messages until all senders are gone.
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

/// The texts that have begun and not ended, by the numbers of their generations.
#[derive(Default)]
struct RunningTexts {
    texts: HashMap<u64, RunningText>,
    /// Numbers of texts that have events of which their readers have not been woken yet.
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

    /// Wakes the readers of what has been taken since the last time.
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

/// The text of one generation.
struct RunningText {
    decoder: Box<dyn TextDecoder>,
    stops: StopMatcher,
    delivery: Delivery,
    progress: Arc<Progress>,
    tokens: usize,
}

impl RunningText {
    /// Makes text of a token, of which the reader is not told yet; returns the last event if the text is complete.
    fn push(&mut self, drawn: Drawn) -> Option<Event> {
        let Drawn { token, mut end, mut end_token, metrics } = drawn;
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

    /// Text of an incomplete character or a possible stop string, now that no more comes.
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

    /// Sends the last event. The engine is told first, so that it knows of the end before the reader's next message.
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
