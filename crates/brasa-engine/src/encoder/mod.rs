//! The engine of encoders: texts that are computed whole, each in one step.
//!
//! An encoder keeps nothing from one step to the next, so there are no pages, no sessions and no schedule beyond this: jobs take
//! turns. A step takes texts of the job whose turn it is, then of the others. A step has no padding: each text is one segment.

mod place;
mod text;
mod vectors;
mod worker;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use brasa_graph::device::KvPool;
use place::Place;
pub use text::{EncoderConfig, EncoderOutput, EncoderRows, EncoderText};
pub use vectors::EncoderVectors;
use vectors::Results;
use worker::{Job, Lazy, Worker};

use crate::{EngineError, MakeProgram};

/// Runs an encoder's programs on a thread of its own. Dropping it ends the running jobs and waits for the thread.
pub struct EncoderEngine {
    /// Sends jobs to the thread; `None` wakes it.
    jobs: Sender<Option<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    closing: Arc<AtomicBool>,
    /// Jobs that run or wait.
    running: Arc<AtomicUsize>,
    config: EncoderConfig,
    judges: bool,
}

impl EncoderEngine {
    /// Starts a thread over the programs and a pool without groups. Each program is made when it is first needed. The second one
    /// judges texts, if there is one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] if the thread cannot be started, or a size of `config` is 0 that must be at least 1.
    pub fn start(
        hidden: MakeProgram,
        logits: Option<MakeProgram>,
        pool: Box<dyn KvPool>,
        config: EncoderConfig,
    ) -> Result<Self, EngineError> {
        if config.context == 0 || config.max_jobs == 0 {
            return Err(EngineError::Options(
                "context and max_jobs must be at least 1: no text could ever be served".into(),
            ));
        }
        let (jobs, receiver) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let judges = logits.is_some();
        let worker = Worker {
            hidden: Lazy::Unmade(hidden),
            logits: logits.map(Lazy::Unmade),
            pool,
            config,
            waiting: VecDeque::new(),
            closing: Arc::clone(&closing),
        };
        let thread = std::thread::Builder::new()
            .name("brasa-encoder".into())
            .spawn(move || worker.run(&receiver))
            .map_err(|error| EngineError::Options(format!("cannot start the engine's thread: {error}")))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { jobs, thread, closing, running: Arc::default(), config, judges })
    }

    /// The sizes that the engine was started with.
    pub fn config(&self) -> EncoderConfig {
        self.config
    }

    /// Starts to compute the vectors of texts. Long texts go first. Texts that are not computed by the `deadline` fail with
    /// [`EngineError::DeadlineExceeded`].
    ///
    /// # Errors
    ///
    /// [`EngineError::EmptyPrompt`] and [`EngineError::TextTooLong`] for a text, [`EngineError::UnknownToken`],
    /// [`EngineError::Options`] for logits of an encoder without a head and for token types that the model does not have,
    /// [`EngineError::QueueFull`], [`EngineError::Closed`]. Later errors come in place of vectors.
    pub fn encode(
        &self,
        texts: Vec<EncoderText>,
        output: EncoderOutput,
        rows: EncoderRows,
        deadline: Option<Instant>,
    ) -> Result<EncoderVectors, EngineError> {
        if output == EncoderOutput::Logits && !self.judges {
            return Err(EngineError::Options("this encoder has no head that judges texts".into()));
        }
        texts.iter().try_for_each(|text| self.check(text))?;
        let place = Place::take(&self.running, self.config.max_jobs)?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(texts[number].tokens.len()));
        let shared = Arc::new(Results::new(texts.len()));
        let vectors = EncoderVectors::new(Arc::clone(&shared));
        let job = Job { texts, order: order.into(), output, rows, deadline, shared, _place: place };
        self.jobs.send(Some(job)).map_err(|_| EngineError::Closed)?;
        Ok(vectors)
    }

    fn check(&self, text: &EncoderText) -> Result<(), EngineError> {
        let EncoderConfig { context, vocab_size, token_types, .. } = self.config;
        let tokens = text.tokens.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > context {
            return Err(EngineError::TextTooLong { tokens, context });
        }
        if let Some(&id) = text.tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(EngineError::UnknownToken { id, vocab_size });
        }
        let fits = text.types.is_empty() || text.types.len() == tokens;
        if !fits || text.types.iter().any(|&kind| kind as usize >= token_types.max(1)) {
            return Err(EngineError::Options(format!(
                "the types of a text's tokens must be one for each, below {}",
                token_types.max(1)
            )));
        }
        Ok(())
    }

    /// Ends the running jobs and waits for the thread. The ended jobs and every later call give [`EngineError::Closed`]. Closing
    /// a closed engine does nothing.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes a thread that waits for work; one that is gone needs no waking.
        let _ = self.jobs.send(None);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the thread has been reported by the panic hook and seen by every job as `Closed`.
            let _ = thread.join();
        }
    }
}

impl Drop for EncoderEngine {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for EncoderEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncoderEngine").field("config", &self.config).finish_non_exhaustive()
    }
}
