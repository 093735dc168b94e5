//! Loads models one at a time, and unloads them. All requests for a model share one load. Unloading also gives up a load in
//! progress.

use std::ops::ControlFlow;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use brasa::AnyModel;
use brasa::graph::device::LostPart;
use tokio::sync::watch;

use crate::http::error::{ApiError, Result};
use crate::models::coming::{Cancelled, Coming, Loading};
use crate::models::entry::{Entry, State};
use crate::models::loaded::Loaded;
use crate::models::lost::lost_part;
use crate::models::presence::Presence;
use crate::models::registry::Registry;
use crate::options::ModelData;

/// Longest wait for a model with a failed engine to be dropped.
const LONGEST_END: Duration = Duration::from_secs(2);

/// Pauses between the attempts to load a model again after its device was lost.
const ATTEMPTS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

impl Registry {
    /// Loads a model, or waits for the load in progress. A wait ends when the model is unloaded, unless another task loads it
    /// again.
    ///
    /// # Errors
    ///
    /// 503 `model_unloaded` if the model was unloaded during its load, and no task has loaded it since.
    pub async fn load(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Loaded> {
        let mut coming = self.begin_loading(entry);
        loop {
            let Loading { mut outcome, cancelled } = match coming {
                Coming::Here(loaded) => return Ok(loaded),
                Coming::Later(loading) => loading,
            };
            let outcome = tokio::select! {
                outcome = outcome.wait_for(Option::is_some) => outcome.ok().and_then(|outcome| outcome.clone()),
                () = cancelled.given() => Some(Err(unloaded(&entry.source.id))),
            };
            let outcome = outcome.unwrap_or_else(|| {
                entry.set(State::Failed("loading was interrupted".into()));
                Err(ApiError::internal(format!("loading {} was interrupted", entry.source.id)))
            });
            match entry.lock().coming() {
                Some(again) if cancelled.is_given() && outcome.is_err() => coming = again,
                _ => return outcome,
            }
        }
    }

    /// The model, or its load in progress. Begins to load it if neither exists.
    fn begin_loading(self: &Arc<Self>, entry: &Arc<Entry>) -> Coming {
        let mut state = entry.lock();
        if let Some(coming) = state.coming() {
            return coming;
        }
        let dead = match &*state {
            State::Loaded(dead) => Arc::downgrade(dead.presence()),
            _ => Weak::new(),
        };
        let (sender, outcome) = watch::channel(None);
        let loading = Loading { outcome, cancelled: Arc::default() };
        *state = State::Loading(loading.clone());
        let (registry, entry) = (Arc::clone(self), Arc::clone(entry));
        let cancelled = Arc::clone(&loading.cancelled);
        // Loading goes on if the one who asked for it goes away: others may wait for it.
        tokio::task::spawn_blocking(move || {
            let outcome = registry.load_now(&entry, &dead, &cancelled);
            sender.send_replace(Some(outcome));
        });
        Coming::Later(loading)
    }

    /// Loads a model again after its engine has failed for good.
    pub fn revive(self: &Arc<Self>, id: &str) {
        let entry = self.entries().into_iter().find(|entry| entry.source.id == id);
        if let Some(entry) =
            entry.filter(|entry| entry.loaded().is_some_and(|loaded| loaded.presence().is_closed()))
        {
            let registry = Arc::clone(self);
            tokio::spawn(async move { registry.load_again(&entry).await });
        }
    }

    /// Loads a model again after its engine has failed. Tries several times if the device does not come back at once,
    /// but gives up at once if the device is lost for this process. If no attempt succeeds and no other model can be
    /// used, the server is notified.
    async fn load_again(self: &Arc<Self>, entry: &Arc<Entry>) {
        let mut reason = String::new();
        for pause in ATTEMPTS {
            tokio::time::sleep(pause).await;
            match self.load(entry).await {
                Err(error) if ["device_lost", "device_unavailable"].contains(&error.code) => {
                    reason = error.message;
                }
                // No further attempt of this process can succeed.
                Err(error) if error.code == "device_gone" => {
                    reason = error.message;
                    break;
                }
                // Whoever asks for the model next hears of another failure.
                _ => return,
            }
        }
        let is_well =
            |entry: &Arc<Entry>| entry.loaded().is_some_and(|loaded| !loaded.presence().is_closed());
        if !self.entries().iter().any(is_well) {
            self.lost.tell(reason);
        }
    }

    /// Unloads the models without a request for the time `idle`.
    pub fn unload_idle(&self, idle: Duration) {
        for entry in self.entries() {
            self.unload_if(&entry, |loaded| loaded.presence().idle_time() >= idle);
        }
    }

    /// Unloads a model. Its running requests are completed; a load in progress is given up.
    pub fn unload(&self, entry: &Entry) {
        let mut state = entry.lock();
        match &*state {
            State::Loaded(loaded) => self.ending().push(Arc::downgrade(loaded.presence())),
            State::Loading(loading) => loading.cancelled.give(),
            State::Failed(_) => {}
            State::Unloaded { .. } => return,
        }
        *state = State::Unloaded { by_idleness: false };
    }

    /// Unloads a model if no request uses it and `condition` holds; returns true if it was unloaded.
    fn unload_if(&self, entry: &Entry, condition: impl FnOnce(&Loaded) -> bool) -> bool {
        let mut state = entry.lock();
        let State::Loaded(loaded) = &*state else { return false };
        if loaded.presence().is_busy() || !condition(loaded) {
            return false;
        }
        self.ending().push(Arc::downgrade(loaded.presence()));
        *state = State::Unloaded { by_idleness: true };
        true
    }

    /// Loads a model once no other one is being loaded, `dead` is dropped and there is room. Blocks.
    fn load_now(
        &self,
        entry: &Arc<Entry>,
        dead: &Weak<Presence>,
        cancelled: &Arc<Cancelled>,
    ) -> Result<Loaded> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_cancelled = || cancelled.is_given();
        wait_for_end(dead);
        let id = &entry.source.id;
        let room = self.make_room(entry, &is_cancelled);
        let unwanted = || unloaded(id);
        if let Err(error) = room.and_then(|()| if is_cancelled() { Err(unwanted()) } else { Ok(()) }) {
            entry.settle(cancelled, State::Unloaded { by_idleness: false });
            return Err(error);
        }
        let progress = |_| if is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let loaded = match &entry.source.data {
            ModelData::Path(path) => AnyModel::load_with_progress(path, &self.load, progress),
            ModelData::Bytes(bytes) => AnyModel::from_gguf_bytes(*bytes, &self.load, progress),
        };
        match loaded.and_then(|model| Loaded::new(id.clone(), model)) {
            Ok(loaded) => {
                entry.set_kind(loaded.kind());
                entry.bring_adapters(&loaded);
                if !entry.settle(cancelled, State::Loaded(loaded.clone())) {
                    return Err(unwanted());
                }
                Ok(loaded)
            }
            Err(_) if is_cancelled() => Err(unwanted()),
            Err(error) => {
                let message = format!("{id} cannot be loaded: {error}");
                entry.settle(cancelled, State::Failed(message.clone()));
                Err(match (lost_part(&error), error) {
                    (Some(LostPart::Device), _) => ApiError::unavailable("device_gone", message),
                    (Some(LostPart::Program | LostPart::Context), _) => {
                        ApiError::unavailable("device_lost", message)
                    }
                    (None, brasa::Error::Backend(_)) => ApiError::unavailable("device_unavailable", message),
                    (None, _) => ApiError { code: "model_not_loaded", ..ApiError::internal(message) },
                })
            }
        }
    }

    /// Unloads the longest idle models until one more may be loaded, and waits until they are dropped.
    ///
    /// # Errors
    ///
    /// 503 if all models stay in use.
    fn make_room(&self, wanted: &Arc<Entry>, is_cancelled: &impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now().checked_add(self.patience);
        loop {
            let others = self.entries().into_iter().filter(|entry| !Arc::ptr_eq(entry, wanted));
            let others: Vec<(Arc<Entry>, Loaded)> =
                others.filter_map(|entry| entry.loaded().map(|loaded| (entry, loaded))).collect();
            let ending = {
                let mut ending = self.ending();
                ending.retain(|presence| presence.strong_count() > 0);
                ending.len()
            };
            if others.len() + ending < self.max_loaded || is_cancelled() {
                return Ok(());
            }
            if others.len() >= self.max_loaded {
                let idle = others.iter().filter(|(_, loaded)| !loaded.presence().is_busy());
                let longest = idle.max_by_key(|(_, loaded)| loaded.presence().idle_time());
                if longest.is_some_and(|(entry, _)| self.unload_if(entry, |_| true)) {
                    continue;
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let message = format!("the {} models that may be loaded at once are busy", self.max_loaded);
                return Err(ApiError::unavailable("models_busy", message));
            }
            drop(others);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ending(&self) -> MutexGuard<'_, Vec<Weak<Presence>>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for requests that wait for a model that is unloaded before it is ready.
fn unloaded(id: &str) -> ApiError {
    let message = format!(
        "{id} was unloaded by another client while it was being loaded; the next request loads it again"
    );
    ApiError::unavailable("model_unloaded", message)
}

/// Waits until the failed model is dropped, so that its memory is free for the next one. Its requests end by themselves, unless a
/// client reads slowly.
fn wait_for_end(dead: &Weak<Presence>) {
    let deadline = Instant::now() + LONGEST_END;
    while dead.strong_count() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use brasa::LoadOptions;

    use super::*;
    use crate::options::ModelSource;

    /// The end that receives how loading ends.
    type Teller = watch::Sender<Option<Result<Loaded>>>;

    /// A registry of one model that is being loaded, and the end where it would be told how that ends.
    fn loading() -> (Arc<Registry>, Arc<Entry>, Loading, Teller) {
        let source = ModelSource { id: "a".into(), data: ModelData::Path("not-there".into()) };
        let registry =
            Registry::new(vec![source], None, LoadOptions::default(), 1, Duration::from_secs(1)).unwrap();
        let entry = registry.entries().remove(0);
        let (loading, sender) = begun(&entry);
        (Arc::new(registry), entry, loading, sender)
    }

    fn begun(entry: &Entry) -> (Loading, Teller) {
        let (sender, outcome) = watch::channel(None);
        let loading = Loading { outcome, cancelled: Arc::default() };
        entry.set(State::Loading(loading.clone()));
        (loading, sender)
    }

    #[tokio::test]
    async fn who_waits_for_a_model_that_is_unloaded_hears_so_at_once() {
        let (registry, entry, _loading, _sender) = loading();
        let wait = tokio::spawn({
            let (registry, entry) = (Arc::clone(&registry), Arc::clone(&entry));
            async move { registry.load(&entry).await.err().map(|error| (error.code, error.retry_after)) }
        });
        tokio::task::yield_now().await;
        registry.unload(&entry);
        assert_eq!(wait.await.unwrap(), Some(("model_unloaded", Some(1))));
        assert_eq!(entry.status(), "unloaded");
    }

    #[tokio::test]
    async fn a_wait_goes_on_if_the_model_is_loaded_anew() {
        let (registry, entry, _loading, _sender) = loading();
        let wait = tokio::spawn({
            let (registry, entry) = (Arc::clone(&registry), Arc::clone(&entry));
            async move { registry.load(&entry).await.err().map(|error| error.message) }
        });
        tokio::task::yield_now().await;
        registry.unload(&entry);
        // Somebody else wants the model before the waiting task comes to look.
        let (_again, sender) = begun(&entry);
        tokio::task::yield_now().await;
        assert!(!wait.is_finished());
        sender.send_replace(Some(Err(ApiError::internal("the second time"))));
        assert_eq!(wait.await.unwrap(), Some("the second time".into()));
    }
}
