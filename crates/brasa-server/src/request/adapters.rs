//! The adapters of a request: chosen by `lora`, by the name `model:adapter`, or by the adapter's own name. Without a choice, the
//! server's default scales apply.

use brasa::{AdapterInfo, CacheScope, Model, RequestOptions};
use serde::Deserialize;

use crate::http::error::{ApiError, Result};
use crate::models::adapters;
use crate::models::loaded::Loaded;
use crate::request::fields::{Fields, read_whole};
use crate::state::App;

/// An adapter by its number, and a factor of its own scale.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scaled {
    #[serde(deserialize_with = "read_whole")]
    id: usize,
    scale: f32,
}

impl Scaled {
    /// The number and the factor as a pair.
    pub fn pair(&self) -> (usize, f32) {
        (self.id, self.scale)
    }
}

/// The number of the request's mixture of adapters, for [`CacheScope::adapter`](brasa::CacheScope::adapter).
///
/// # Errors
///
/// 400 for adapters that are not loaded, and if a request chooses adapters in two ways; 404 for a name `model:adapter` with a
/// model of this server and an adapter that the model does not have.
pub(crate) fn scope(fields: &mut Fields, app: &App, model: &Model) -> Result<u64> {
    let lora: Option<Vec<Scaled>> = fields.optional("lora")?;
    let asked = fields.model().filter(|name| !app.registry.has(name));
    let named = asked.and_then(|name| adapters::named(name, model));
    let of_model = asked.and_then(|name| name.rsplit_once(':')).filter(|(id, _)| app.registry.has(id));
    if let (None, Some((id, adapter))) = (&named, of_model) {
        let message = format!("`{id}` has no adapter `{adapter}`; GET /v1/models lists those that there are");
        return Err(ApiError::not_found("model_not_found", message).with_param("model"));
    }
    let scales: Vec<(usize, f32)> = match (lora, named) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field(&fields.name("lora"), "the name of the model names an adapter too"));
        }
        (Some(lora), None) if lora.is_empty() && model.adapters().is_empty() => return Ok(0),
        (Some(_), None) if model.adapters().is_empty() => {
            return Err(ApiError::unsupported(&fields.name("lora"), "this server has no adapters"));
        }
        (Some(lora), None) => lora.iter().map(Scaled::pair).collect(),
        (None, Some(info)) => vec![(info.id, if info.scale == 0.0 { 1.0 } else { info.scale })],
        (None, None) => match app.adapters.get() {
            Some(applied) => {
                let scale = |info: AdapterInfo| {
                    applied.iter().find(|(name, _)| *name == info.name).map(|(_, scale)| (info.id, *scale))
                };
                model.adapters().into_iter().filter_map(scale).collect()
            }
            None => return Ok(0),
        },
    };
    let name = fields.name("lora");
    model.adapter_scope(&scales).map_err(|error| ApiError::field(&name, error.to_string()))
}

/// The loaded model for a request that reads texts without generating, such as embeddings, and the options of its texts. For a
/// language model these include the adapters that the request chooses.
///
/// # Errors
///
/// Errors of the registry, and of [`scope`].
pub(crate) async fn acquire_reader(app: &App, fields: &mut Fields) -> Result<(Loaded, RequestOptions)> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let adapter = if let Loaded::Text(text) = &loaded {
        scope(fields, app, &text.model)?
    } else {
        fields.refuse("lora", "an encoder has no adapters that requests could choose")?;
        0
    };
    let cache_scope = CacheScope { adapter, ..CacheScope::default() };
    Ok((loaded, RequestOptions { deadline: app.deadline(), cache_scope, ..RequestOptions::default() }))
}
