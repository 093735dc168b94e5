//! `/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`.

use std::collections::HashMap;
use std::fmt::Write;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use brasa::tokenizer::{AddSpecial, ParseSpecial};
use serde_json::json;

use crate::answer::generate::blocking;
use crate::api::count_unknown;
use crate::http::error::{ApiError, Result};
use crate::http::pool::{self, Lane};
use crate::http::reply;
use crate::models::loaded::Loaded;
use crate::request::conversation::Conversation;
use crate::request::fields::Fields;
use crate::state::App;

/// Bytes or tokens from which on a text counts as long.
const LONG: usize = 64 << 10;

/// The source of the tokens of a request.
enum Source {
    Text(String, AddSpecial, ParseSpecial),
    Chat(Box<Conversation>),
}

/// Handles `/tokenize`: the token ids of a text in `content`, in `text` (Akunu's form) or in `prompt` (vLLM's form), or of a
/// conversation in `messages`.
pub(crate) async fn tokenize(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let model = fields.optional::<String>("model")?;
    let is_vllm = fields.peek("prompt").is_some() || fields.peek("messages").is_some();
    let (loaded, source) = if fields.peek("messages").is_some() {
        let loaded = app.registry.acquire_text(model.as_deref()).await?;
        (Loaded::Text(loaded), Source::Chat(Box::new(Conversation::read(&mut fields)?)))
    } else {
        let loaded = app.registry.acquire(model.as_deref()).await?;
        let name = ["content", "text", "prompt"].into_iter().find(|name| fields.peek(name).is_some());
        let text = fields.required(name.unwrap_or("content"))?;
        let adds = [fields.switch("add_special")?, fields.switch("add_special_tokens")?];
        // vLLM puts the tokens in front unless it is told not to.
        let adds = adds.into_iter().flatten().next().unwrap_or(is_vllm);
        let parses = fields.switch("parse_special")?.unwrap_or(true);
        let add = if adds { AddSpecial::AsModel } else { AddSpecial::No };
        let parse = if parses { ParseSpecial::Yes } else { ParseSpecial::No };
        (loaded, Source::Text(text, add, parse))
    };
    let with_pieces = fields.switch("with_pieces")?.unwrap_or(false);
    let with_texts = fields.switch("return_token_strs")?.unwrap_or(false);
    refuse_template(&mut fields)?;
    count_unknown(&app, &mut fields);
    let is_long = matches!(&source, Source::Text(text, ..) if text.len() > LONG);
    let lane = if is_long { Lane::LongTexts } else { Lane::Texts };
    let answer = pool::blocking(lane, move || {
        let tokenizer = loaded.tokenizer();
        let ids = match (source, &loaded) {
            (Source::Text(text, add, parse), _) => tokenizer.encode(&text, add, parse)?,
            (Source::Chat(conversation), Loaded::Text(text)) => conversation.encode(&text.model)?,
            (Source::Chat(_), _) => {
                return Err(ApiError::invalid(
                    "this kind of model has no chat template: send `prompt` in place of `messages`",
                ));
            }
        };
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
        if with_texts {
            answer += "],\"token_strs\":[";
            for (at, id) in ids.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let piece = json!(String::from_utf8_lossy(&tokenizer.piece_bytes(*id)?));
                let _ = write!(answer, "{comma}{piece}");
            }
        }
        let _ = write!(answer, "],\"count\":{},\"max_model_len\":{}}}", ids.len(), loaded.context());
        Ok(answer)
    });
    Ok(reply::with_type(StatusCode::OK, "application/json", answer.await?))
}

/// Answers vLLM's request about a model's tokenizer. `model` names the model; without `model`, the default one is described.
pub(crate) async fn info(
    State(app): State<App>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let loaded = app.registry.acquire(query.get("model").map(String::as_str)).await?;
    let tokenizer = loaded.tokenizer();
    let special = tokenizer.special_tokens();
    let piece = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id).ok());
    Ok(reply::ok(&json!({
        "model": loaded.presence().id,
        "vocab_size": loaded.vocab_size(),
        "model_max_length": loaded.context(),
        "bos_token": piece(special.bos),
        "eos_token": piece(special.eos),
        "pad_token": piece(special.pad),
        "unk_token": piece(special.unknown),
        "chat_template": tokenizer.chat_template_source(),
    })))
}

/// Handles `/detokenize`: the text of token ids.
pub(crate) async fn detokenize(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let ids: Vec<u32> = fields.required("tokens")?;
    count_unknown(&app, &mut fields);
    let lane = if ids.len() > LONG { Lane::LongTexts } else { Lane::Texts };
    let text = pool::blocking(lane, move || Ok(loaded.tokenizer().decode(&ids, false)?)).await?;
    // vLLM's name of the text is `prompt`.
    Ok(reply::ok(&json!({"content": text, "prompt": text})))
}

/// Handles `/apply-template`: the text that the chat template makes of a conversation.
pub(crate) async fn apply_template(State(app): State<App>, mut fields: Fields) -> Result<Response> {
    let loaded = app.registry.acquire_text(fields.optional::<String>("model")?.as_deref()).await?;
    let conversation = Conversation::read(&mut fields)?;
    refuse_template(&mut fields)?;
    count_unknown(&app, &mut fields);
    let prompt = blocking(move || conversation.render(&loaded.model)).await?;
    Ok(reply::ok(&json!({"prompt": prompt})))
}

/// Refuses a template of the request's own. Fields that shape an answer are ignored, since no answer is generated.
fn refuse_template(fields: &mut Fields) -> Result<()> {
    for name in ["chat_template", "generation_prompt"] {
        fields.refuse(name, "conversations are written by the model's own template")?;
    }
    Ok(())
}
