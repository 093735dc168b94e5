//! The handle to the engine's thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use brasa_graph::CacheKind;
use brasa_graph::device::{KvPool, Program};

use crate::answer::MOST_UNCHECKED;
use crate::command::{Command, Submission};
use crate::delivery::{Inbox, delivery};
use crate::drafter::{DraftModel, Drafter};
use crate::executor::{Executor, Reads};
use crate::gate::Wake;
use crate::kv::KvStore;
use crate::queue::Queue;
use crate::stats::Board;
use crate::stream::{ReadRows, TokenStream};
use crate::text::Texts;
use crate::worker::worker;
use crate::{
    AdapterRows, EngineConfig, EngineError, EngineStats, GenerateOptions, MakeProgram, PlainIds, ReadRequest,
    ReadValue, Request, RequestOptions, SessionId,
};

/// A compiled model and everything else that an engine runs.
pub struct EngineParts {
    /// The program, which returns logits `[Outs, vocab_size]`.
    pub program: Box<dyn Program>,
    /// The program's pages, all of them free.
    pub pool: Box<dyn KvPool>,
    /// Makes a second program that returns hidden states `[Outs, hidden_size]` in place of logits, over the same pages and with the same
    /// limits. Requests for [`ReadValue::Hidden`] run through it; it is made for the first of them.
    pub hidden: Option<MakeProgram>,
    /// A smaller model that guesses the tokens of requests whose [`Speculation::model`](crate::Speculation::model) says so. If its
    /// device fails, texts go on without its guesses.
    pub draft_model: Option<DraftModel>,
    /// The scales of adapters that each row of a step has, by the scope of its text, for programs whose graph declares one
    /// input. The draft model gets none.
    pub adapter_rows: Option<Arc<AdapterRows>>,
}

impl EngineParts {
    /// A program over `pool`, without a second program, a draft model or adapters.
    pub fn new(program: Box<dyn Program>, pool: Box<dyn KvPool>) -> Self {
        Self { program, pool, hidden: None, draft_model: None, adapter_rows: None }
    }
}

/// Most bytes of rows that a request keeps for its reader, besides those of one step.
const UNREAD_BYTES: usize = 64 << 20;

/// Serves requests on a thread of its own; a second thread turns tokens into text. Dropping it cancels the running requests and
/// waits for the threads.
pub struct Engine {
    commands: Sender<Command>,
    wake: Wake,
    /// The engine's thread and the text's thread, in the order in which they end; empty once the engine is closed.
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_session: AtomicU64,
    closing: Arc<AtomicBool>,
    queue: Queue,
    board: Board,
    config: EngineConfig,
    has_hidden: bool,
    adapter_rows: Option<Arc<AdapterRows>>,
}

impl Engine {
    /// Starts the threads of an engine.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] if a thread cannot be started, a size of `config` is 0 that must be at least 1, or the program or the draft
    /// model reads memories: texts have none.
    pub fn start(parts: EngineParts, config: EngineConfig) -> Result<Self, EngineError> {
        let EngineParts { program, pool, hidden, draft_model, adapter_rows } = parts;
        let has_memory =
            |pool: &dyn KvPool| pool.spec().groups.iter().any(|group| group.kind == CacheKind::Memory);
        if has_memory(&*pool) || draft_model.as_ref().is_some_and(|model| has_memory(&*model.pool)) {
            return Err(EngineError::Options(
                "the model reads an encoder's memory, and the engine serves texts alone".into(),
            ));
        }
        config.validate()?;
        let has_hidden = hidden.is_some();
        let EngineConfig { cache_bytes, prefix_bytes, prefault_bytes, context, max_sequences, .. } = config;
        // Rows that a window must outlast: a chunk, or those that a stop string may take back.
        let rows = program.limits().max_rows.max(MOST_UNCHECKED);
        let store = KvStore::new(pool, cache_bytes, prefix_bytes, context, rows)
            .with_spare_state_pages(program.spare_state_pages())
            .with_ready(prefault_bytes, context.saturating_mul(max_sequences));
        let executor =
            Executor::new(program, hidden, adapter_rows.clone(), store, config.context, config.vocab_size);
        // Texts of sessions that rest are kept beside those of running requests.
        let drafter = draft_model.map(|model| Drafter::new(model, config.max_sequences.saturating_mul(2)));
        let closing = Arc::new(AtomicBool::new(false));
        let board = Board::default();
        let (commands, receiver) = channel();
        let wake: Wake = Arc::new({
            let commands = commands.clone();
            move || {
                // An engine that is gone needs no waking.
                let _ = commands.send(Command::Wake);
            }
        });
        let no_thread = |error: std::io::Error| {
            EngineError::Options(format!("cannot start the engine's thread: {error}"))
        };
        let (texts, text_thread) = Texts::start(Arc::clone(&wake)).map_err(no_thread)?;
        let thread = std::thread::Builder::new()
            .name("brasa-engine".into())
            .spawn({
                let (closing, board) = (Arc::clone(&closing), board.clone());
                move || worker(executor, drafter, config, texts, board, &receiver, &closing)
            })
            .map_err(no_thread)?;
        Ok(Self {
            commands,
            wake,
            threads: Mutex::new(vec![thread, text_thread]),
            next_session: AtomicU64::new(0),
            closing,
            queue: Queue::new(config.max_waiting),
            board,
            config,
            has_hidden,
            adapter_rows,
        })
    }

    /// The sizes that the engine was started with.
    pub fn config(&self) -> EngineConfig {
        self.config
    }

    /// The state of the engine between two steps: at most one step old while it runs.
    pub fn stats(&self) -> EngineStats {
        self.board.read()
    }

    /// Starts a generation.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`], [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`],
    /// [`EngineError::UnknownToken`], [`EngineError::QueueFull`], [`EngineError::Closed`]; everything later arrives through the stream.
    pub fn generate(&self, request: Request) -> Result<TokenStream, EngineError> {
        self.submit(request, None).map(TokenStream::new)
    }

    /// Starts to read a text, as a request among others.
    ///
    /// # Errors
    ///
    /// The errors of [`generate`](Self::generate), and [`EngineError::Options`] for a first token behind the text, and for hidden states
    /// of an engine that was started without a program for them. Such a program that cannot be made is an error of the rows.
    pub fn read(&self, request: ReadRequest) -> Result<ReadRows, EngineError> {
        let ReadRequest { tokens, value, first, options } = request;
        if value == ReadValue::Hidden && !self.has_hidden {
            return Err(EngineError::Options("this engine has no program for hidden states".into()));
        }
        if first >= tokens.len() && !tokens.is_empty() {
            return Err(EngineError::Options(format!(
                "the text is read from token {first} on, and has {} tokens",
                tokens.len()
            )));
        }
        let run_ahead = options
            .run_ahead
            .min(UNREAD_BYTES / self.config.vocab_size.max(1).saturating_mul(size_of::<f32>()))
            .max(1);
        options.validate()?;
        let request = RequestOptions { run_ahead, ..options };
        let options = GenerateOptions { request, ..GenerateOptions::default() };
        let decoder = Box::new(PlainIds);
        let request = Request { prompt: tokens, options, end_ids: Vec::new(), decoder, session: None };
        self.submit(request, Some(Reads { from: first, value })).map(ReadRows::new)
    }

    fn submit(&self, mut request: Request, reads: Option<Reads>) -> Result<Inbox, EngineError> {
        let mut lease = None;
        if let Some(rows) = &self.adapter_rows {
            let scope = &mut request.options.request.cache_scope;
            (scope.adapter, lease) =
                rows.enter(scope.adapter).map(|(number, lease)| (number, Some(lease)))?;
        }
        request.options.validate()?;
        request.options.sampling.validate_ids(self.config.vocab_size)?;
        if request.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if request.prompt.len() > self.config.context {
            return Err(EngineError::PromptTooLong {
                tokens: request.prompt.len(),
                context: self.config.context,
            });
        }
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= self.config.vocab_size) {
            return Err(EngineError::UnknownToken { id, vocab_size: self.config.vocab_size });
        }
        let place = self.queue.enter()?;
        let (delivery, inbox) = delivery(Arc::clone(&self.wake));
        let submission = Submission { request, reads, delivery, place, lease, submitted: Instant::now() };
        self.send(Command::Generate(Box::new(submission)))?;
        Ok(inbox)
    }

    /// A new session, without keys and values.
    pub fn open_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// Frees the keys and values of a session.
    pub fn close_session(&self, session: SessionId) {
        // An engine that is gone has forgotten it already.
        let _ = self.commands.send(Command::CloseSession(session));
    }

    /// Runs `work` on the engine's thread between two steps, and waits for its result.
    ///
    /// # Errors
    ///
    /// [`EngineError::Closed`].
    pub fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Executor) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (sender, receiver) = channel();
        self.send(Command::Work(Box::new(move |executor| {
            // The caller may have gone; its result then has no reader.
            let _ = sender.send(work(executor));
        })))?;
        receiver.recv().map_err(|_| EngineError::Closed)
    }

    /// Replaces the program by another one over the same pages and with the same limits, whose rows bring scales for the adapters
    /// `bank`. The exchange happens between two steps: running requests keep their mixtures of adapters, and those with adapters
    /// that `bank` lacks must have ended ([`AdapterRows::seal`]). If `bank` is empty, the program must not declare the input.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] for an engine that was started without rows of adapters and for a program with other limits;
    /// [`EngineError::Closed`]. The engine goes on with the old program.
    pub fn replace_program(
        &self,
        program: Box<dyn Program>,
        hidden: Option<MakeProgram>,
        bank: Vec<u64>,
    ) -> Result<(), EngineError> {
        if self.adapter_rows.is_none() {
            return Err(EngineError::Options("this engine has no rows of adapters".into()));
        }
        // The old program is freed here and not on the engine's thread, where texts wait.
        self.with(move |executor| executor.replace(program, hidden, bank))?.map(drop)
    }

    /// Cancels the running requests and waits for the threads, which free the program and all keys and values. The cancelled
    /// streams and every later call give [`EngineError::Closed`]. Closing a closed engine does nothing.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes a thread that waits for work; one that is gone needs no waking.
        let _ = self.commands.send(Command::Close);
        // A second caller waits here until the threads have ended.
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic of a thread has been reported by the panic hook and seen by every stream as `Closed`.
            let _ = thread.join();
        }
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), EngineError> {
        self.commands.send(command).map_err(|_| EngineError::Closed)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}
