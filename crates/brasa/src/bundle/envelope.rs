//! The envelope of a bundle, as JSON.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use brasa_engine::GenerateOptions;
use serde_json::{Value, json};

use super::BundleError;
use crate::session_file::{Identity, settings};

/// Value of the envelope's field `kind`.
const KIND: &str = "brasa state bundle";
/// The version that is written, the only one that is read.
const VERSION: u64 = 1;
/// Most bytes of an envelope.
pub(super) const MOST_BYTES: usize = 4 << 20;
/// Most characters of a session's name.
const MOST_CHARACTERS: usize = 200;
/// Characters that an error message repeats of a value in an envelope.
const SHOWN_CHARACTERS: usize = 60;

/// Contents of an envelope.
pub(super) struct Envelope {
    pub(super) entries: Vec<Entry>,
}

/// Entry of an envelope for one session.
pub(super) struct Entry {
    pub(super) name: String,
    /// Name of the session's file, in the envelope's folder.
    pub(super) file: String,
    pub(super) size_bytes: u64,
    /// SHA-256 of the file, in hexadecimal digits.
    pub(super) sha256: String,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// SHA-256 of the token ids, 4 bytes each, little-endian.
    pub(super) prompt_sha256: String,
    /// The settings of the session's last request.
    pub(super) options: Option<GenerateOptions>,
}

impl Envelope {
    /// The envelope of sessions of a model of this identity.
    pub(super) fn to_json(&self, identity: &Identity) -> Value {
        let entry = |entry: &Entry| {
            json!({
                "name": entry.name,
                "file": entry.file,
                "size_bytes": entry.size_bytes,
                "sha256": entry.sha256,
                "tokens": entry.tokens,
                "prompt_sha256": entry.prompt_sha256,
                "sampler": entry.options.as_ref().map(settings::to_json),
            })
        };
        json!({
            "kind": KIND,
            "version": VERSION,
            "written_by": concat!("brasa ", env!("CARGO_PKG_VERSION")),
            "identity": identity.to_json(),
            "sessions": self.entries.iter().map(entry).collect::<Value>(),
        })
    }

    /// Reads an envelope of a model of this identity.
    ///
    /// # Errors
    ///
    /// The [`BundleError`] of the first mistake. Kind and version are checked first.
    pub(super) fn from_json(text: &[u8], identity: &Identity) -> Result<Self, BundleError> {
        if text.len() > MOST_BYTES {
            return Err(BundleError::malformed(format!("it has more than {MOST_BYTES} bytes")));
        }
        let envelope: Value =
            serde_json::from_slice(text).map_err(|error| BundleError::malformed(error.to_string()))?;
        let (kind, version) = (&envelope["kind"], &envelope["version"]);
        if kind.as_str() != Some(KIND) {
            return Err(BundleError::Kind { found: shown(kind), expected: KIND });
        }
        if version.as_u64() != Some(VERSION) {
            return Err(BundleError::Version { found: shown(version), expected: VERSION });
        }
        identity.check(&envelope["identity"]).map_err(BundleError::Identity)?;
        let sessions = envelope["sessions"].as_array();
        let sessions = sessions.ok_or_else(|| BundleError::malformed("it has no list of sessions"))?;
        let entries = sessions.iter().map(Entry::from_json).collect::<Result<Vec<_>, _>>()?;
        let (mut names, mut files) = (BTreeSet::new(), BTreeSet::new());
        if let Some(twice) = entries.iter().find(|it| !names.insert(&it.name) || !files.insert(&it.file)) {
            let reason = format!("two sessions have the name or the file of {:?}", twice.name);
            return Err(BundleError::malformed(reason));
        }
        Ok(Self { entries })
    }
}

impl Entry {
    fn from_json(value: &Value) -> Result<Self, BundleError> {
        let missing =
            |name: &str| BundleError::malformed(format!("a session's {name} is missing or out of range"));
        let text = |name: &'static str| value[name].as_str().ok_or_else(|| missing(name));
        let hash = |name: &'static str| {
            let digits = text(name)?;
            let is_hash = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_hash { Ok(digits.to_ascii_lowercase()) } else { Err(missing(name)) }
        };
        let name = text("name")?;
        check_name(name)?;
        let file = text("file")?;
        // The folder holds nothing but plain names, on every system: no separators, drives or steps upwards.
        let mut parts = Path::new(file).components();
        let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == file)
            && !file.contains(['/', '\\', ':', '\0']);
        if !is_plain {
            return Err(BundleError::Outside { file: file.chars().take(SHOWN_CHARACTERS).collect() });
        }
        let options = match &value["sampler"] {
            Value::Null => None,
            sampler => Some(
                settings::from_json(sampler).map_err(|error| BundleError::malformed(error.to_string()))?,
            ),
        };
        let tokens = value["tokens"].as_u64().and_then(|tokens| usize::try_from(tokens).ok());
        Ok(Self {
            name: name.to_owned(),
            file: file.to_owned(),
            size_bytes: value["size_bytes"].as_u64().ok_or_else(|| missing("size_bytes"))?,
            sha256: hash("sha256")?,
            tokens: tokens.ok_or_else(|| missing("tokens"))?,
            prompt_sha256: hash("prompt_sha256")?,
            options,
        })
    }
}

/// Checks that a session may have this name.
pub(super) fn check_name(name: &str) -> Result<(), BundleError> {
    let characters = name.chars().count();
    if (1..=MOST_CHARACTERS).contains(&characters) {
        Ok(())
    } else {
        Err(BundleError::Name { characters, most: MOST_CHARACTERS })
    }
}

/// True if two sessions have the same settings, as files store them. Masks are not stored.
pub(super) fn same_settings(a: Option<&GenerateOptions>, b: Option<&GenerateOptions>) -> bool {
    a.map(settings::to_json) == b.map(settings::to_json)
}

/// The first characters of a value in an envelope, for an error message.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(SHOWN_CHARACTERS).collect()
}
