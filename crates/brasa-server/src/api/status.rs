//! Status routes: `/health`, `/props`, `/slots`, `/metrics` and others about the server itself.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use brasa::ModelKind;
use serde_json::{Value, json};

use crate::api::native::settings;
use crate::http::error::{ApiError, Result};
use crate::http::{ids, reply};
use crate::metrics::Now;
use crate::models::entry::Entry;
use crate::models::loaded::Loaded;
use crate::request::defaults;
use crate::state::App;

/// Handles `/health`: answers whether the server is ready.
pub(crate) async fn health(State(app): State<App>) -> Result<Response> {
    if !app.lifecycle.is_ready() {
        return Err(ApiError::unavailable("loading_model", "the model is being loaded"));
    }
    let mut models = 0;
    for (place, entry) in app.registry.entries().into_iter().enumerate() {
        // A model of the start that was lost and does not come back; others may fail without harm.
        if place < app.options.models.len()
            && let Some(failure) = entry.failure()
        {
            return Err(ApiError::unavailable("model_not_loaded", failure));
        }
        if let Some(loaded) = entry.loaded() {
            models += 1;
            if let Some(reason) = loaded.presence().failure() {
                let message = format!("{} is being loaded anew: {reason}", loaded.presence().id);
                return Err(ApiError::unavailable("device_lost", message));
            }
            if !loaded.is_alive(app.options.engine_silence).await {
                let message = format!("the engine of {} does not answer", loaded.presence().id);
                return Err(ApiError::unavailable("engine_stalled", message));
            }
        }
    }
    Ok(reply::ok(&json!({"status": "ok", "models": models})))
}

/// Handles `/version`, in vLLM's form.
pub(crate) async fn version() -> Response {
    reply::ok(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Handles `/load`: the number of requests that run or wait, in vLLM's form.
pub(crate) async fn load(State(app): State<App>) -> Response {
    let running = |entry: Arc<Entry>| match entry.loaded() {
        Some(Loaded::Text(text)) => text.running().len(),
        _ => 0,
    };
    let count: usize = app.registry.entries().into_iter().map(running).sum();
    reply::ok(&json!({"server_load": count}))
}

/// Handles `/props`: properties of the server and of a model, the one that `model` names or the default one.
pub(crate) async fn props(
    State(app): State<App>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let entry = app.registry.find(query.get("model").map(String::as_str), None)?;
    let mut props = json!({
        "total_slots": match entry.loaded() {
            Some(Loaded::Text(loaded)) => Some(loaded.slots),
            _ => app.options.load.max_sequences,
        },
        "model_alias": entry.source.id,
        "model_path": entry.path(),
        "modalities": {"vision": false, "audio": false},
        "endpoint_slots": app.options.slots,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "build_info": ids::FINGERPRINT,
        "is_sleeping": entry.status() == "sleeping",
    });
    if let Some(loaded) = entry.loaded() {
        let tokenizer = loaded.tokenizer();
        let special = tokenizer.special_tokens();
        let piece = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id).ok()).unwrap_or_default();
        props["bos_token"] = piece(special.bos).into();
        props["eos_token"] = piece(special.eos).into();
        props["memory_bytes"] = loaded.now().memory.json();
        props["device"] = loaded.device().into();
        props["kind"] = loaded.kind().name().into();
        props["modalities"]["audio"] = (loaded.kind() == ModelKind::Speech).into();
        props["default_generation_settings"] = json!({"n_ctx": loaded.context()});
    }
    if let Some(Loaded::Text(loaded)) = entry.loaded() {
        let model = &loaded.model;
        let options = defaults::options(&app, model)?;
        props["default_generation_settings"] =
            json!({"n_ctx": model.context(), "params": settings(model, &options, false)});
        props["chat_template"] = model.tokenizer().chat_template_source().unwrap_or_default().into();
    }
    Ok(reply::ok(&props))
}

/// Refuses to change properties.
pub(crate) async fn set_props() -> ApiError {
    ApiError::not_implemented("properties cannot be changed while the server runs")
}

/// Handles `/slots`: the slots of a model, with their running requests.
pub(crate) async fn slots(
    State(app): State<App>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    if !app.options.slots {
        return Err(ApiError::not_implemented("this server does not show its slots"));
    }
    let entry = app.registry.find(query.get("model").map(String::as_str), None)?;
    let Some(Loaded::Text(loaded)) = entry.loaded() else { return Ok(reply::ok(&json!([]))) };
    let running = loaded.running();
    if query.get("fail_on_no_slot").is_some_and(|value| value != "0") && running.len() >= loaded.slots {
        return Err(ApiError::unavailable("no_slot_available", "no slot is free"));
    }
    let slot = |id: usize| match running.iter().find(|running| running.slot == Some(id)) {
        Some(running) => json!({
            "id": id,
            "n_ctx": loaded.model.context(),
            "is_processing": true,
            "id_task": running.task,
            "n_prompt_tokens": running.prompt_tokens,
            "params": {"n_predict": running.max_tokens.map_or(json!(-1), |tokens| json!(tokens))},
            "next_token": {
                "n_decoded": running.decoded,
                "n_remain": running.max_tokens.map_or(json!(-1), |tokens| json!(tokens.saturating_sub(running.decoded))),
            },
        }),
        None => json!({"id": id, "n_ctx": loaded.model.context(), "is_processing": false}),
    };
    Ok(reply::ok(&(0..loaded.slots).map(slot).collect()))
}

/// Handles `/metrics`: counters for Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let loaded = app.registry.entries().into_iter().filter_map(|entry| entry.loaded());
    let now: Vec<Now> = loaded.map(|loaded| loaded.now()).collect();
    let text = app.metrics.prometheus(&now);
    reply::with_type(StatusCode::OK, "text/plain; version=0.0.4", text)
}

/// Handles `/v1/metrics`: counters as JSON, in Akunu's form.
pub(crate) async fn metrics_json(State(app): State<App>) -> Response {
    reply::ok(&app.metrics.json(app.started.elapsed()))
}

/// The answer for the root of a server without the page: the server's name and version.
pub(crate) fn root() -> Response {
    let mut response = reply::ok(&Value::Object(serde_json::Map::from_iter([
        ("name".to_owned(), json!("brasa")),
        ("version".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
    ])));
    response.headers_mut().insert(header::CACHE_CONTROL, axum::http::HeaderValue::from_static("no-store"));
    response
}
