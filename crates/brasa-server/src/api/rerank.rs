//! `/v1/rerank`: how well documents answer a query, best first.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use brasa::RerankOptions;
use serde_json::{Value, json};

use crate::answer::generate::{blocking, in_time};
use crate::api::finish_fields;
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::reply;
use crate::request::adapters;
use crate::request::fields::{Fields, kind};
use crate::state::App;

/// Most documents of one request.
const MOST_DOCUMENTS: usize = 2048;

/// Handles `/v1/rerank`, in the form of Jina and Cohere (`documents`) and of Hugging Face (`texts`).
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let (loaded, request) = adapters::acquire_reader(&app, &mut fields).await?;
    let query: String = fields.required("query")?;
    let is_plain = fields.peek("documents").is_none() && fields.peek("texts").is_some();
    let field = if is_plain { "texts" } else { "documents" };
    let documents = documents(field, fields.value(field).ok_or_else(|| fields.missing("documents"))?)?;
    let most = fields.count("top_n", 0, usize::MAX)?.unwrap_or(documents.len());
    let with_documents =
        fields.switch(if is_plain { "return_text" } else { "return_documents" })?.unwrap_or(false);
    let instruction = fields.optional::<String>("instruction")?;
    let raw = fields.switch("raw_scores")?.unwrap_or(false);
    let truncate = fields.switch("truncate")?.unwrap_or(false);
    finish_fields(&app, &mut fields)?;
    let id = loaded.presence().id.as_str();
    record.set("model", id);
    let _busy = loaded.presence().keep_busy();
    let options = RerankOptions { instruction, raw, truncate, request };
    let (reranker, asked) = (loaded.reranker()?, documents.clone());
    let mut scores = blocking(move || Ok(reranker.rerank(&query, &asked, &options)?)).await?;
    let tokens = scores.tokens();
    record.set("prompt_tokens", tokens);
    let scores = in_time(&app, loaded.presence(), |context| scores.poll_next(context)).await?;
    let mut scores: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    // Documents of one score stay in their order.
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let results = scores.iter().take(most).map(|&(index, score)| {
        if is_plain {
            let mut result = json!({"index": index, "score": score});
            if with_documents {
                result["text"] = documents[index].as_str().into();
            }
            return result;
        }
        let mut result = json!({"index": index, "relevance_score": score});
        if with_documents {
            result["document"] = json!({"text": documents[index]});
        }
        result
    });
    let results: Vec<Value> = results.collect();
    if is_plain {
        return Ok(reply::ok(&results.into()));
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(reply::ok(&json!({"object": "list", "model": id, "usage": usage, "results": results})))
}

/// Reads documents: texts, or objects with a `text`.
fn documents(field: &str, value: Value) -> Result<Vec<String>> {
    let wrong = |what: &str| {
        let message = format!("`{field}` is {what}, expected a list of texts, or of objects with a `text`");
        ApiError::field(field, message)
    };
    let items = match value {
        Value::Array(items) if items.is_empty() => return Err(wrong("an empty list")),
        Value::Array(items) if items.len() > MOST_DOCUMENTS => {
            let message =
                format!("`{field}` has {} texts, at most {MOST_DOCUMENTS} are possible", items.len());
            return Err(ApiError::field(field, message));
        }
        Value::Array(items) => items,
        other => return Err(wrong(kind(&other))),
    };
    let text = |item| match item {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(wrong("a list with an object without a text")),
        },
        other => Err(wrong(&format!("a list with {}", kind(&other)))),
    };
    items.into_iter().map(text).collect()
}
