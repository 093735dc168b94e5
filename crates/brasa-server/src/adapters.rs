//! Which adapters a request asks for: by `lora`, by the name `model:adapter`, or else those that the server applies.

use std::sync::{Arc, Mutex, PoisonError};

use brasa::Model;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::state::App;

/// The scales that requests have which choose none; `None` for those of the command line.
#[derive(Debug, Default)]
pub(crate) struct Applied(Mutex<Option<Arc<[f32]>>>);

/// An adapter by its number, and a factor of its own scale.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scaled {
    id: usize,
    scale: f32,
}

impl Applied {
    fn get(&self) -> Option<Arc<[f32]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapters of `model`, in llama.cpp's form.
    pub fn list(&self, model: &Model) -> Value {
        let applied = self.get();
        let scale = |id: usize, own: f32| applied.as_ref().map_or(own, |scales| scales[id]);
        let form = |(id, info): (usize, &brasa::AdapterInfo)| {
            json!({
                "id": id,
                "name": info.name,
                "path": info.path.display().to_string(),
                "scale": scale(id, info.scale),
                "task_name": "",
                "prompt_prefix": "",
            })
        };
        model.adapters().iter().enumerate().map(form).collect()
    }

    /// Applies these adapters, and no others, to requests from now on which choose none.
    ///
    /// # Errors
    ///
    /// 400 for an adapter that is not there, and for a scale that is no finite number.
    pub fn set(&self, model: &Model, scales: &[Scaled]) -> Result<()> {
        let scales: Vec<(usize, f32)> = scales.iter().map(|of| (of.id, of.scale)).collect();
        model.adapter_scope(&scales).map_err(|error| ApiError::invalid(error.to_string()))?;
        let mut row = vec![0.0; model.adapters().len()];
        for (id, scale) in scales {
            row[id] = scale;
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(row.into());
        Ok(())
    }
}

/// The adapter that a request's name of a model names behind a colon: its number.
pub(crate) fn named(name: &str, model: &Model) -> Option<usize> {
    let (_, adapter) = name.rsplit_once(':')?;
    model.adapters().iter().position(|info| info.name == adapter)
}

/// The number of the adapters that a request's text has, for its scope.
///
/// # Errors
///
/// 400 for adapters that are not there, and for both ways of asking at once.
pub(crate) fn scope(fields: &mut Fields, app: &App, model: &Model) -> Result<u64> {
    let lora: Option<Vec<Scaled>> = fields.optional("lora")?;
    let named = fields.model().and_then(|name| named(name, model));
    let scales: Vec<(usize, f32)> = match (lora, named) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field(&fields.name("lora"), "the name of the model names an adapter too"));
        }
        (Some(lora), None) if lora.is_empty() && model.adapters().is_empty() => return Ok(0),
        (Some(_), None) if model.adapters().is_empty() => {
            return Err(ApiError::unsupported(&fields.name("lora"), "this server has no adapters"));
        }
        (Some(lora), None) => lora.iter().map(|of| (of.id, of.scale)).collect(),
        (None, Some(number)) => {
            let own = model.adapters()[number].scale;
            vec![(number, if own == 0.0 { 1.0 } else { own })]
        }
        (None, None) => match app.adapters.get() {
            Some(row) => row.iter().copied().enumerate().collect(),
            None => return Ok(0),
        },
    };
    let name = fields.name("lora");
    model.adapter_scope(&scales).map_err(|error| ApiError::field(&name, error.to_string()))
}

/// Refuses a choice of adapters where texts are read and not answered: they have those of the command line.
pub(crate) fn refuse(fields: &mut Fields, model: &Model) -> Result<()> {
    const WHY: &str = "texts are read with the adapters and scales of the command line";
    if fields.model().is_some_and(|name| named(name, model).is_some()) {
        return Err(ApiError::unsupported(&fields.name("model"), WHY));
    }
    fields.refuse("lora", WHY)
}
