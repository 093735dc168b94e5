//! Errors in the form that clients get.

use axum::extract::rejection::PathRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use brasa::audio::AudioError;
use brasa::engine::EngineError;
use brasa::grammar::GrammarError;
use brasa::sampling::SamplingError;
use brasa::speech::SpeechError;
use brasa::tokenizer::TokenizerError;
use serde_json::{Value, json};

use crate::http::reply;

/// The result of a handler.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// A refusal or a failure of one request, in the terms of OpenAI's API: type, message, parameter and code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
    pub param: Option<String>,
    pub code: &'static str,
    /// Seconds after which a client may try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code, retry_after: None }
    }

    /// 400: the request makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "invalid_request", message)
    }

    /// 400: a field has a value of a wrong type or out of range.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { code: "invalid_value", ..Self::invalid(message) }.with_param(param)
    }

    /// 400: a field is known but not supported; `why` is the reason.
    pub fn unsupported(param: &str, why: &str) -> Self {
        Self { code: "unsupported_field", ..Self::invalid(format!("`{param}` is not supported: {why}")) }
            .with_param(param)
    }

    /// 401: the key is missing or wrong.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message)
    }

    /// 403: the server never serves such a request to this caller.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", code, message)
    }

    /// 404: the named thing does not exist.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", code, message)
    }

    /// 501: the server or the model lacks a capability.
    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", "not_supported", message)
    }

    /// 503: the server cannot answer now.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", code, message)
        }
    }

    /// 429: the client sends too many requests. It may try again after `retry_after` seconds.
    pub fn too_many(message: impl Into<String>, retry_after: u32) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", message)
        }
    }

    /// 413: the body is larger than `limit_bytes`.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("the body has more than {limit_bytes} bytes, the most that this server reads");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large", message)
    }

    /// 408: the client sends its request too slowly.
    pub fn too_slow() -> Self {
        let message = "the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "request_timeout", message)
    }

    /// 504: the request has exceeded its time limit.
    pub fn timeout() -> Self {
        let message = "the request has taken the time that it may take";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "timeout", message)
    }

    /// 405: the path does not support the method.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{method} is not possible on {path}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", message)
    }

    /// 500: an internal error of the server.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error", message)
    }

    /// Adds the name of the field at fault.
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// The error as the body of an answer, in OpenAI's form.
    pub fn body(&self) -> Value {
        json!({"error": self.told(self.kind)})
    }

    /// The members that both forms share. A remedy, if there is one, is a member of its own.
    fn told(&self, kind: &str) -> Value {
        let (message, hint) = brasa::split_hint(&self.message);
        let mut told = json!({"type": kind, "message": message, "param": self.param, "code": self.code});
        if let Some(hint) = hint {
            told["hint"] = hint.into();
        }
        told
    }

    /// The error as the body of an answer, in Anthropic's form.
    pub fn anthropic_body(&self, request_id: Option<&str>) -> Value {
        let kind = match self.status.as_u16() {
            400 | 405 | 408 | 501 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        };
        json!({
            "type": "error",
            "error": self.told(kind),
            "request_id": request_id,
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = reply::json(self.status, &self.body());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // A layer above may write the error in another form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<brasa::Error> for ApiError {
    fn from(error: brasa::Error) -> Self {
        match error {
            brasa::Error::Engine(error) => error.into(),
            brasa::Error::Tokenizer(error) => error.into(),
            brasa::Error::Grammar(error) => error.into(),
            brasa::Error::Options(message) => Self::invalid(message),
            error @ brasa::Error::TextTooShort { .. } => Self::invalid(error.to_string()),
            brasa::Error::Audio(error) | brasa::Error::Speech(SpeechError::Audio(error)) => error.into(),
            brasa::Error::Speech(error) => error.into(),
            other => Self::internal(other.to_string()),
        }
    }
}

impl From<AudioError> for ApiError {
    fn from(error: AudioError) -> Self {
        let code =
            if matches!(error, AudioError::TooLong { .. }) { "audio_too_long" } else { "invalid_audio" };
        Self { code, ..Self::field("file", error.to_string()) }
    }
}

impl From<SpeechError> for ApiError {
    fn from(error: SpeechError) -> Self {
        let message = error.to_string();
        match error {
            SpeechError::Language { .. } => Self::field("language", message),
            SpeechError::Options { .. } => Self::invalid(message),
            SpeechError::Grammar { .. } => {
                Self { code: "invalid_grammar", ..Self::field("grammar", message) }
            }
            SpeechError::Audio(error) => error.into(),
            SpeechError::Tokenizer(error) => error.into(),
            SpeechError::Device(error) => EngineError::Device(error).into(),
            _ => Self::internal(message),
        }
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        let message = error.to_string();
        match error {
            TokenizerError::Template { .. } | TokenizerError::TemplateLimit { .. } => {
                Self { code: "chat_template", ..Self::field("messages", message) }
            }
            TokenizerError::Message { field, reason } => {
                let message = format!("`{field}`: {reason}");
                Self::field(&field, message)
            }
            TokenizerError::MissingField { field } => {
                let message = format!("`{field}` is missing");
                Self { code: "missing_field", ..Self::field(&field, message) }
            }
            TokenizerError::NotText { field, reason } => Self::unsupported(&field, &reason),
            TokenizerError::Turns { .. } => Self::field("messages", message),
            TokenizerError::NoTemplate => Self { code: "no_chat_template", ..Self::invalid(message) },
            TokenizerError::UnknownId { .. } => Self::field("tokens", message),
            TokenizerError::Encode { .. } => Self::invalid(message),
            _ => Self::internal(message),
        }
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> Self {
        let message = error.to_string();
        match error {
            GrammarError::Keyword { .. }
            | GrammarError::Unsupported { .. }
            | GrammarError::TooSlow { kind: "JSON schema", .. } => {
                Self { code: "unsupported_schema", ..Self::invalid(message) }
            }
            // A type that there is not is wrong; all else that the parser refuses is beyond what it does.
            GrammarError::Grammar { kind: "JSON schema", what } if !what.starts_with("Invalid type") => {
                Self { code: "unsupported_schema", ..Self::invalid(message) }
            }
            GrammarError::TooLarge { what, .. } if what.ends_with("JSON schema") => {
                Self { code: "unsupported_schema", ..Self::invalid(message) }
            }
            GrammarError::Busy => Self::unavailable("grammars_busy", message),
            GrammarError::NoEnd => Self::not_implemented(message),
            GrammarError::NoThread(_) => Self::internal(message),
            _ => Self { code: "invalid_grammar", ..Self::invalid(message) },
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt | EngineError::UnknownToken { .. } => Self::field("prompt", message),
            // In Anthropic's words, by which clients know that they have to shorten a conversation.
            EngineError::PromptTooLong { tokens, context } => Self {
                code: "context_length_exceeded",
                ..Self::invalid(format!(
                    "prompt is too long: {tokens} tokens > {context} maximum\nhint: shorten it, or ask for a larger context"
                ))
            },
            EngineError::TextTooLong { .. } | EngineError::ContextFull { .. } => {
                Self { code: "context_length_exceeded", ..Self::invalid(message) }
            }
            EngineError::CacheFull { .. } => Self { code: "cache_full", ..Self::invalid(message) },
            EngineError::QueueFull { .. } => Self::unavailable("queue_full", message),
            EngineError::DeadlineExceeded { .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "timeout", message)
            }
            EngineError::Options(message) => Self::invalid(message),
            EngineError::Sampling(
                SamplingError::Parameter { name, .. } | SamplingError::Token { name, .. },
            ) => Self::field(&name.replace([' ', '-'], "_"), message),
            // A grammar beyond the limits of work, found out within its answer.
            EngineError::Sampling(SamplingError::Mask { reason }) if reason.starts_with("JSON schema") => {
                Self { code: "unsupported_schema", ..Self::invalid(message) }
            }
            EngineError::Sampling(SamplingError::Mask { .. }) => {
                Self { code: "invalid_grammar", ..Self::invalid(message) }
            }
            // Logits that are no numbers are the model's fault; what biases and grammars forbid is the request's.
            EngineError::Sampling(SamplingError::NoToken { not_finite: 1.., .. }) => {
                Self { code: "no_token", ..Self::internal(message) }
            }
            EngineError::Sampling(_) => Self { code: "no_token", ..Self::invalid(message) },
            EngineError::SessionBusy => Self::unavailable("slot_busy", message),
            EngineError::Closed => Self::unavailable("engine_closed", message),
            // The model is loaded anew.
            error if error.is_final() => Self::unavailable("device_lost", message),
            EngineError::Device(_) => Self { code: "device_error", ..Self::internal(message) },
            _ => Self::internal(message),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(_: PathRejection) -> Self {
        Self::invalid("the path is no UTF-8")
    }
}

impl From<tokio::task::JoinError> for ApiError {
    fn from(error: tokio::task::JoinError) -> Self {
        // The panic hook has reported where.
        Self::internal(format!("the request failed: {error}"))
    }
}

/// The reason why a server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("{address}: {error}")]
    Bind {
        /// Host and port.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The options would be unsafe or make no sense.
    #[error("{0}")]
    Options(String),
    /// A model of the start cannot be loaded.
    #[error("{id}: {error}")]
    Model {
        /// The model's id.
        id: String,
        /// The reason.
        error: String,
    },
    /// The device of the last usable model was lost for this process. Another process may be able to use it again.
    #[error("the device is lost, and with it the last model: {0}")]
    DeviceLost(String),
    /// The system provides no threads or sockets.
    #[error("{0}")]
    System(#[from] std::io::Error),
}
