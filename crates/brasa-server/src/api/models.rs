//! `/v1/models`, and loading and unloading.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use brasa::ModelKind;
use serde_json::{Value, json};

use crate::api::{finish_fields, models_anthropic};
use crate::http::error::{ApiError, Result};
use crate::http::log::wants_anthropic;
use crate::http::reply;
use crate::models::entry::Entry;
use crate::models::loaded::Loaded;
use crate::request::fields::Fields;
use crate::state::App;

/// Handles `GET /v1/models`: lists all models. A client that sends `anthropic-version` gets Anthropic's form.
pub(crate) async fn list(
    State(app): State<App>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let models = app.registry.entries();
    if wants_anthropic(&headers) {
        let named = |entry: &Arc<Entry>| {
            entry.names().into_iter().map(|name| (name, entry.created)).collect::<Vec<_>>()
        };
        let models: Vec<(String, u64)> = models.iter().flat_map(named).collect();
        return Ok(reply::ok(&models_anthropic::page(&models, &query)?));
    }
    let models: Vec<Value> =
        models.iter().flat_map(|entry| with_adapters(form(&app, entry), entry)).collect();
    Ok(reply::ok(&json!({"object": "list", "data": models})))
}

/// Handles `GET /v1/models/{id}`: describes one model.
pub(crate) async fn one(
    State(app): State<App>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response> {
    let Path(id) = id?;
    let entry = app.registry.find(Some(&id), None)?;
    if wants_anthropic(&headers) {
        let id =
            entry.names().into_iter().find(|name| *name == id).unwrap_or_else(|| entry.source.id.clone());
        return Ok(reply::ok(&models_anthropic::form(&id, entry.created)));
    }
    Ok(reply::ok(&form(&app, &entry)))
}

/// Fails unless clients may load and unload: the server must be reachable by this machine alone or require a key.
pub(crate) fn check_right(app: &App) -> Result<()> {
    if app.options.is_private() || app.keys.are_needed() {
        return Ok(());
    }
    let message = "everybody reaches this server, which has no key; --api-key lets those who know it load and unload models";
    Err(ApiError::forbidden("key_needed", message))
}

/// Loads a model by its name.
pub(crate) async fn load(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    check_right(&app)?;
    let name: String = fields.required("model")?;
    finish_fields(&app, &mut fields)?;
    let entry = app.registry.find(Some(&name), None)?;
    app.registry.load(&entry).await?;
    Ok(reply::ok(&json!({"success": true})))
}

/// Loads a model by a path inside the models' folder, or by its name, in Akunu's form.
pub(crate) async fn load_path(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    check_right(&app)?;
    let path: Option<String> = fields.optional("path")?;
    let id: Option<String> = fields.optional("id")?;
    for name in ["max_context", "backend"] {
        fields.refuse(name, "models are loaded with the server's own options")?;
    }
    let (entry, is_new) = if let Some(path) = path {
        app.registry.add_path(&path, id)?
    } else {
        let name: Option<String> = fields.optional("model")?;
        (app.registry.find(Some(&name.ok_or_else(|| fields.missing("path"))?), None)?, false)
    };
    finish_fields(&app, &mut fields)?;
    let outcome = app.registry.load(&entry).await;
    if outcome.is_err() && is_new {
        // A name that was never served would change what others mean.
        app.registry.remove(&entry);
    }
    outcome?;
    Ok(reply::ok(&json!({"id": entry.source.id, "object": "model", "status": "loaded", "success": true})))
}

/// Unloads a model. Its running requests are completed.
pub(crate) async fn unload(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    check_right(&app)?;
    let name: String = fields.required("model")?;
    finish_fields(&app, &mut fields)?;
    let entry = app.registry.find(Some(&name), None)?;
    app.registry.unload(&entry);
    Ok(reply::ok(&json!({"success": true, "id": entry.source.id, "object": "model", "status": "unloaded"})))
}

/// Lists a model, then each of its adapters as `model:adapter`.
fn with_adapters(form: Value, entry: &Entry) -> Vec<Value> {
    let mut forms = vec![form];
    if let Some(Loaded::Text(text)) = entry.loaded() {
        for info in text.model.adapters() {
            let mut adapted = forms[0].clone();
            adapted["id"] = format!("{}:{}", entry.source.id, info.name).into();
            adapted["parent"] = entry.source.id.as_str().into();
            forms.push(adapted);
        }
    }
    forms
}

fn form(app: &App, entry: &Entry) -> Value {
    let meta = match entry.loaded() {
        Some(loaded) => {
            let info = loaded.info();
            json!({
                "n_vocab": loaded.vocab_size(),
                "n_ctx": loaded.context(),
                "n_ctx_train": info.context_length,
                "n_embd": info.hidden_size,
                "n_params": info.parameters,
                "size": info.size_bytes,
                "architecture": info.architecture,
            })
        }
        None => json!({"size": entry.size_bytes}),
    };
    let mut status = json!({"value": entry.status()});
    if let Some(failure) = entry.failure() {
        status["error"] = failure.into();
    }
    let mut form = json!({
        "id": entry.source.id,
        "object": "model",
        "created": entry.created,
        "owned_by": "brasa",
        "kind": entry.kind().map(ModelKind::name),
        "meta": meta,
        "status": status,
    });
    if app.options.models.iter().any(|source| source.id == entry.source.id) {
        form["tags"] = app.options.tags.as_slice().into();
    }
    if app.options.models.first().is_some_and(|first| first.id == entry.source.id) {
        form["aliases"] = app.options.aliases.as_slice().into();
    }
    form
}
