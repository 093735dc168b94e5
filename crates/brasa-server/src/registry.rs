//! The models that are served: which there are, which are loaded, and who uses them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use brasa::{AdapterSource, AnyModel, LoadOptions, ModelKind};
use tokio::sync::{Notify, watch};

use crate::error::{ApiError, Result};
use crate::ids;
use crate::loaded::Loaded;
use crate::loaded_speech::LoadedSpeech;
use crate::loaded_text::LoadedText;
use crate::lost::{Lost, is_loss};
use crate::names::Names;
use crate::options::{ModelData, ModelSource};
use crate::presence::Presence;

/// Longest wait for the end of a model whose engine has failed.
const LONGEST_END: Duration = Duration::from_secs(2);

/// Pauses between attempts to load a model anew whose device was lost.
const ATTEMPTS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

/// Longest name that a client may give to a model, in bytes.
const LONGEST_NAME: usize = 128;

/// All models, in the order in which they are listed.
pub(crate) struct Registry {
    entries: Mutex<Vec<Arc<Entry>>>,
    load: LoadOptions,
    max_loaded: usize,
    /// Which names stand for models besides their own.
    pub names: Names,
    /// Models of the start, which come first.
    named: usize,
    /// Loads models of the folder for requests that name them.
    autoload: bool,
    /// Further names of the first model.
    aliases: Vec<String>,
    /// The canonical path of the folder whose models may be loaded by path.
    directory: Option<PathBuf>,
    /// One model is loaded at a time, so that each sees the room that the one before it has left.
    turn: Mutex<()>,
    /// Models that were unloaded and are not gone yet.
    ending: Mutex<Vec<Weak<Presence>>>,
    /// Longest wait for a model to be gone, so that another has room.
    patience: Duration,
    lost: Lost,
}

/// One model.
pub(crate) struct Entry {
    pub source: ModelSource,
    /// When the server got to know the model, in seconds since 1970.
    pub created: u64,
    /// Bytes of the model's files, if known without loading it.
    pub size_bytes: Option<u64>,
    /// The kind of the model, once it is known.
    kind: Mutex<Option<ModelKind>>,
    /// Changes of the model's adapters since it was first loaded, which are made again when it is loaded again.
    adapters: Mutex<Vec<AdapterChange>>,
    state: Mutex<State>,
}

/// An adapter that was loaded while the server ran, or unloaded.
#[derive(Clone, Debug)]
pub(crate) struct AdapterChange {
    pub name: String,
    /// `None` if it was unloaded.
    pub source: Option<AdapterSource>,
}

enum State {
    Unloaded {
        by_idleness: bool,
    },
    /// The model is being loaded.
    Loading(Loading),
    Loaded(Loaded),
    Failed(String),
}

/// A model that is being loaded.
#[derive(Clone)]
struct Loading {
    /// Tells when it is over.
    outcome: watch::Receiver<Option<Result<Loaded>>>,
    /// Given if the model is no longer wanted.
    cancelled: Arc<Cancelled>,
}

/// The order to give up loading a model.
#[derive(Default)]
struct Cancelled {
    is_given: AtomicBool,
    told: Notify,
}

impl Cancelled {
    fn give(&self) {
        self.is_given.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    fn is_given(&self) -> bool {
        self.is_given.load(Ordering::SeqCst)
    }

    /// Waits until the order is given.
    async fn given(&self) {
        let mut told = pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_given() {
            told.await;
        }
    }
}

/// A model that is there, or that will be.
enum Coming {
    Here(Loaded),
    Later(Loading),
}

impl State {
    /// The model, or its loading; `None` if no task loads it.
    fn coming(&self) -> Option<Coming> {
        match self {
            Self::Loaded(loaded) if !loaded.presence().is_closed() => {
                loaded.presence().touch();
                Some(Coming::Here(loaded.clone()))
            }
            Self::Loading(loading) => Some(Coming::Later(loading.clone())),
            _ => None,
        }
    }
}

impl Registry {
    /// The models of `sources` and those below `directory`.
    ///
    /// # Errors
    ///
    /// The reason why the folder cannot be read.
    pub fn new(
        sources: Vec<ModelSource>,
        directory: Option<&Path>,
        load: LoadOptions,
        max_loaded: usize,
        patience: Duration,
    ) -> Result<Self, brasa::Error> {
        let registry = Self {
            entries: Mutex::default(),
            load,
            max_loaded: max_loaded.max(1),
            names: Names::default(),
            named: sources.len(),
            autoload: true,
            aliases: Vec::new(),
            directory: directory.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned())),
            turn: Mutex::default(),
            ending: Mutex::default(),
            patience,
            lost: Lost::default(),
        };
        for source in sources {
            registry.add(source, None, None);
        }
        if let Some(directory) = directory {
            for found in brasa::discover(directory)?.into_iter().filter(|found| found.problem.is_none()) {
                let below = found.path.strip_prefix(directory).unwrap_or(&found.path);
                let id = below.with_extension("").display().to_string();
                let id = if id.is_empty() { ModelSource::name_of(&found.path) } else { id };
                let data = ModelData::Path(found.path);
                registry.add(ModelSource { id, data }, Some(found.size_bytes), found.kind);
            }
        }
        Ok(registry)
    }

    /// The registry with further names of its models.
    #[must_use]
    pub fn with_names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// The registry with further names of the first model, and whether requests load models of the folder.
    pub fn with(self, aliases: Vec<String>, autoload: bool) -> Self {
        Self { autoload, aliases, ..self }
    }

    /// Every model.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.lock().clone()
    }

    /// True if there is a model of this very name.
    pub fn has(&self, name: &str) -> bool {
        self.is_alias(name) || self.lock().iter().any(|entry| entry.source.id == name)
    }

    /// The model of a name, loaded; waits until it is.
    pub async fn acquire(self: &Arc<Self>, name: Option<&str>) -> Result<Loaded> {
        self.acquire_kind(name, None).await
    }

    async fn acquire_kind(self: &Arc<Self>, name: Option<&str>, kind: Option<ModelKind>) -> Result<Loaded> {
        let entry = self.find(name, kind)?;
        let loaded = self.load_for_request(&entry).await?;
        // Its adapters are known now.
        self.find(name, kind)?;
        Ok(loaded)
    }

    /// Returns the loaded language model called `name`, and waits for its loading. Without a name: the first that is loaded, or the
    /// first.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), and 400 for a model of another kind.
    pub async fn acquire_text(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<LoadedText>> {
        self.acquire_kind(name, Some(ModelKind::Text)).await?.text()
    }

    /// The first model of a kind that is loaded, or the first.
    pub fn first_of(&self, kind: ModelKind) -> Option<Arc<Entry>> {
        let entries = self.entries();
        let mut of_kind = entries.iter().filter(|entry| entry.kind() == Some(kind));
        let first = of_kind.clone().next();
        of_kind.find(|entry| entry.loaded().is_some()).or(first).cloned()
    }

    /// Returns the loaded speech model called `name`, and waits for its loading. If there is one speech model, any name that is no
    /// other model's stands for it. Without a name: the first that is loaded, or the first.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), and 400 for a model of another kind.
    pub async fn acquire_speech(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<LoadedSpeech>> {
        self.acquire_kind(name, Some(ModelKind::Speech)).await?.speech()
    }

    /// Loads a model that a request names, unless it has to be loaded by hand.
    async fn load_for_request(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Loaded> {
        if !self.autoload && matches!(&*entry.lock(), State::Unloaded { .. } | State::Failed(_)) {
            let is_named = self.lock().iter().take(self.named).any(|named| Arc::ptr_eq(named, entry));
            if !is_named {
                let name = &entry.source.id;
                let message =
                    format!("{name} is not loaded, and this server loads models by POST /models/load alone");
                return Err(ApiError { code: "model_not_loaded", ..ApiError::invalid(message) });
            }
        }
        self.load(entry).await
    }

    /// True for a further name of the first model.
    pub fn is_alias(&self, name: &str) -> bool {
        self.aliases.iter().any(|alias| alias == name)
    }

    /// Loads a model, or waits for another task that loads it already. A wait ends when the model is unloaded, unless another task
    /// loads it again.
    ///
    /// # Errors
    ///
    /// 503 `model_unloaded` for a model that was unloaded while it was loaded, and that no task has loaded since.
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

    /// The model, or its loading, which begins unless somebody loads the model already.
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

    /// Loads a model again after its engine has failed, with several tries if its device does not come back at once. If all fail
    /// and no other model can be used, tells the server.
    async fn load_again(self: &Arc<Self>, entry: &Arc<Entry>) {
        let mut reason = String::new();
        for pause in ATTEMPTS {
            tokio::time::sleep(pause).await;
            match self.load(entry).await {
                Err(error) if ["device_lost", "device_unavailable"].contains(&error.code) => {
                    reason = error.message;
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

    /// The end of all devices.
    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Unloads the models that had no request for `idle`.
    pub fn unload_idle(&self, idle: Duration) {
        for entry in self.entries() {
            self.unload_if(&entry, |loaded| loaded.presence().idle_time() >= idle);
        }
    }

    /// Unloads a model; running requests go on to their end. A load in progress is abandoned.
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

    /// Unloads a model for idleness if it is not busy and `condition` holds; true if it does.
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

    /// Removes a model that has never been loaded.
    pub fn remove(&self, entry: &Arc<Entry>) {
        let mut entries = self.lock();
        if matches!(&*entry.lock(), State::Failed(_)) {
            entries.retain(|known| !Arc::ptr_eq(known, entry));
        }
    }

    /// Records an adapter that was loaded or unloaded, for the next load of its model.
    pub fn remember(&self, id: &str, change: AdapterChange) {
        if let Some(entry) = self.entries().iter().find(|entry| entry.source.id == id) {
            let mut changes = entry.adapters.lock().unwrap_or_else(PoisonError::into_inner);
            changes.retain(|known| known.name != change.name);
            changes.push(change);
        }
    }

    /// Registers a model of the models' folder by its path, and returns it with true if it is new. A path is registered once.
    pub fn add_path(&self, path: &str, id: Option<String>) -> Result<(Arc<Entry>, bool)> {
        let is_name = |id: &String| {
            !id.trim().is_empty() && id.len() <= LONGEST_NAME && !id.chars().any(char::is_control)
        };
        if id.as_ref().is_some_and(|id| !is_name(id)) {
            let message = format!("`id` is no name: 1 to {LONGEST_NAME} bytes, without control characters");
            return Err(ApiError::field("id", message));
        }
        let refused = || {
            let message = "models are loaded by path only from the folder that --models-dir names";
            ApiError::forbidden("path_not_allowed", message).with_param("path")
        };
        let directory = self.directory.as_ref().ok_or_else(refused)?;
        // A path outside the folder and one that does not exist look alike to a stranger.
        let path = directory.join(path).canonicalize().map_err(|_| refused())?;
        if !path.starts_with(directory) {
            return Err(refused());
        }
        let is_it = |entry: &&Arc<Entry>| match &entry.source.data {
            ModelData::Path(known) => known.canonicalize().is_ok_and(|known| known == path),
            ModelData::Bytes(_) => false,
        };
        if let Some(entry) = self.entries().iter().find(is_it) {
            return Ok((Arc::clone(entry), false));
        }
        if brasa::kind_of(&path).is_none() {
            let message = "`path` leads to no model that can be served";
            return Err(ApiError { code: "not_a_model", ..ApiError::field("path", message) });
        }
        let id = id.unwrap_or_else(|| ModelSource::name_of(&path));
        Ok((self.add(ModelSource { id, data: ModelData::Path(path) }, None, None), true))
    }

    fn add(&self, mut source: ModelSource, size_bytes: Option<u64>, kind: Option<ModelKind>) -> Arc<Entry> {
        // Clients choose among models that were never loaded, by their kinds.
        let kind = kind.or_else(|| match &source.data {
            ModelData::Path(path) => brasa::kind_of(path),
            ModelData::Bytes(_) => None,
        });
        let mut entries = self.lock();
        let wanted = source.id.clone();
        let mut number = 2;
        while entries.iter().any(|entry| entry.source.id == source.id) {
            source.id = format!("{wanted}-{number}");
            number += 1;
        }
        let state = Mutex::new(State::Unloaded { by_idleness: false });
        let kind = Mutex::new(kind);
        let adapters = Mutex::default();
        let entry =
            Arc::new(Entry { source, created: ids::unix_seconds(), size_bytes, kind, adapters, state });
        entries.push(Arc::clone(&entry));
        entry
    }

    /// Loads a model once it is its turn, `dead` is gone and there is room. Blocks.
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
                Err(match error {
                    error if is_loss(&error) => ApiError::unavailable("device_lost", message),
                    brasa::Error::Backend(_) => ApiError::unavailable("device_unavailable", message),
                    _ => ApiError { code: "model_not_loaded", ..ApiError::internal(message) },
                })
            }
        }
    }

    /// Unloads the models that have been idle for the longest time, so that one more may be loaded, and waits until they are gone.
    ///
    /// # Errors
    ///
    /// 503 if all models stay busy.
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

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of requests that wait for a model which is unloaded before it is ready.
fn unloaded(id: &str) -> ApiError {
    let message = format!(
        "{id} was unloaded by another client while it was being loaded; the next request loads it again"
    );
    ApiError::unavailable("model_unloaded", message)
}

/// Waits until the failed model is dropped, so that its memory is free for its successor. Its requests end on their own, unless a
/// client reads slowly.
fn wait_for_end(dead: &Weak<Presence>) {
    let deadline = Instant::now() + LONGEST_END;
    while dead.strong_count() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Entry {
    /// The kind of the model; `None` if its files do not tell and it has not been loaded.
    pub fn kind(&self) -> Option<ModelKind> {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_kind(&self, kind: ModelKind) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// Loads the adapters of a model again after the model was loaded again. An adapter whose file is gone or no longer fits is
    /// left out, and the list of models shows that.
    fn bring_adapters(&self, loaded: &Loaded) {
        let Loaded::Text(text) = loaded else { return };
        let mut changes = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain(|AdapterChange { name, source }| {
            if let Some(source) = source {
                return text.model.load_adapter_as(name, source).is_ok();
            }
            let known = text.model.adapters().into_iter().find(|info| info.name == *name);
            known.is_none_or(|info| text.model.unload_adapter(info.id).is_ok())
        });
    }

    /// The model, if it is loaded.
    pub fn loaded(&self) -> Option<Loaded> {
        match &*self.lock() {
            State::Loaded(loaded) => Some(loaded.clone()),
            _ => None,
        }
    }

    /// The state as `/v1/models` names it.
    pub fn status(&self) -> &'static str {
        match &*self.lock() {
            State::Unloaded { by_idleness: true } => "sleeping",
            State::Unloaded { by_idleness: false } | State::Failed(_) => "unloaded",
            State::Loading(_) => "loading",
            State::Loaded(_) => "loaded",
        }
    }

    /// The reason why the model could not be loaded the last time.
    pub fn failure(&self) -> Option<String> {
        match &*self.lock() {
            State::Failed(message) => Some(message.clone()),
            _ => None,
        }
    }

    /// The path of the model as clients may see it; empty for a model inside the program.
    pub fn path(&self) -> String {
        match &self.source.data {
            ModelData::Path(path) => path.display().to_string(),
            ModelData::Bytes(_) => String::new(),
        }
    }

    /// Sets the state of a model that was being loaded, unless that was given up; true if it did.
    fn settle(&self, cancelled: &Arc<Cancelled>, outcome: State) -> bool {
        let mut state = self.lock();
        let is_it = matches!(&*state, State::Loading(loading) if Arc::ptr_eq(&loading.cancelled, cancelled));
        if is_it {
            *state = outcome;
        }
        is_it
    }

    fn set(&self, state: State) {
        *self.lock() = state;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page offers models that chat, which it tells by their kinds, while they are still being loaded.
    #[test]
    fn kinds_are_known_before_models_are_loaded() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let source = |path: &str| ModelSource { id: path.into(), data: ModelData::Path(models.join(path)) };
        let sources = ["random-encoders/bert", "tiny-llama", "tiny-whisper", "not-there"].map(source);
        let patience = Duration::from_secs(1);
        let registry = Registry::new(sources.into(), None, LoadOptions::default(), 1, patience).unwrap();
        let kinds: Vec<Option<ModelKind>> = registry.entries().iter().map(|entry| entry.kind()).collect();
        assert_eq!(kinds, [Some(ModelKind::Encoder), Some(ModelKind::Text), Some(ModelKind::Speech), None]);
        assert!(registry.entries().iter().all(|entry| entry.loaded().is_none()));
    }

    /// The end where it is told how loading ends.
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
