//! A loaded model, and what runs on it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brasa::Model;
use brasa::engine::EngineError;

use crate::slots::{SlotText, Slots};

/// A model in memory, with its running requests.
pub(crate) struct Loaded {
    pub id: String,
    pub model: Model,
    /// Requests served at once.
    pub slots: usize,
    /// The slots, and the last text of each.
    pub places: Slots,
    running: Mutex<Vec<Running>>,
    /// Files that are being written or read.
    files: AtomicUsize,
    tasks: AtomicUsize,
    started: Instant,
    /// Milliseconds since `started` at which the model was used and at which a token appeared.
    used_ms: AtomicU64,
    token_ms: AtomicU64,
    asked: Arc<AtomicBool>,
    closed: AtomicBool,
}

/// A generation that runs or waits.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The number of the task.
    pub task: usize,
    /// Its slot; `None` if all were taken.
    pub slot: Option<usize>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that it may generate.
    pub max_tokens: Option<usize>,
    /// Tokens that it has generated.
    pub decoded: usize,
}

impl Loaded {
    /// A model on which nothing runs yet.
    pub fn new(id: String, model: Model) -> Self {
        let slots = model.engine().config().max_sequences;
        Self {
            id,
            model,
            slots,
            places: Slots::new(slots),
            files: AtomicUsize::new(0),
            running: Mutex::default(),
            tasks: AtomicUsize::new(0),
            started: Instant::now(),
            used_ms: AtomicU64::new(0),
            token_ms: AtomicU64::new(0),
            asked: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Records a generation until the guard is dropped. `text` is its prompt, if the text is to be remembered.
    pub fn begin(
        self: &Arc<Self>,
        prompt_tokens: usize,
        max_tokens: Option<usize>,
        text: Option<SlotText>,
    ) -> Task {
        self.touch();
        self.saw_token();
        let task = self.tasks.fetch_add(1, Ordering::Relaxed);
        let slot = self.places.take();
        self.lock().push(Running { task, slot, prompt_tokens, max_tokens, decoded: 0 });
        Task { loaded: Arc::clone(self), number: task, text }
    }

    /// Keeps the model from being unloaded until the guard is dropped.
    pub fn keep_busy(self: &Arc<Self>) -> FileTask {
        self.touch();
        self.files.fetch_add(1, Ordering::SeqCst);
        FileTask(Arc::clone(self))
    }

    /// The generations that run or wait, oldest first.
    pub fn running(&self) -> Vec<Running> {
        self.lock().clone()
    }

    /// True if a request uses the model.
    pub fn is_busy(&self) -> bool {
        !self.lock().is_empty() || self.files.load(Ordering::SeqCst) > 0
    }

    /// Records that the model was used now.
    pub fn touch(&self) {
        self.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Time since the model was used.
    pub fn idle_time(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    /// True if the engine or its device has failed for good, so that the model must be loaded again.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Records an error of the engine.
    pub fn saw_error(&self, error: &EngineError) {
        if error.is_final() {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// True unless the engine's thread has stalled: it is busy, no token has appeared for the time `silence`, and it does not answer
    /// within a twelfth of that.
    pub async fn is_alive(&self, silence: Duration) -> bool {
        let silent = self.now_ms().saturating_sub(self.token_ms.load(Ordering::Relaxed));
        if self.is_closed() {
            return false;
        }
        if !self.is_busy() || Duration::from_millis(silent) < silence {
            return true;
        }
        // One question at a time: the thread of an unanswered one is lost until the engine answers.
        if self.asked.swap(true, Ordering::Relaxed) {
            return false;
        }
        let (model, asked) = (self.model.clone(), Arc::clone(&self.asked));
        let question = tokio::task::spawn_blocking(move || {
            let answer = model.engine().with(|_| ()).is_ok();
            asked.store(false, Ordering::Relaxed);
            answer
        });
        let alive = matches!(tokio::time::timeout(silence / 12, question).await, Ok(Ok(true)));
        if alive {
            self.saw_token();
        }
        alive
    }

    fn saw_token(&self) {
        self.token_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A generation on record.
pub(crate) struct Task {
    loaded: Arc<Loaded>,
    number: usize,
    text: Option<SlotText>,
}

/// A file on its way.
pub(crate) struct FileTask(Arc<Loaded>);

impl Drop for FileTask {
    fn drop(&mut self) {
        self.0.files.fetch_sub(1, Ordering::SeqCst);
        self.0.touch();
    }
}

impl Task {
    /// The slot of the generation; `None` while all are taken.
    pub fn slot(&self) -> Option<usize> {
        self.loaded.lock().iter().find(|running| running.task == self.number)?.slot
    }

    /// Records one more token.
    pub fn saw_token(&mut self, id: u32) {
        self.loaded.saw_token();
        if let Some(text) = &mut self.text {
            text.tokens.push(id);
        }
        if let Some(running) = self.loaded.lock().iter_mut().find(|running| running.task == self.number) {
            running.decoded += 1;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let slot = {
            let mut running = self.loaded.lock();
            let place = running.iter().position(|running| running.task == self.number);
            place.and_then(|place| running.remove(place).slot)
        };
        if let Some(slot) = slot {
            self.loaded.places.free(slot, self.text.take());
            // Whoever waits longest without a slot has it now.
            if let Some(next) = self.loaded.lock().iter_mut().find(|running| running.slot.is_none()) {
                next.slot = self.loaded.places.take();
            }
        }
        self.loaded.touch();
    }
}
