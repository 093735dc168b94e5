//! Paths, and the layers that every request passes.

use std::any::Any;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::api::{
    adapters, audio, chat, completions, embeddings, messages, models, native, rerank, responses, slots,
    status, text,
};
use crate::error::ApiError;
use crate::state::App;
use crate::{auth, cors, hosts, leftover, limits, log, page, pool};

/// The service for all connections.
pub(crate) fn router(app: &App) -> Router {
    let layer = |router: Router<App>| {
        // The last layer is the first that a request meets.
        router
            .layer(CatchPanicLayer::custom(panicked))
            .layer(from_fn_with_state(app.clone(), pool::run))
            .layer(from_fn_with_state(app.clone(), auth::check))
            .layer(from_fn_with_state(app.clone(), limits::check))
            .layer(from_fn_with_state(app.clone(), cors::check))
            .layer(from_fn_with_state(app.clone(), hosts::check))
            .layer(from_fn(leftover::check))
            .layer(from_fn_with_state(app.clone(), log::watch))
    };
    let router = Router::new()
        .route("/", get(page::serve))
        .route("/index.html", get(page::serve))
        .route("/assets/{*path}", get(page::serve))
        .route("/health", get(status::health))
        .route("/v1/health", get(status::health))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/chat/completions", post(chat::complete))
        .route("/v1/chat/completions/input_tokens", post(chat::count))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/completions", post(completions::complete))
        .route("/completion", post(native::complete))
        .route("/completions", post(native::complete))
        .route("/infill", post(native::infill))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/embedding", post(embeddings::native))
        .route("/embeddings", post(embeddings::native))
        .route("/v1/rerank", post(rerank::create))
        .route("/v1/reranking", post(rerank::create))
        .route("/rerank", post(rerank::create))
        .route("/reranking", post(rerank::create))
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .route("/tokenize", post(text::tokenize))
        .route("/v1/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/apply-template", post(text::apply_template))
        .route("/models", get(models::list))
        .route("/v1/models", get(models::list))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/v1/models/load", post(models::load_path))
        .route("/v1/models/unload", post(models::unload))
        .route("/v1/models/{*id}", get(models::one))
        .route("/props", get(status::props).post(status::set_props))
        .route("/slots", get(status::slots))
        .route("/slots/{id}", post(slots::change))
        .route("/lora-adapters", get(adapters::list).post(adapters::set))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/metrics", get(status::metrics))
        .route("/v1/metrics", get(status::metrics_json))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method);
    layer(router).with_state(app.clone())
}

async fn unknown(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(128).collect();
    ApiError::not_found("unknown_path", format!("there is nothing at {path}"))
}

async fn wrong_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(128).collect();
    ApiError::wrong_method(request.method().as_str(), &path)
}

/// A handler's panic ends its own request alone; the panic hook has reported where it was.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the request failed by a fault of the server").into_response()
}
