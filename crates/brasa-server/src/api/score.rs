//! `/score`: how well one text answers another, for pairs of texts, in vLLM's form.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::RerankOptions;
use serde_json::{Value, json};

use crate::answer::generate::{blocking, in_time};
use crate::api::finish_fields;
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::{ids, reply};
use crate::request::adapters;
use crate::request::fields::{Fields, kind};
use crate::state::App;

/// Most pairs of one request.
const MOST_PAIRS: usize = 2048;

/// The field names of the two lists, oldest first.
const NAMES: [[&str; 2]; 3] = [["text_1", "text_2"], ["data_1", "data_2"], ["queries", "documents"]];

/// Handles `/score`: scores pairs of one text with many, or of two lists of equal length.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let (loaded, request) = adapters::acquire_reader(&app, &mut fields).await?;
    let [first, second] =
        NAMES.into_iter().find(|[first, _]| fields.peek(first).is_some()).unwrap_or(NAMES[0]);
    let queries = texts(&mut fields, first)?;
    let documents = texts(&mut fields, second)?;
    if queries.len() != 1 && queries.len() != documents.len() {
        let message = format!(
            "`{first}` has {} texts and `{second}` {}: expected one text, or lists of one length",
            queries.len(),
            documents.len()
        );
        return Err(ApiError::field(first, message));
    }
    let options = RerankOptions {
        instruction: fields.optional("instruction")?,
        raw: fields.switch("raw_scores")?.unwrap_or(false),
        truncate: fields.switch("truncate")?.unwrap_or(false),
        request,
    };
    finish_fields(&app, &mut fields)?;
    let id = loaded.presence().id.as_str();
    record.set("model", id);
    let _busy = loaded.presence().keep_busy();
    let (mut scores, mut tokens) = (Vec::with_capacity(documents.len()), 0);
    // The documents of one query are scored together.
    let each = if queries.len() == 1 { documents.len() } else { 1 };
    for (query, documents) in queries.into_iter().zip(documents.chunks(each)) {
        let (reranker, documents, options) = (loaded.reranker()?, documents.to_vec(), options.clone());
        let mut asked = blocking(move || Ok(reranker.rerank(&query, &documents, &options)?)).await?;
        tokens += asked.tokens();
        scores.extend(in_time(&app, loaded.presence(), |context| asked.poll_next(context)).await?);
    }
    record.set("prompt_tokens", tokens);
    let form = |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    Ok(reply::ok(&json!({
        "id": ids::name("score-"),
        "object": "list",
        "created": ids::unix_seconds(),
        "model": id,
        "data": scores.iter().enumerate().map(form).collect::<Vec<_>>(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// Reads a text or a list of texts.
fn texts(fields: &mut Fields, name: &str) -> Result<Vec<String>> {
    let wrong =
        |what: &str| ApiError::field(name, format!("`{name}` is {what}, expected a text or a list of texts"));
    match fields.value(name).ok_or_else(|| fields.missing(name))? {
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) if items.is_empty() => Err(wrong("an empty list")),
        Value::Array(items) if items.len() > MOST_PAIRS => {
            let message = format!("`{name}` has {} texts, at most {MOST_PAIRS} are possible", items.len());
            Err(ApiError::field(name, message))
        }
        Value::Array(items) => {
            let text = |item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong(&format!("a list with {}", kind(&other)))),
            };
            items.into_iter().map(text).collect()
        }
        other => Err(wrong(kind(&other))),
    }
}
