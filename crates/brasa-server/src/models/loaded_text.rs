//! A loaded language model, and its running requests.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brasa::Model;

use crate::models::presence::{Busy, Presence};
use crate::models::reaper::Reaped;
use crate::models::slots::{SlotText, Slots};

/// A language model in memory, with its running requests.
pub(crate) struct LoadedText {
    pub model: Reaped<Model>,
    /// Number of requests served at once.
    pub slots: usize,
    /// The slots, and the last text of each.
    pub places: Slots,
    running: Mutex<Vec<Running>>,
    tasks: AtomicUsize,
    /// Milliseconds, on the clock of the presence, at which the last token appeared.
    token_ms: AtomicU64,
    asked: Arc<AtomicBool>,
    // The model keeps it until it is gone: whoever waits for the end of a model waits for its presence.
    pub presence: Arc<Presence>,
}

/// A generation that runs or waits.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Number of the request.
    pub task: usize,
    /// Slot of the request; `None` if all slots were taken.
    pub slot: Option<usize>,
    /// Tokens of the request's prompt.
    pub prompt_tokens: usize,
    /// Most tokens that the request may generate; `None` for no limit.
    pub max_tokens: Option<usize>,
    /// Tokens that the request has generated.
    pub decoded: usize,
}

impl LoadedText {
    /// Wraps a model that has no requests yet.
    pub fn new(id: String, model: Model) -> Self {
        let slots = model.engine().config().max_sequences;
        let presence = Presence::new(id);
        Self {
            model: Reaped::new(model, &presence),
            slots,
            places: Slots::new(slots),
            running: Mutex::default(),
            tasks: AtomicUsize::new(0),
            token_ms: AtomicU64::new(0),
            asked: Arc::default(),
            presence,
        }
    }

    /// The id of the model.
    pub fn id(&self) -> &str {
        &self.presence.id
    }

    /// Waits for the slot that a request names, and keeps it for the request.
    pub async fn reserve(self: &Arc<Self>, slot: usize) -> Reserved {
        let busy = self.presence.keep_busy();
        self.places.take_named(slot).await;
        Reserved { loaded: Arc::clone(self), slot: Some(slot), _busy: busy }
    }

    /// Records a generation until the guard is dropped, in its `reserved` slot or in any free one. `text` is the prompt, if the
    /// text of the slot is to be remembered.
    pub fn begin(
        self: &Arc<Self>,
        prompt_tokens: usize,
        max_tokens: Option<usize>,
        text: Option<SlotText>,
        reserved: Option<Reserved>,
    ) -> Task {
        self.saw_token();
        let busy = self.presence.keep_busy();
        let task = self.tasks.fetch_add(1, Ordering::Relaxed);
        let named = reserved.and_then(|mut reserved| reserved.slot.take());
        let slot = named.or_else(|| self.places.take());
        self.lock().push(Running { task, slot, prompt_tokens, max_tokens, decoded: 0 });
        Task { loaded: Arc::clone(self), number: task, text, _busy: busy }
    }

    /// The generations that run or wait, oldest first.
    pub fn running(&self) -> Vec<Running> {
        self.lock().clone()
    }

    /// False if the engine's thread has stalled: requests run, no token has appeared for the time `silence`, and the thread does
    /// not answer within a twelfth of that time.
    pub async fn is_alive(&self, silence: Duration) -> bool {
        let silent = self.presence.now_ms().saturating_sub(self.token_ms.load(Ordering::Relaxed));
        if self.presence.is_closed() {
            return false;
        }
        if !self.presence.is_busy() || Duration::from_millis(silent) < silence {
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

    /// Frees a slot. `text` is the text that was computed in it, if it can be saved.
    fn free(&self, slot: usize, text: Option<SlotText>) {
        self.places.free(slot, text);
        // Whoever waits longest without a slot has it now.
        if let Some(next) = self.lock().iter_mut().find(|running| running.slot.is_none()) {
            next.slot = self.places.take();
        }
    }

    fn saw_token(&self) {
        self.token_ms.store(self.presence.now_ms(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recorded generation.
pub(crate) struct Task {
    loaded: Arc<LoadedText>,
    number: usize,
    text: Option<SlotText>,
    _busy: Busy,
}

impl Task {
    /// The slot of the generation; `None` while all slots are taken.
    pub fn slot(&self) -> Option<usize> {
        self.loaded.lock().iter().find(|running| running.task == self.number)?.slot
    }

    /// Keeps the former text of the slot, for a request that was refused.
    pub fn leave_text(&mut self) {
        self.text = None;
    }

    /// Records a generated token.
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
            self.loaded.free(slot, self.text.take());
        }
    }
}

/// A slot that is reserved for a request, until dropped.
pub(crate) struct Reserved {
    loaded: Arc<LoadedText>,
    /// `None` once the request runs.
    slot: Option<usize>,
    _busy: Busy,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.loaded.free(slot, None);
        }
    }
}
