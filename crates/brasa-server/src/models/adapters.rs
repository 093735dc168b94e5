//! The adapters of requests that choose none.

use std::sync::{Arc, Mutex, PoisonError};

use brasa::{AdapterInfo, Model};
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};

/// The scales of requests that choose no adapters, by the adapters' names; `None` for the scales of the command line.
#[derive(Debug, Default)]
pub(crate) struct Applied(Mutex<Option<Scales>>);

/// Scales by the adapters' names.
type Scales = Arc<[(String, f32)]>;

impl Applied {
    /// The scales that a client has set; `None` if none has.
    pub fn get(&self) -> Option<Scales> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapters of `model` and their scales, in llama.cpp's form.
    pub fn list(&self, model: &Model) -> Value {
        let applied = self.get();
        let scale = |info: &AdapterInfo| match &applied {
            Some(scales) => {
                scales.iter().find(|(name, _)| *name == info.name).map_or(0.0, |(_, scale)| *scale)
            }
            None if info.is_default => info.scale,
            None => 0.0,
        };
        let form = |info: &AdapterInfo| {
            json!({
                "id": info.id,
                "name": info.name,
                "path": info.path.display().to_string(),
                "scale": scale(info),
                "task_name": "",
                "prompt_prefix": "",
            })
        };
        model.adapters().iter().map(form).collect()
    }

    /// Sets the default scales, by the adapters' numbers. From now on, requests that choose no adapters use exactly these.
    ///
    /// # Errors
    ///
    /// 400 for an adapter that is not loaded, and for a scale that is no finite number.
    pub fn set(&self, model: &Model, scales: &[(usize, f32)]) -> Result<()> {
        model.adapter_scope(scales).map_err(|error| ApiError::invalid(error.to_string()))?;
        let named = model.adapters().into_iter().filter_map(|info| {
            let scale = scales.iter().rfind(|(id, _)| *id == info.id)?.1;
            Some((info.name, scale))
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(named.collect());
        Ok(())
    }
}

/// The adapter that a request names in place of a model: by the adapter's name alone, or after the model's name and a colon.
pub(crate) fn named(name: &str, model: &Model) -> Option<AdapterInfo> {
    let adapter = name.rsplit_once(':').map_or(name, |(_, adapter)| adapter);
    model.adapters().into_iter().find(|info| info.name == adapter)
}
