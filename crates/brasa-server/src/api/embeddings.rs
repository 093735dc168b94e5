//! `/v1/embeddings`: embeddings of texts. `/embedding` is llama.cpp's form.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use brasa::engine::EngineError;
use brasa::tokenizer::AddSpecial;
use brasa::{EmbedOptions, Embedder, EmbeddingNorm, Pooling, RequestOptions, TokensOptions};
use serde_json::{Value, json};

use crate::answer::generate::{blocking, in_time};
use crate::api::finish_fields;
use crate::http::budget::Account;
use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::http::reply;
use crate::models::loaded::Loaded;
use crate::request::adapters;
use crate::request::fields::Fields;
use crate::request::prompt;
use crate::state::App;

/// Most texts of one request: OpenAI's limit.
const MOST_TEXTS: usize = 2048;

/// Bytes that a number of an answer takes: as f32, as a JSON value, and in the written answer.
const NUMBER_BYTES: usize = 4 + 32 + 16;

/// Assumed elements of a token's state if the checkpoint does not say.
const MOST_WIDTH: usize = 16_384;

/// The format of vectors in an answer.
#[derive(Clone, Copy)]
enum Encoding {
    Numbers,
    /// The bytes of the numbers as little-endian f32, in base64.
    Base64,
}

/// Handles `POST /v1/embeddings` in OpenAI's form, with the fields `prompt_name` and `truncate` added.
pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let (loaded, request) = adapters::acquire_reader(&app, &mut fields).await?;
    let input = fields.value("input").ok_or_else(|| fields.missing("input"))?;
    let encoding = match fields.optional::<String>("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Numbers,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            let message = format!("`encoding_format` is {other:?}, expected float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    if app.options.pooling == Some(Pooling::None) {
        let message = "the server runs with --pooling none, which has no form here: /embedding gives the vector of each token";
        return Err(ApiError::invalid(message));
    }
    let dimensions = fields.count("dimensions", 1, usize::MAX)?;
    let how = tokens_options(&mut fields)?;
    finish_fields(&app, &mut fields)?;
    let options = EmbedOptions { dimensions, ..options_of(&app, EmbeddingNorm::Euclidean, request) };
    let Embedded { vectors, tokens, .. } =
        embed(&app, &loaded, &record, Texts { field: "input", input, how }, options).await?;
    let tokens: usize = tokens.iter().sum();
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": encoding.write(vector)}))
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(reply::ok(&json!({"object": "list", "data": data, "model": loaded.presence().id, "usage": usage})))
}

/// Handles `/embedding` in llama.cpp's form: the texts are in `content`, and each gets a list of vectors: one, or without pooling
/// one for each token.
pub(crate) async fn native(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    mut fields: Fields,
) -> Result<Response> {
    let (loaded, request) = adapters::acquire_reader(&app, &mut fields).await?;
    let field = if fields.peek("content").is_some() { "content" } else { "input" };
    let input = fields.value(field).ok_or_else(|| fields.missing("content"))?;
    // llama.cpp leaves the vectors of tokens as they are.
    let is_pooled = app.options.pooling != Some(Pooling::None);
    let norm = match fields.whole("embd_normalize", |_| true, "2 or -1")? {
        None if !is_pooled => EmbeddingNorm::None,
        None | Some(2) => EmbeddingNorm::Euclidean,
        Some(-1) => EmbeddingNorm::None,
        Some(_) => {
            let why = "embeddings have length 1 (2) or stay as they are (-1)";
            return Err(ApiError::unsupported("embd_normalize", why));
        }
    };
    let how = tokens_options(&mut fields)?;
    finish_fields(&app, &mut fields)?;
    let texts = Texts { field, input, how };
    let Embedded { vectors, tokens, memory } =
        embed(&app, &loaded, &record, texts, options_of(&app, norm, request)).await?;
    let answer = move || {
        let item = |(index, (vector, tokens)): (usize, (&Vec<f32>, &usize))| {
            let width = if is_pooled { vector.len() } else { vector.len() / tokens };
            let states = vector.chunks(width.max(1)).map(|state| Encoding::Numbers.write(state));
            json!({"index": index, "embedding": states.collect::<Vec<_>>()})
        };
        let answer: Vec<Value> = vectors.iter().zip(&tokens).enumerate().map(item).collect();
        drop(memory);
        Ok(reply::ok(&answer.into()))
    };
    blocking(answer).await
}

fn options_of(app: &App, norm: EmbeddingNorm, request: RequestOptions) -> EmbedOptions {
    EmbedOptions { pooling: app.options.pooling, norm, dimensions: None, request }
}

/// Reads the options of turning texts into tokens.
fn tokens_options(fields: &mut Fields) -> Result<TokensOptions> {
    Ok(TokensOptions {
        prompt: fields.optional("prompt_name")?,
        truncate: fields.switch("truncate")?.unwrap_or(false),
    })
}

/// The texts of a request.
struct Texts {
    /// The field that holds the texts.
    field: &'static str,
    input: Value,
    how: TokensOptions,
}

impl Texts {
    /// The token ids of each text.
    fn read(self, embedder: &Embedder) -> Result<Vec<Vec<u32>>> {
        let Self { field, input, how } = self;
        let texts = match embedder {
            // A language model reads mixes of texts and ids, where nothing else is asked.
            Embedder::Decoder(model) if how == TokensOptions::default() && !embedder.has_default_prompt() => {
                prompt::read(field, input, model, AddSpecial::AsModel, MOST_TEXTS)?
            }
            embedder => prompt::read_whole(field, input, embedder, &how, MOST_TEXTS)?,
        };
        if texts.iter().any(Vec::is_empty) {
            return Err(ApiError::field(field, format!("`{field}` holds a text without tokens")));
        }
        Ok(texts)
    }
}

/// The embeddings of a request's texts.
struct Embedded {
    /// For each text its vector, or without pooling the vectors of its tokens one after the other.
    vectors: Vec<Vec<f32>>,
    /// Number of tokens of each text.
    tokens: Vec<usize>,
    /// The account of the memory of token vectors, as numbers and as JSON.
    memory: Account,
}

/// Computes the embeddings of texts.
async fn embed(
    app: &App,
    loaded: &Loaded,
    record: &Record,
    texts: Texts,
    options: EmbedOptions,
) -> Result<Embedded> {
    record.set("model", loaded.presence().id.as_str());
    let _busy = loaded.presence().keep_busy();
    let embedder = loaded.embedder()?;
    if let Some(dimensions) = options.dimensions {
        embedder
            .check_dimensions(dimensions)
            .map_err(|error| ApiError::unsupported("dimensions", &error.to_string()))?;
    }
    let pooling = options.pooling.unwrap_or_else(|| embedder.pooling());
    if let Pooling::Other(name) = pooling {
        return Err(ApiError::not_implemented(format!(
            "the model asks for {name} pooling, which is not computed: start the server with --pooling last or mean"
        )));
    }
    let field = texts.field;
    let reader = embedder.clone();
    let texts = blocking(move || texts.read(&reader)).await?;
    let tokens: Vec<usize> = texts.iter().map(Vec::len).collect();
    let total: usize = tokens.iter().sum();
    record.set("prompt_tokens", total);
    let mut memory = app.budget.account();
    if pooling == Pooling::None {
        let width = embedder.info().hidden_size.unwrap_or(MOST_WIDTH);
        memory.grow(total.saturating_mul(width).saturating_mul(NUMBER_BYTES))?;
    }
    let mut vectors = embedder.embed(texts, &options).map_err(|error| of_text(error, field))?;
    let vectors = in_time(app, loaded.presence(), |context| vectors.poll_next(context)).await?;
    Ok(Embedded { vectors, tokens, memory })
}

/// Converts the error of a text; names the field that the text is in.
fn of_text(error: brasa::Error, field: &str) -> ApiError {
    let is_id = matches!(error, brasa::Error::Engine(EngineError::UnknownToken { .. }));
    let error = ApiError::from(error);
    if is_id { error.with_param(field) } else { error }
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
