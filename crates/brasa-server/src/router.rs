//! Routes paths to handlers, through the layers that every request passes.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tower_http::catch_panic::CatchPanicLayer;

use crate::api::page;
use crate::api::{
    adapters, audio, chat, completions, embeddings, messages, models, native, rerank, responses, score,
    slots, status, text,
};
use crate::http::error::ApiError;
use crate::http::{auth, cors, hosts, leftover, limits, log, pool};
use crate::state::App;

/// The routes and layers of a server.
pub(crate) fn router(app: &App) -> Router {
    let layer = |router: Router<App>| {
        // The last layer is the first that a request meets.
        router
            .layer(CatchPanicLayer::custom(panicked))
            .layer(from_fn_with_state(app.clone(), pool::run))
            .layer(from_fn_with_state(Arc::clone(&app.keys), auth::check))
            .layer(from_fn_with_state(Arc::clone(&app.limiter), limits::check))
            .layer(from_fn_with_state(app.clone(), cors::check))
            .layer(from_fn_with_state(Arc::clone(&app.hosts), hosts::check))
            .layer(from_fn(leftover::check))
            .layer(from_fn_with_state(app.clone(), log::watch))
    };
    let router = native_routes(openai_routes(Router::new()))
        .route("/", get(page::serve))
        .route("/index.html", get(page::serve))
        .route("/assets/{*path}", get(page::serve))
        .route("/health", get(status::health))
        .route("/v1/health", get(status::health))
        .route("/ping", get(status::health).post(status::health))
        .route("/version", get(status::version))
        .route("/load", get(status::load))
        .route("/metrics", get(status::metrics))
        .route("/v1/metrics", get(status::metrics_json))
        .route("/models", get(models::list))
        .route("/v1/models", get(models::list))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/v1/models/load", post(models::load_path))
        .route("/v1/models/unload", post(models::unload))
        .route("/v1/models/{*id}", get(models::one))
        .route("/lora-adapters", get(adapters::list).post(adapters::set))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method);
    let router = TowerToHyperService::new(layer(router).with_state(app.clone()));
    let prefix = app.options.api_prefix.clone();
    // Before a path is looked up, and before anybody asks whether it needs a key.
    Router::new().fallback(move |request: Request| {
        let (router, prefix) = (router.clone(), prefix.clone());
        async move {
            match below(request, &prefix) {
                Ok(mut request) => {
                    tidy(request.uri_mut());
                    router.call(request).await.into_response()
                }
                Err(answer) => answer,
            }
        }
    })
}

/// The request with `prefix` removed from its path; an error answer for another path.
#[allow(clippy::result_large_err, reason = "both are moved once a request")]
fn below(mut request: Request, prefix: &str) -> Result<Request, Response> {
    let path = request.uri().path();
    match path.strip_prefix(prefix) {
        _ if prefix.is_empty() => return Ok(request),
        // The page names its files from its own folder on.
        Some("") => return Err(Redirect::permanent(&format!("{prefix}/")).into_response()),
        Some(rest) if rest.starts_with('/') => {}
        _ => return Err(nothing_at(path).into_response()),
    }
    let whole = request.uri().path_and_query().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    // What follows a slash of a path is a path.
    parts.path_and_query = whole.strip_prefix(prefix).and_then(|path| path.parse().ok());
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    Ok(request)
}

/// Adds the routes of OpenAI's and Anthropic's forms, with and without `/v1`.
fn openai_routes(router: Router<App>) -> Router<App> {
    let router = router
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::create));
    ["/v1", ""].into_iter().fold(router, |router, version| {
        let route = |path: &str| format!("{version}{path}");
        router
            .route(&route("/chat/completions"), post(chat::complete))
            .route(&route("/chat/completions/input_tokens"), post(chat::count))
            .route(&route("/responses"), post(responses::create))
            .route(&route("/responses/input_tokens"), post(responses::count))
            .route(&route("/responses/compact"), post(responses::compact))
            .route(&route("/audio/transcriptions"), post(audio::transcribe))
            .route(&route("/audio/translations"), post(audio::translate))
    })
}

/// Adds the routes of llama.cpp's and vLLM's own forms.
fn native_routes(router: Router<App>) -> Router<App> {
    let router = router
        .route("/completion", post(native::complete))
        .route("/completions", post(native::complete))
        .route("/infill", post(native::infill))
        .route("/embedding", post(embeddings::native))
        .route("/embeddings", post(embeddings::native))
        .route("/apply-template", post(text::apply_template))
        .route("/tokenizer_info", get(text::info))
        .route("/v2/rerank", post(rerank::create))
        .route("/props", get(status::props).post(status::set_props))
        .route("/slots", get(status::slots))
        .route("/slots/{id}", post(slots::change));
    ["/v1", ""].into_iter().fold(router, |router, version| {
        let route = |path: &str| format!("{version}{path}");
        router
            .route(&route("/rerank"), post(rerank::create))
            .route(&route("/reranking"), post(rerank::create))
            .route(&route("/score"), post(score::create))
            .route(&route("/tokenize"), post(text::tokenize))
            .route(&route("/detokenize"), post(text::detokenize))
    })
}

/// Removes empty segments from a path, so that `//v1/models/` becomes `/v1/models`: some clients join address and path
/// carelessly.
fn tidy(uri: &mut Uri) {
    let path = uri.path();
    if !path.contains("//") && (path.len() == 1 || !path.ends_with('/')) {
        return;
    }
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let tidied = format!("/{}{query}", segments.join("/"));
    let mut parts = std::mem::take(uri).into_parts();
    // A path whose characters were possible before is possible without some of them.
    parts.path_and_query = tidied.parse().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

async fn unknown(request: Request) -> ApiError {
    nothing_at(request.uri().path())
}

fn nothing_at(path: &str) -> ApiError {
    let path: String = path.chars().take(128).collect();
    ApiError::not_found("unknown_path", format!("there is nothing at {path}"))
}

async fn wrong_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(128).collect();
    ApiError::wrong_method(request.method().as_str(), &path)
}

/// Converts a handler's panic to an error answer. The panic hook has already reported the place.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the request failed by a fault of the server").into_response()
}
