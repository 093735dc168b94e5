//! `/tokenize`, `/detokenize` and `/apply-template`.

use std::fmt::Write;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use serde_json::json;

use crate::api::finish_fields;
use crate::conversation::Conversation;
use crate::error::Result;
use crate::fields::Fields;
use crate::generate::blocking;
use crate::pool::{self, Lane};
use crate::reply;
use crate::state::App;

/// Bytes or tokens of a long text.
const LONG: usize = 64 << 10;

/// The ids of a text, which `content` holds, or `text` in Akunu's form.
pub(crate) async fn tokenize(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let text = match fields.optional::<String>("content")? {
        Some(text) => text,
        None => fields.optional("text")?.ok_or_else(|| fields.missing("content"))?,
    };
    let add =
        if fields.switch("add_special")?.unwrap_or(false) { AddSpecial::AsModel } else { AddSpecial::No };
    let parse =
        if fields.switch("parse_special")?.unwrap_or(true) { ParseSpecial::Yes } else { ParseSpecial::No };
    let with_pieces = fields.switch("with_pieces")?.unwrap_or(false);
    finish_fields(&app, &mut fields);
    let lane = if text.len() > LONG { Lane::LongTexts } else { Lane::Texts };
    let answer = pool::blocking(lane, move || {
        let tokenizer = loaded.tokenizer();
        let ids = tokenizer.encode(&text, add, parse)?;
        // Values of so many tokens would take a hundred times as much as their text.
        let mut answer = String::from("{\"tokens\":[");
        for (at, id) in ids.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let _ = if with_pieces {
                let bytes = tokenizer.piece_bytes(*id)?;
                // A piece that is no text by itself is a list of its bytes.
                let piece = std::str::from_utf8(&bytes).map_or_else(|_| json!(bytes), |text| json!(text));
                write!(answer, "{comma}{{\"id\":{id},\"piece\":{piece}}}")
            } else {
                write!(answer, "{comma}{id}")
            };
        }
        let _ = write!(answer, "],\"count\":{}}}", ids.len());
        Ok(answer)
    });
    Ok(reply::with_type(StatusCode::OK, "application/json", answer.await?))
}

/// The text of ids.
pub(crate) async fn detokenize(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let ids: Vec<u32> = fields.required("tokens")?;
    finish_fields(&app, &mut fields);
    let lane = if ids.len() > LONG { Lane::LongTexts } else { Lane::Texts };
    let text = pool::blocking(lane, move || Ok(loaded.tokenizer().decode(&ids, false)?)).await?;
    Ok(reply::ok(&json!({"content": text})))
}

/// The text that the chat template makes of a conversation.
pub(crate) async fn apply_template(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = Conversation::read(&mut fields)?;
    finish_fields(&app, &mut fields);
    let prompt = blocking(move || conversation.render(&loaded.model)).await?;
    Ok(reply::ok(&json!({"prompt": prompt})))
}
