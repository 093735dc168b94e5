//! One file per family of endpoints.

pub(crate) mod adapters;
pub(crate) mod audio;
pub(crate) mod chat;
pub(crate) mod completions;
mod documents;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod models_anthropic;
pub(crate) mod native;
mod native_end;
pub(crate) mod page;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod score;
pub(crate) mod slots;
pub(crate) mod status;
pub(crate) mod text;

use serde_json::json;

use crate::http::error::Result;
use crate::request::fields::Fields;
use crate::state::App;

/// Counts the unknown fields of a request, logs each name once, and drops their values.
///
/// # Errors
///
/// 400 for a known field that the handler did not read and that would change the answer.
pub(crate) fn finish_fields(app: &App, fields: &mut Fields) -> Result<()> {
    fields.check_left()?;
    count_unknown(app, fields);
    Ok(())
}

/// Like [`finish_fields`], for requests without a generated answer: no unread field is an error.
pub(crate) fn count_unknown(app: &App, fields: &mut Fields) {
    for name in fields.end() {
        app.metrics.saw_unknown_field();
        if app.unknown_fields.is_first(&name) {
            (app.options.log)(&json!({"unknown_field": name}).to_string());
        }
    }
}
