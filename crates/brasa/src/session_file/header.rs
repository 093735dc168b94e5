//! The header of a file: a state without its tokens, and settings.

use std::ops::Range;

use brasa_engine::{CacheScope, GenerateOptions, SnapshotState};
use serde_json::{Value, json};

use super::{Identity, SessionFileError, settings};

/// A header that has been read.
pub(super) struct Header {
    /// The state; all of its tokens are still 0, and are read later.
    pub(super) state: SnapshotState,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// The settings of the session's last request.
    pub(super) options: Option<GenerateOptions>,
}

/// The header of a state, as JSON.
pub(super) fn to_json(
    identity: &Identity,
    state: &SnapshotState,
    options: Option<&GenerateOptions>,
) -> Value {
    let pages = state.pages.iter().map(|pages| json!([pages.start, pages.end]));
    let mut header = json!({
        "written_by": concat!("brasa ", env!("CARGO_PKG_VERSION")),
        "identity": identity.to_json(),
        "scope": {"model": state.scope.model, "adapter": state.scope.adapter, "salt": state.scope.salt},
        "tokens": state.tokens.len(),
        "shifted_from": state.shifted_from,
        "private": state.private,
        "pages": pages.collect::<Value>(),
        "options": options.map(settings::to_json),
    });
    if !state.state_lengths.is_empty() {
        header["states"] = json!(state.state_lengths);
    }
    header
}

/// Reads a header of a model of this identity.
///
/// # Errors
///
/// [`SessionFileError::Differs`], [`SessionFileError::Malformed`].
pub(super) fn from_json(bytes: &[u8], identity: &Identity) -> Result<Header, SessionFileError> {
    let header: Value =
        serde_json::from_slice(bytes).map_err(|error| SessionFileError::malformed(error.to_string()))?;
    identity.check(&header["identity"])?;
    let number = |value: &Value| value.as_u64();
    let count = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let missing = |name: &str| SessionFileError::malformed(format!("{name} is missing or out of range"));
    let scope = &header["scope"];
    let scope = CacheScope {
        model: number(&scope["model"]).ok_or_else(|| missing("scope.model"))?,
        adapter: number(&scope["adapter"]).ok_or_else(|| missing("scope.adapter"))?,
        salt: number(&scope["salt"]).ok_or_else(|| missing("scope.salt"))?,
    };
    let range = |pages: &Value| -> Option<Range<usize>> {
        let [start, end] = pages.as_array()?.as_slice() else { return None };
        Some(count(start)?..count(end)?)
    };
    let pages = header["pages"].as_array().and_then(|pages| pages.iter().map(range).collect());
    let states = match &header["states"] {
        Value::Null => Some(Vec::new()),
        states => states.as_array().and_then(|states| states.iter().map(count).collect()),
    };
    let shifted_from = &header["shifted_from"];
    let shifted_from = match shifted_from {
        Value::Null => None,
        index => Some(count(index).ok_or_else(|| missing("shifted_from"))?),
    };
    let options = &header["options"];
    let state = SnapshotState {
        scope,
        tokens: Vec::new(),
        shifted_from,
        private: header["private"].as_bool().ok_or_else(|| missing("private"))?,
        pages: pages.ok_or_else(|| missing("pages"))?,
        state_lengths: states.ok_or_else(|| missing("states"))?,
    };
    Ok(Header {
        state,
        tokens: count(&header["tokens"]).ok_or_else(|| missing("tokens"))?,
        options: if options.is_null() { None } else { Some(settings::from_json(options)?) },
    })
}
