//! `/lora-adapters`, and loading and unloading adapters while the server runs, in vLLM's form.

use axum::extract::{Request, State};
use axum::response::Response;
use brasa::{AdapterSource, Error};
use serde_json::json;

use crate::api::finish_fields;
use crate::api::models::check_right;
use crate::http::error::{ApiError, Result};
use crate::http::pool::{self, Lane};
use crate::http::reply;
use crate::models::adapter_files;
use crate::models::entry::AdapterChange;
use crate::request::adapters::Scaled;
use crate::request::body::read_bounded;
use crate::request::fields::Fields;
use crate::state::App;

/// True if the server has adapters or clients may load some.
fn has_adapters(app: &App) -> bool {
    !app.options.load.adapters.is_empty() || app.options.lora_dir.is_some()
}

/// Handles `GET /lora-adapters`: lists the loaded adapters, and the scales of requests that choose none.
pub(crate) async fn list(State(app): State<App>) -> Result<Response> {
    if !has_adapters(&app) {
        return Ok(reply::ok(&json!([])));
    }
    let loaded = app.registry.acquire_text(None).await?;
    Ok(reply::ok(&app.adapters.list(&loaded.model)))
}

/// Handles `POST /lora-adapters`: sets the scales of requests that choose none.
pub(crate) async fn set(State(app): State<App>, request: Request) -> Result<Response> {
    check_right(&app)?;
    if !has_adapters(&app) {
        return Err(ApiError::not_implemented("this server has no adapters"));
    }
    let mut account = app.budget.account();
    let (most, patience) = (app.options.max_body_bytes, app.options.client_timeout);
    let bytes = read_bounded(request, most, patience, &mut account).await?;
    let scales: Vec<Scaled> = serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::invalid(format!("the body: {error}, expected a list of `id` and `scale`"))
    })?;
    let loaded = app.registry.acquire_text(None).await?;
    app.adapters.set(&loaded.model, &scales.iter().map(Scaled::pair).collect::<Vec<_>>())?;
    Ok(reply::ok(&json!({"success": true})))
}

/// Loads an adapter from the adapters' folder under a name. It replaces an adapter of the same name.
pub(crate) async fn load(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    check_right(&app)?;
    check_allowed(&app)?;
    let name: String = fields.required("lora_name")?;
    let path: String = fields.required("lora_path")?;
    let scale = fields.number("scale")?.unwrap_or(1.0);
    let in_place = fields.switch("load_inplace")?;
    let model: Option<String> = fields.optional("model")?;
    let path = adapter_files::path(app.options.lora_dir.as_deref(), &path)?;
    finish_fields(&app, &mut fields)?;
    let loaded = app.registry.acquire_text(model.as_deref()).await?;
    let registry = app.registry.clone();
    pool::blocking(Lane::Waits, move || {
        let _task = loaded.presence.keep_busy();
        if in_place == Some(false) && loaded.model.adapters().iter().any(|info| info.name == name) {
            let message = format!("the adapter `{name}` is loaded already, and `load_inplace` is false");
            return Err(ApiError::field("lora_name", message));
        }
        let source = AdapterSource { path, scale };
        let info = loaded.model.load_adapter_as(&name, &source).map_err(|error| match error {
            Error::Format(error) => ApiError::field("lora_path", error.to_string()),
            error @ Error::Adapter { .. } => ApiError::field("lora_path", error.to_string()),
            other => other.into(),
        })?;
        registry.remember(loaded.id(), AdapterChange { name, source: Some(source) });
        Ok(reply::ok(&json!({
            "success": true,
            "id": info.id,
            "name": info.name,
            "model": format!("{}:{}", loaded.id(), info.name),
            "layers": info.layers,
            "rank": info.rank,
        })))
    })
    .await
}

/// Unloads an adapter by its name. Running requests keep it to their end.
pub(crate) async fn unload(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    check_right(&app)?;
    check_allowed(&app)?;
    let name: String = fields.required("lora_name")?;
    let model: Option<String> = fields.optional("model")?;
    finish_fields(&app, &mut fields)?;
    let loaded = app.registry.acquire_text(model.as_deref()).await?;
    let registry = app.registry.clone();
    pool::blocking(Lane::Waits, move || {
        let id = loaded.model.adapters().into_iter().find(|info| info.name == name).map(|info| info.id);
        let id = id.ok_or_else(|| {
            let message = format!("`{}` has no adapter `{name}`; GET /lora-adapters lists them", loaded.id());
            ApiError::not_found("adapter_not_found", message).with_param("lora_name")
        })?;
        loaded.model.unload_adapter(id)?;
        registry.remember(loaded.id(), AdapterChange { name: name.clone(), source: None });
        Ok(reply::ok(&json!({"success": true, "id": id, "name": name})))
    })
    .await
}

fn check_allowed(app: &App) -> Result<()> {
    if app.options.lora_dir.is_some() {
        return Ok(());
    }
    let message =
        "this server loads no adapters while it runs; --lora-dir names a folder that they may come from";
    Err(ApiError::forbidden("adapters_not_allowed", message))
}
