//! The registry of models: their list, their state, and their names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use brasa::{LoadOptions, ModelKind};

use crate::http::error::{ApiError, Result};
use crate::models::entry::{AdapterChange, Entry, State};
use crate::models::loaded::Loaded;
use crate::models::loaded_speech::LoadedSpeech;
use crate::models::loaded_text::LoadedText;
use crate::models::lost::Lost;
use crate::models::presence::Presence;
use crate::options::{ModelData, ModelSource};

/// Longest name that a client may give to a model, in bytes.
const LONGEST_NAME: usize = 128;

/// Which other names requests may use for models.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names {
    /// True if an unknown name means the first model.
    pub any_model: bool,
    /// True if names may belong to adapters. An unknown name is then an error, even if there is only one model.
    pub offers_adapters: bool,
}

/// All models, in the order in which they are listed.
pub(crate) struct Registry {
    entries: Mutex<Vec<Arc<Entry>>>,
    pub(crate) load: LoadOptions,
    pub(crate) max_loaded: usize,
    /// Which other names requests may use for models.
    pub names: Names,
    /// Number of models named at the start, which come first.
    named: usize,
    /// True if requests load the models of the folder that they name.
    autoload: bool,
    /// Further names of the first model.
    aliases: Vec<String>,
    /// The canonical path of the folder from which models may be loaded by path.
    directory: Option<PathBuf>,
    /// Held while a model is loaded. One model is loaded at a time, so that each sees the memory that the last one left.
    pub(crate) turn: Mutex<()>,
    /// Models that were unloaded but are not dropped yet.
    pub(crate) ending: Mutex<Vec<Weak<Presence>>>,
    /// Longest wait for an unloaded model to be dropped before another is loaded.
    pub(crate) patience: Duration,
    pub(crate) lost: Lost,
}

impl Registry {
    /// The models of `sources` and those below `directory`.
    ///
    /// # Errors
    ///
    /// The error of reading the folder.
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

    /// The registry with other rules for names.
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

    /// True if a model has exactly this name.
    pub fn has(&self, name: &str) -> bool {
        self.is_alias(name) || self.lock().iter().any(|entry| entry.source.id == name)
    }

    /// The model of a name, loaded; waits for its loading.
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

    /// Returns the loaded language model called `name`, and waits for its loading. Without a name: the first loaded one, else the
    /// first.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), and 400 for a model of another kind.
    pub async fn acquire_text(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<LoadedText>> {
        self.acquire_kind(name, Some(ModelKind::Text)).await?.text()
    }

    /// The first loaded model of a kind, else the first of the kind.
    pub fn first_of(&self, kind: ModelKind) -> Option<Arc<Entry>> {
        let entries = self.entries();
        let mut of_kind = entries.iter().filter(|entry| entry.kind() == Some(kind));
        let first = of_kind.clone().next();
        of_kind.find(|entry| entry.loaded().is_some()).or(first).cloned()
    }

    /// Returns the loaded speech model called `name`, and waits for its loading. If there is only one speech model, any name that
    /// no other model has means it. Without a name: the first loaded one, else the first.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), and 400 for a model of another kind.
    pub async fn acquire_speech(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<LoadedSpeech>> {
        self.acquire_kind(name, Some(ModelKind::Speech)).await?.speech()
    }

    /// Loads a model for a request, unless only clients may load it explicitly.
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

    /// True if the name is an alias of the first model.
    pub fn is_alias(&self, name: &str) -> bool {
        self.aliases.iter().any(|alias| alias == name)
    }

    /// The signal that all devices are lost.
    pub fn lost(&self) -> &Lost {
        &self.lost
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
            entry.remember(change);
        }
    }

    /// Registers a model of the models' folder by its path. Returns its entry, and true if it is new. A path is registered only
    /// once.
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
        let entry = Arc::new(Entry::new(source, size_bytes, kind));
        entries.push(Arc::clone(&entry));
        entry
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
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
}
