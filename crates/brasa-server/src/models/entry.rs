//! One model that is served: its source, its kind, its adapters and its state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brasa::{AdapterSource, ModelKind};

use crate::http::ids;
use crate::models::coming::{Cancelled, Coming, Loading};
use crate::models::loaded::Loaded;
use crate::options::{ModelData, ModelSource};

/// One model that the server can serve, loaded or not.
pub(crate) struct Entry {
    pub source: ModelSource,
    /// Time at which the server registered the model, in seconds since 1970.
    pub created: u64,
    /// Bytes of the model's files, if known without loading it.
    pub size_bytes: Option<u64>,
    /// The kind of the model, once it is known.
    kind: Mutex<Option<ModelKind>>,
    /// Changes of the model's adapters since it was first loaded. They are repeated when the model is loaded again.
    adapters: Mutex<Vec<AdapterChange>>,
    state: Mutex<State>,
}

/// An adapter that was loaded or unloaded while the server runs.
#[derive(Clone, Debug)]
pub(crate) struct AdapterChange {
    pub name: String,
    /// The loaded adapter; `None` if it was unloaded.
    pub source: Option<AdapterSource>,
}

pub(crate) enum State {
    Unloaded {
        by_idleness: bool,
    },
    /// The model is being loaded.
    Loading(Loading),
    Loaded(Loaded),
    Failed(String),
}

impl State {
    /// The model or its loading; `None` if it is neither loaded nor being loaded.
    pub fn coming(&self) -> Option<Coming> {
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

impl Entry {
    /// An entry for a model that is not loaded.
    pub fn new(source: ModelSource, size_bytes: Option<u64>, kind: Option<ModelKind>) -> Self {
        let state = Mutex::new(State::Unloaded { by_idleness: false });
        let created = ids::unix_seconds();
        Self { source, created, size_bytes, kind: Mutex::new(kind), adapters: Mutex::default(), state }
    }

    /// The kind of the model; `None` if its files do not tell and it has not been loaded.
    pub fn kind(&self) -> Option<ModelKind> {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_kind(&self, kind: ModelKind) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// Loads the adapters of a model again after the model was loaded again. An adapter is left out, also from the list of
    /// models, if its file is gone or no longer fits.
    pub fn bring_adapters(&self, loaded: &Loaded) {
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

    /// Records a change of the model's adapters for its next load.
    pub fn remember(&self, change: AdapterChange) {
        let mut changes = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain(|known| known.name != change.name);
        changes.push(change);
    }

    /// The model, if it is loaded.
    pub fn loaded(&self) -> Option<Loaded> {
        match &*self.lock() {
            State::Loaded(loaded) => Some(loaded.clone()),
            _ => None,
        }
    }

    /// The state under its name in `/v1/models`.
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

    /// The path of the model as shown to clients; empty for a model inside the program.
    pub fn path(&self) -> String {
        match &self.source.data {
            ModelData::Path(path) => path.display().to_string(),
            ModelData::Bytes(_) => String::new(),
        }
    }

    /// Sets the state after loading; returns false, and changes nothing, if the loading was given up.
    pub fn settle(&self, cancelled: &Arc<Cancelled>, outcome: State) -> bool {
        let mut state = self.lock();
        let is_it = matches!(&*state, State::Loading(loading) if Arc::ptr_eq(&loading.cancelled, cancelled));
        if is_it {
            *state = outcome;
        }
        is_it
    }

    pub fn set(&self, state: State) {
        *self.lock() = state;
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
