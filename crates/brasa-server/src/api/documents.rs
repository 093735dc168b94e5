//! Blocks of Anthropic's messages that hold the text of documents and of search results.

use serde_json::Value;

use crate::http::error::{ApiError, Result};
use crate::request::fields::Fields;

/// Members of a document or a search result that are read or may be ignored.
const KNOWN: &[&str] = &["type", "source", "title", "context", "citations", "content"];

/// The text of a block of the type `document` or `search_result`: its title, its context or source, and its content.
///
/// # Errors
///
/// 400 that names the member, for a source that is not plain text and for requested citations.
pub(crate) fn text_of(body: &Fields, place: &str, block: &Value) -> Result<String> {
    body.see_inside(place, block, KNOWN);
    if block["citations"]["enabled"] == true {
        let why = "the model does not say where it has something from";
        return Err(ApiError::unsupported(&format!("{place}.citations"), why));
    }
    let mut texts = vec![text_at(&format!("{place}.title"), &block["title"])?];
    if block["type"] == "search_result" {
        texts.push(text_at(&format!("{place}.source"), &block["source"])?);
        texts.push(content_of(&format!("{place}.content"), &block["content"])?);
    } else {
        texts.push(text_at(&format!("{place}.context"), &block["context"])?);
        texts.push(source_of(&format!("{place}.source"), &block["source"])?);
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join("\n\n"))
}

fn source_of(place: &str, source: &Value) -> Result<String> {
    match source["type"].as_str() {
        Some("text") => {
            let kind = source["media_type"].as_str().unwrap_or("text/plain");
            if kind != "text/plain" {
                let why = format!("the model takes text/plain, and this is {kind}");
                return Err(ApiError::unsupported(&format!("{place}.media_type"), &why));
            }
            needed(&format!("{place}.data"), &source["data"])
        }
        Some("content") => content_of(&format!("{place}.content"), &source["content"]),
        Some(other) => {
            let why = format!("the model takes plain text, and this source is `{other}`");
            Err(ApiError::unsupported(&format!("{place}.type"), &why))
        }
        None => Err(missing(&format!("{place}.type"))),
    }
}

/// The text of a content: a text, or blocks of text.
fn content_of(place: &str, content: &Value) -> Result<String> {
    let Value::Array(blocks) = content else { return needed(place, content) };
    let text = |(at, block): (usize, &Value)| match block["type"].as_str() {
        Some("text") => needed(&format!("{place}[{at}].text"), &block["text"]),
        Some(other) => {
            let why = format!("the model takes text alone, and this block is `{other}`");
            Err(ApiError::unsupported(&format!("{place}[{at}].type"), &why))
        }
        None => Err(missing(&format!("{place}[{at}].type"))),
    };
    let texts: Vec<String> = blocks.iter().enumerate().map(text).collect::<Result<_>>()?;
    Ok(texts.join("\n"))
}

fn needed(place: &str, value: &Value) -> Result<String> {
    if value.is_null() { Err(missing(place)) } else { text_at(place, value) }
}

/// A value as a text; null is empty.
fn text_at(place: &str, value: &Value) -> Result<String> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        other => {
            let message = format!("`{place}` is {}, expected a text", crate::request::fields::kind(other));
            Err(ApiError::field(place, message))
        }
    }
}

fn missing(place: &str) -> ApiError {
    ApiError { code: "missing_field", ..ApiError::field(place, format!("`{place}` is missing")) }
}
