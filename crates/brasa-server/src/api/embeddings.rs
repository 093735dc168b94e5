//! `/v1/embeddings`: vectors that stand for texts. `/embedding` is llama.cpp's form of it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use brasa::{EmbedOptions, EmbeddingNorm, Pooling};
use serde_json::{Value, json};

use crate::api::finish_fields;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::generate::{blocking, in_time};
use crate::loaded::Loaded;
use crate::log::Record;
use crate::state::App;
use crate::{prompt, reply};

/// Most texts of one request: OpenAI's limit.
const MOST_TEXTS: usize = 2048;

/// How vectors are written.
#[derive(Clone, Copy)]
enum Encoding {
    Numbers,
    /// The bytes of little-endian f32.
    Base64,
}

/// OpenAI's form.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let input = fields.value("input").ok_or_else(|| fields.missing("input"))?;
    let encoding = match fields.optional::<String>("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Numbers,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            let message = format!("`encoding_format` is {other:?}, expected float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let dimensions = fields.count("dimensions", 1, usize::MAX)?;
    finish_fields(&app, &fields);
    let options = EmbedOptions { norm: EmbeddingNorm::Euclidean, ..options_of(&app) };
    let (vectors, tokens) = embed(&app, &loaded, &record, "input", input, options).await?;
    if let Some(wanted) = dimensions
        && let Some(width) = vectors.first().map(Vec::len).filter(|&width| width != wanted)
    {
        // Only models that were trained for it keep their meaning when vectors are cut, and no file says that it was.
        let why = format!("embeddings of this model have {width} dimensions, and mean nothing when cut");
        return Err(ApiError::unsupported("dimensions", &why));
    }
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": encoding.write(vector)}))
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(reply::ok(&json!({"object": "list", "data": data, "model": loaded.id, "usage": usage})))
}

/// llama.cpp's form: `content`, and a list of vectors for each text.
pub(crate) async fn native(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let loaded = app.registry.acquire(fields.optional::<String>("model")?.as_deref()).await?;
    let name = if fields.peek("content").is_some() { "content" } else { "input" };
    let input = fields.value(name).ok_or_else(|| fields.missing("content"))?;
    let norm = match fields.optional::<i64>("embd_normalize")? {
        None | Some(2) => EmbeddingNorm::Euclidean,
        Some(-1) => EmbeddingNorm::None,
        Some(_) => {
            let why = "embeddings have length 1 (2) or stay as they are (-1)";
            return Err(ApiError::unsupported("embd_normalize", why));
        }
    };
    finish_fields(&app, &fields);
    let options = EmbedOptions { norm, ..options_of(&app) };
    let (vectors, _) = embed(&app, &loaded, &record, name, input, options).await?;
    let answer: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"index": index, "embedding": [Encoding::Numbers.write(vector)]}))
        .collect();
    Ok(reply::ok(&answer.into()))
}

fn options_of(app: &App) -> EmbedOptions {
    EmbedOptions { pooling: app.options.pooling, ..EmbedOptions::default() }
}

/// The embeddings of the texts in `field`, and how many tokens they have in all.
async fn embed(
    app: &App,
    loaded: &Arc<Loaded>,
    record: &Record,
    field: &'static str,
    input: Value,
    options: EmbedOptions,
) -> Result<(Vec<Vec<f32>>, usize)> {
    record.set("model", loaded.id.as_str());
    let _busy = loaded.keep_busy();
    let reader = Arc::clone(loaded);
    let texts = blocking(move || prompt::read(field, input, &reader.model, MOST_TEXTS)).await?;
    let tokens = texts.iter().map(Vec::len).sum();
    record.set("prompt_tokens", tokens);
    if texts.iter().any(Vec::is_empty) {
        return Err(ApiError::field(field, format!("`{field}` holds a text without tokens")));
    }
    let pooling = options.pooling.unwrap_or_else(|| loaded.model.pooling());
    if let Pooling::Other(name) = pooling {
        return Err(ApiError::not_implemented(format!(
            "the model asks for {name} pooling, which is not computed: start the server with --pooling last or mean"
        )));
    }
    let vectors = in_time(app, loaded, loaded.model.embed(texts, &options)?).await?;
    Ok((vectors, tokens))
}

impl Encoding {
    fn write(self, vector: &[f32]) -> Value {
        match self {
            Self::Numbers => vector.into(),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                BASE64_STANDARD.encode(bytes).into()
            }
        }
    }
}
