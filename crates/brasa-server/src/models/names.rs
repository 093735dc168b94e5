//! Finds the model for the name in a request: a model's name, an adapter's name, or an unknown name that means a model.

use std::sync::Arc;

use brasa::ModelKind;

use crate::http::error::{ApiError, Result};
use crate::models::entry::Entry;
use crate::models::loaded::Loaded;
use crate::models::registry::Registry;

/// Most names that an error lists.
const MOST_LISTED: usize = 20;

impl Registry {
    /// The model that a request names. Without a name, the first loaded model, else the first model; of `kind`, if one is given.
    ///
    /// A name is a model's, an adapter's, or both with a colon in between. An unknown name means the only model, unless the
    /// server offers adapters, which clients see as models. With [`any_model`](crate::models::registry::Names::any_model), an
    /// unknown name means the first model.
    ///
    /// # Errors
    ///
    /// 404 that lists the known names.
    pub fn find(&self, name: Option<&str>, kind: Option<ModelKind>) -> Result<Arc<Entry>> {
        let entries = self.entries();
        let of_kind = kind.and_then(|kind| self.first_of(kind));
        let first = || {
            let loaded = entries.iter().find(|entry| entry.loaded().is_some()).or_else(|| entries.first());
            of_kind.clone().or_else(|| loaded.cloned())
        };
        let missing = |message: String| ApiError::not_found("model_not_found", message).with_param("model");
        let Some(name) = name else { return first().ok_or_else(|| missing("there is no model".into())) };
        let of = |name: &str| {
            let found = entries.iter().find(|entry| entry.source.id == name);
            found.or_else(|| entries.first().filter(|_| self.is_alias(name))).cloned()
        };
        let found = of(name).or_else(|| name.rsplit_once(':').and_then(|(model, _)| of(model)));
        let named = || entries.iter().find(|entry| entry.has_adapter(name)).cloned();
        if let Some(found) = found.or_else(named) {
            return Ok(found);
        }
        let alone = match (kind, entries.as_slice()) {
            (_, [only]) => Some(Arc::clone(only)),
            (Some(ModelKind::Speech), _) => {
                let of_speech = entries.iter().filter(|entry| entry.kind() == kind).count();
                of_kind.clone().filter(|_| of_speech == 1)
            }
            _ => None,
        };
        // The names of the adapters of a model that is not loaded are not known yet.
        let alone = alone.filter(|only| !self.names.offers_adapters || only.loaded().is_none());
        if let Some(entry) = alone.or_else(|| first().filter(|_| self.names.any_model)) {
            return Ok(entry);
        }
        let known: Vec<String> = entries.iter().flat_map(|entry| entry.names()).collect();
        let listed = known[..known.len().min(MOST_LISTED)].join(", ");
        let more = if known.len() > MOST_LISTED { ", …; GET /v1/models lists all" } else { "" };
        Err(missing(format!("there is no model `{name}`; there are: {listed}{more}")))
    }
}

impl Entry {
    /// Names for requests to the model, alone and with each of its adapters.
    pub fn names(&self) -> Vec<String> {
        let id = &self.source.id;
        let with = self.adapter_names().into_iter().map(|adapter| format!("{id}:{adapter}"));
        std::iter::once(id.clone()).chain(with).collect()
    }

    fn has_adapter(&self, name: &str) -> bool {
        self.adapter_names().iter().any(|adapter| adapter == name)
    }

    /// The names of the model's adapters; empty while it is not loaded.
    fn adapter_names(&self) -> Vec<String> {
        match self.loaded() {
            Some(Loaded::Text(text)) => text.model.adapters().into_iter().map(|info| info.name).collect(),
            _ => Vec::new(),
        }
    }
}
