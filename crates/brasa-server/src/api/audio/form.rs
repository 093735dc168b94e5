//! Forms of `multipart/form-data` with a file, bounded in bytes, parts and time.

use axum::body::{Body, Bytes};
use axum::extract::multipart::{Multipart, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::header;
use serde_json::{Map, Value};

use crate::http::error::{ApiError, Result};
use crate::http::log::Record;
use crate::request::body;
use crate::request::fields::Fields;
use crate::state::App;

/// Most bytes of a form besides its file: names and texts of its parts.
const MOST_OTHER_BYTES: usize = 1 << 20;
/// Most parts of a form.
const MOST_PARTS: usize = 64;
/// Longest name of a file that is kept, in characters.
const LONGEST_NAME: usize = 100;

/// Fields that may occur several times.
const LISTS: [&str; 3] = ["timestamp_granularities", "include", "hotwords"];
/// Fields with numbers or truth values as text.
const VALUES: [&str; 6] = ["temperature", "stream", "seed", "beam_size", "best_of", "max_initial_timestamp"];

/// A form's fields, and its file.
pub(crate) struct Form {
    /// The part called `file`; `None` if there is none.
    pub sound: Option<Sound>,
    /// All parts of the form but the file: texts, and lists of texts.
    pub fields: Fields,
}

/// A file of sound.
pub(crate) struct Sound {
    /// The bytes of the file.
    pub bytes: Bytes,
    /// Name of the file, as the client sent it, for errors.
    pub name: String,
}

impl FromRequest<App> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let most = app.options.max_audio_bytes;
        let content_type = request.headers().get(header::CONTENT_TYPE).cloned();
        if !content_type.as_ref().is_some_and(|found| found.as_bytes().starts_with(b"multipart/form-data")) {
            let message =
                "the body is no multipart/form-data: a file of sound comes as the part `file` of a form";
            return Err(ApiError { code: "invalid_form", ..ApiError::invalid(message) });
        }
        let record = request.extensions().get::<Record>().cloned();
        let mut account = app.budget.account();
        let patience = app.options.client_timeout;
        let bytes = body::read_bounded(request, most + MOST_OTHER_BYTES, patience, &mut account).await?;
        if let Some(record) = record {
            record.memory.hold(account);
        }
        let mut request = Request::new(Body::from(bytes));
        request.headers_mut().extend(content_type.map(|value| (header::CONTENT_TYPE, value)));
        // The bytes are bounded already.
        DefaultBodyLimit::max(usize::MAX).apply(&mut request);
        let form = Multipart::from_request(request, app).await;
        read(form.map_err(|error| broken(&error.body_text()))?, most).await
    }
}

async fn read(mut form: Multipart, most: usize) -> Result<Form> {
    let broken_part = |error: MultipartError| broken(&error.body_text());
    let (mut sound, mut map) = (None, Map::new());
    let (mut parts, mut other_bytes) = (0, 0);
    while let Some(part) = form.next_field().await.map_err(broken_part)? {
        parts += 1;
        if parts > MOST_PARTS {
            return Err(broken(&format!("it has more than {MOST_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            let file_name = part.file_name().unwrap_or("file").chars().take(LONGEST_NAME).collect();
            let bytes = part.bytes().await.map_err(broken_part)?;
            if bytes.len() > most {
                return Err(ApiError::too_large(most));
            }
            if sound.replace(Sound { bytes, name: file_name }).is_some() {
                return Err(ApiError::field(
                    "file",
                    "`file` is there twice: one sound is transcribed at a time",
                ));
            }
            continue;
        }
        let text = part.text().await.map_err(broken_part)?;
        other_bytes += name.len() + text.len();
        if other_bytes > MOST_OTHER_BYTES {
            let shown: String = name.chars().take(LONGEST_NAME).collect();
            let message = format!(
                "the texts of the form have more than {MOST_OTHER_BYTES} bytes, the last of them `{shown}`"
            );
            return Err(ApiError { message, ..ApiError::too_large(MOST_OTHER_BYTES) }.with_param(&shown));
        }
        add(&mut map, &name, text)?;
    }
    Ok(Form { sound, fields: Fields::new(map) })
}

/// Adds a part to the fields. The name of a list may end with `[]`.
fn add(map: &mut Map<String, Value>, name: &str, text: String) -> Result<()> {
    let (name, is_list) = match name.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (name, LISTS.contains(&name)),
    };
    if is_list {
        match map.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(list) => list.push(text.into()),
            _ => return Err(twice(name)),
        }
        return Ok(());
    }
    let value = if VALUES.contains(&name) {
        serde_json::from_str(&text.trim().to_lowercase()).ok().filter(|value: &Value| !value.is_object())
    } else {
        None
    };
    // Empty parts are those that a person left empty.
    let value = if text.is_empty() { Value::Null } else { value.unwrap_or_else(|| text.into()) };
    if map.insert(name.to_owned(), value).is_some() { Err(twice(name)) } else { Ok(()) }
}

fn twice(name: &str) -> ApiError {
    ApiError::field(name, format!("`{name}` is there twice"))
}

fn broken(why: &str) -> ApiError {
    ApiError { code: "invalid_form", ..ApiError::invalid(format!("the form cannot be read: {why}")) }
}
