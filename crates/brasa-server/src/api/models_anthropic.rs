//! Anthropic's form of the list of models, for clients that send `anthropic-version`.

use std::collections::HashMap;

use brasa::tokenizer::CivilTime;
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};

/// Number of models of a page if the client names none.
const USUAL: usize = 20;
/// Most models of a page.
const MOST: usize = 1000;

/// A page of `models`, pairs of an id and the time at which the server registered the model, as selected by `limit`, `after_id`
/// and `before_id`.
///
/// # Errors
///
/// 400 for a limit that is not a number from 1 to 1000, and for an id of no model.
pub(crate) fn page(models: &[(String, u64)], query: &HashMap<String, String>) -> Result<Value> {
    let limit = match query.get("limit") {
        None => USUAL,
        Some(text) => {
            let limit = text.parse().ok().filter(|limit| (1..=MOST).contains(limit));
            limit.ok_or_else(|| {
                ApiError::field("limit", format!("`limit` is {text:?}, expected a whole number, 1 to {MOST}"))
            })?
        }
    };
    let place = |name: &str| match query.get(name) {
        None => Ok(None),
        Some(id) => {
            let place = models.iter().position(|(known, _)| known == id);
            place.map(Some).ok_or_else(|| {
                ApiError::field(name, format!("`{name}` is {id:?}, and there is no such model"))
            })
        }
    };
    let (after, before) = (place("after_id")?, place("before_id")?);
    let start = after.map_or(0, |place| place + 1);
    let end = before.unwrap_or(models.len()).max(start);
    let rest = &models[start..end];
    let count = limit.min(rest.len());
    // A page before an id ends with the model in front of it.
    let page = if before.is_some() && after.is_none() { &rest[rest.len() - count..] } else { &rest[..count] };
    Ok(json!({
        "data": page.iter().map(|(id, created)| form(id, *created)).collect::<Vec<_>>(),
        "has_more": count < rest.len(),
        "first_id": page.first().map(|(id, _)| id),
        "last_id": page.last().map(|(id, _)| id),
    }))
}

/// One model in Anthropic's form.
pub(crate) fn form(id: &str, created: u64) -> Value {
    json!({"type": "model", "id": id, "display_name": id, "created_at": time(created)})
}

/// Formats seconds since 1970 as RFC 3339 does.
fn time(seconds: u64) -> String {
    CivilTime::from_unix(i64::try_from(seconds).unwrap_or_default()).format("%Y-%m-%dT%H:%M:%SZ")
}
