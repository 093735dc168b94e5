//! Prompts of raw completions: a text, token ids, or a mix of both, one or several.

use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{Embedder, Model, TokensOptions};
use serde_json::Value;

use crate::http::error::{ApiError, Result};
use crate::request::fields::{kind, token_id};

/// Reads a prompt or a list of prompts as token ids. A list with a number among its items is one prompt: a mix of ids and texts.
/// `add` decides whether a text at the beginning of a prompt gets the model's leading special tokens.
///
/// # Errors
///
/// 400 that names `field`.
pub(crate) fn read(
    field: &str,
    value: Value,
    model: &Model,
    add: AddSpecial,
    most: usize,
) -> Result<Vec<Vec<u32>>> {
    let wrong = |what: &str| {
        ApiError::field(field, format!("`{field}` is {what}, expected a text, token ids, or a list of these"))
    };
    let prompts = match value {
        Value::String(text) => vec![encode(model, &text, add)?],
        Value::Array(items) if items.is_empty() => return Err(wrong("an empty list")),
        Value::Array(items) if items.iter().any(Value::is_number) => vec![mix(field, &items, model, add)?],
        Value::Array(items) => {
            if items.len() > most {
                return Err(too_many(field, items.len(), most));
            }
            let prompts = items.into_iter().map(|item| match item {
                Value::String(text) => encode(model, &text, add),
                Value::Array(items) => mix(field, &items, model, add),
                other => Err(wrong(&format!("a list with {}", kind(&other)))),
            });
            prompts.collect::<Result<_>>()?
        }
        other => return Err(wrong(kind(&other))),
    };
    Ok(prompts)
}

/// Reads a text or a list of texts to be embedded, each as a text or as token ids.
///
/// # Errors
///
/// 400 that names `field`, also for a text that the model refuses.
pub(crate) fn read_whole(
    field: &str,
    value: Value,
    embedder: &Embedder,
    how: &TokensOptions,
    most: usize,
) -> Result<Vec<Vec<u32>>> {
    let wrong = |what: &str| {
        ApiError::field(field, format!("`{field}` is {what}, expected a text, token ids, or a list of these"))
    };
    let ids = |items: &[Value]| {
        let id = token_id;
        let mut ids: Vec<u32> = items
            .iter()
            .map(|item| id(item).ok_or_else(|| wrong(&format!("a list of ids with {}", kind(item)))))
            .collect::<Result<_>>()?;
        if how.truncate {
            ids.truncate(embedder.context());
        }
        Ok(ids)
    };
    let items = match value {
        Value::String(text) => return Ok(vec![embedder.tokens(&text, how)?]),
        Value::Array(items) if items.is_empty() => return Err(wrong("an empty list")),
        Value::Array(items) if items.iter().any(Value::is_number) => return Ok(vec![ids(&items)?]),
        Value::Array(items) if items.len() > most => return Err(too_many(field, items.len(), most)),
        Value::Array(items) => items,
        other => return Err(wrong(kind(&other))),
    };
    let text = |item| match item {
        Value::String(text) => Ok(embedder.tokens(&text, how)?),
        Value::Array(items) => ids(&items),
        other => Err(wrong(&format!("a list with {}", kind(&other)))),
    };
    items.into_iter().map(text).collect()
}

fn too_many(field: &str, count: usize, most: usize) -> ApiError {
    ApiError::field(field, format!("`{field}` has {count} prompts, at most {most} are possible"))
}

/// The token ids of a text; control tokens in it are recognised.
fn encode(model: &Model, text: &str, add: AddSpecial) -> Result<Vec<u32>> {
    Ok(model.tokenizer().encode(text, add, ParseSpecial::Yes)?)
}

/// Joins ids and texts to one prompt. Only a text at the beginning may get the model's leading special tokens, by `first`.
fn mix(field: &str, items: &[Value], model: &Model, first: AddSpecial) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match item {
            Value::String(text) => {
                let add = if at == 0 { first } else { AddSpecial::No };
                ids.extend(encode(model, text, add)?);
            }
            item => {
                ids.push(
                    token_id(item)
                        .ok_or_else(|| ApiError::field(field, format!("`{field}`: {item} is no token id")))?,
                );
            }
        }
    }
    Ok(ids)
}
