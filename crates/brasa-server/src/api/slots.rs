//! `/slots/{id}`: saves the text of a slot with its keys and values to a file, restores it, and erases it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use brasa::engine::EngineError;
use brasa::{RequestOptions, SessionFileError};
use serde_json::json;

use crate::api::finish_fields;
use crate::http::error::{ApiError, Result};
use crate::http::pool::{self, Lane};
use crate::http::reply;
use crate::models::loaded_text::LoadedText;
use crate::models::slot_files;
use crate::models::slots::SlotText;
use crate::request::fields::Fields;
use crate::state::App;

/// The slot that a request names by `id_slot`; `None` for any. If slots are not saved, all slots are alike and the field has no
/// effect.
///
/// # Errors
///
/// 400 for a number that is no slot of the model.
pub(crate) fn named(fields: &mut Fields, app: &App, loaded: &LoadedText) -> Result<Option<usize>> {
    if app.options.slot_save_path.is_none() {
        fields.value("id_slot");
        return Ok(None);
    }
    let is_one = |number| number == -1 || usize::try_from(number).is_ok_and(|slot| slot < loaded.slots);
    let range = format!("0 to {}, or -1 for any slot", loaded.slots - 1);
    let found = fields.whole("id_slot", is_one, &range)?;
    Ok(found.and_then(|slot| usize::try_from(slot).ok()))
}

/// Handles `POST /slots/{id}`: saves, restores or erases the text of a slot.
pub(crate) async fn change(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    Query(query): Query<HashMap<String, String>>,
    fields: Result<Fields>,
) -> Result<Response> {
    let Path(id) = id?;
    let action = query.get("action").map(String::as_str);
    if !matches!(action, Some("save" | "restore" | "erase")) {
        return Err(ApiError::field("action", "`action` has to be save, restore or erase"));
    }
    let Some(folder) = app.options.slot_save_path.clone() else {
        let message = "this server keeps no slots in files; --slot-save-path names a folder for them";
        return Err(ApiError::not_implemented(message).with_param("action"));
    };
    let loaded = app.registry.acquire_text(query.get("model").map(String::as_str)).await?;
    let place: usize = id.parse().ok().filter(|&place| place < loaded.slots).ok_or_else(|| {
        let message = format!("`id_slot` has to be a number from 0 to {}", loaded.slots - 1);
        ApiError::field("id_slot", message)
    })?;
    if action == Some("erase") {
        return pool::blocking(Lane::Waits, move || erase(&loaded, place)).await;
    }
    let mut fields = fields?;
    let name: String = fields.required("filename")?;
    finish_fields(&app, &mut fields)?;
    let saves = action == Some("save");
    let deadline = app.deadline();
    let work = move || {
        if saves {
            save(&loaded, place, (&folder, &name), deadline)
        } else {
            restore(&loaded, place, &folder, &name)
        }
    };
    pool::blocking(Lane::Waits, work).await
}

fn save(
    loaded: &Arc<LoadedText>,
    place: usize,
    (folder, name): (&FilePath, &str),
    deadline: Option<Instant>,
) -> Result<Response> {
    let began = Instant::now();
    let path = slot_files::path(folder, name)?;
    let SlotText { mut tokens, scope } = loaded.places.text(place).ok_or_else(busy)?;
    let _task = loaded.presence.keep_busy();
    // A text that slid is longer than its context.
    tokens.truncate(loaded.model.context());
    let session = loaded.model.session();
    if !tokens.is_empty() {
        // What the cache has given up since is computed again.
        let request = RequestOptions {
            cache_scope: scope,
            cache_prompt: Some(true),
            deadline,
            ..RequestOptions::default()
        };
        session.warm_prompt(tokens, &request)?;
    }
    let saved = session.save(&path).map_err(file_error)?;
    Ok(reply::ok(&json!({
        "id_slot": place,
        "filename": name,
        "n_saved": saved.tokens,
        "n_written": saved.bytes,
        "timings": {"save_ms": milliseconds(began)},
    })))
}

fn restore(loaded: &Arc<LoadedText>, place: usize, folder: &FilePath, name: &str) -> Result<Response> {
    let began = Instant::now();
    if loaded.model.engine().config().prefix_bytes == 0 {
        let message = "this server keeps no texts beside running requests; --cache-ram makes room for them";
        return Err(ApiError::not_implemented(message).with_param("action"));
    }
    let path = slot_files::path(folder, name)?;
    let (file, bytes) = slot_files::open(&path, name)?;
    loaded.places.text(place).ok_or_else(busy)?;
    let _task = loaded.presence.keep_busy();
    let mut file = std::io::BufReader::new(file);
    let session = loaded.model.read_session(&mut file, |_| ControlFlow::Continue(())).map_err(file_error)?;
    let text = SlotText { tokens: session.tokens()?, scope: session.scope()? };
    let count = text.tokens.len();
    loaded.places.replace(place, text).ok_or_else(busy)?;
    // The end of the session leaves its text to the requests that begin with it.
    drop(session);
    Ok(reply::ok(&json!({
        "id_slot": place,
        "filename": name,
        "n_restored": count,
        "n_read": bytes,
        "timings": {"restore_ms": milliseconds(began)},
    })))
}

fn erase(loaded: &Arc<LoadedText>, place: usize) -> Result<Response> {
    let SlotText { tokens, scope } = loaded.places.erase(place).ok_or_else(busy)?;
    let count = tokens.len();
    loaded.model.engine().forget(scope, tokens)?;
    Ok(reply::ok(&json!({"id_slot": place, "n_erased": count})))
}

fn busy() -> ApiError {
    ApiError::unavailable("slot_busy", "a request runs in this slot")
}

/// Converts an error of a slot's file. An unusable file is an error of the request.
fn file_error(error: brasa::Error) -> ApiError {
    match error {
        brasa::Error::SessionFile { error: SessionFileError::Io(error), .. } => {
            ApiError::internal(error.to_string())
        }
        brasa::Error::SessionFile { error, .. } => ApiError::field("filename", error.to_string()),
        brasa::Error::Engine(error @ EngineError::PromptTooLong { .. }) => {
            ApiError::field("filename", error.to_string())
        }
        other => other.into(),
    }
}

fn milliseconds(began: Instant) -> f64 {
    (began.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
