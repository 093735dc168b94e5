//! State bundles: named sessions of one model, kept together in files.
//!
//! # The files
//!
//! The *envelope* is a JSON object of its own kind and version. It names the model, tokenizer, adapter and runtime that the sessions need,
//! and for each session the [file](crate::session_file) beside it that holds keys and values, with its SHA-256, the hash and number of
//! its tokens, and its sampler's settings.
//!
//! A session's file has the envelope's name, a number and `.session`. Saving writes files of new numbers, then puts the new envelope in the
//! place of the old one, and removes files that no envelope names any more last. So a process that is killed leaves the old bundle or
//! the new one. One process saves a bundle at a time.

mod envelope;
mod error;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use brasa_formats::{Existing, OutputFile};
use sha2::{Digest, Sha256};

use crate::session::Written;
use crate::session_file::hex;
use crate::{Error, Model, Session};
use envelope::{Entry, Envelope};
pub use error::BundleError;

/// Named sessions of one model, which go to files and come back together.
///
/// ```
/// use brasa::{GenerateOptions, LoadOptions, Message, Model, StateBundle};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
/// # let file = std::env::temp_dir().join(format!("brasa-bundle-{}.json", std::process::id()));
/// let model = Model::load(path, &LoadOptions::default())?;
/// let mut bundle = StateBundle::new(&model);
/// let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
/// bundle.session("ada").chat(&[Message::new("user", "What is an ember?")], &options)?.into_text()?;
/// bundle.save(&file)?;
///
/// let mut again = StateBundle::load(&model, &file)?;
/// assert_eq!(again.session("ada").tokens()?, bundle.session("ada").tokens()?);
/// # std::fs::remove_file(file.with_extension("json.1.session")).unwrap();
/// # std::fs::remove_file(file).unwrap();
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Debug)]
pub struct StateBundle {
    model: Model,
    /// The sessions by name. Names are free texts of 1 to 200 characters.
    pub sessions: BTreeMap<String, Session>,
}

/// A bundle that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedBundle {
    /// Number of tokens whose keys and values the files hold.
    pub tokens: usize,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl StateBundle {
    /// A bundle without sessions.
    pub fn new(model: &Model) -> Self {
        Self { model: model.clone(), sessions: BTreeMap::new() }
    }

    /// The session of this name; a new one if there is none.
    pub fn session(&mut self, name: &str) -> &mut Session {
        self.sessions.entry(name.to_owned()).or_insert_with(|| self.model.session())
    }

    /// Saves all sessions: an envelope at `path`, and a file for each session in the same folder.
    ///
    /// A bundle that was at `path` is replaced as a whole or stays unchanged, even if the process is killed.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) while a stream of a session runs; [`Error::Bundle`] for a
    /// session of another model and a name that is empty or too long; [`Error::Format`] and [`Error::SessionFile`] if a file cannot be
    /// written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<SavedBundle, Error> {
        let path = path.as_ref();
        let numbered = Numbered::of(path).map_err(|error| of_bundle(error, path))?;
        let mut written = Vec::new();
        let saved = self.write(path, &numbered, &mut written);
        // A file that no envelope names any more, or that none came to name. One that cannot be removed does no harm.
        for file in if saved.is_ok() { &numbered.old } else { &written } {
            let _ = fs::remove_file(numbered.folder.join(file));
        }
        saved
    }

    /// Writes all files; adds to `written` the names of the sessions' files.
    fn write(
        &self,
        path: &Path,
        numbered: &Numbered,
        written: &mut Vec<String>,
    ) -> Result<SavedBundle, Error> {
        let mut envelope = Envelope { entries: Vec::new() };
        for (name, session) in &self.sessions {
            envelope::check_name(name).map_err(|error| of_bundle(error, path))?;
            if session.model().identity() != self.model.identity() {
                return Err(of_bundle(BundleError::ForeignSession { name: name.clone() }, path));
            }
            let file = numbered.name(written.len());
            let target = numbered.folder.join(&file);
            let output = OutputFile::create(&target, Existing::Keep)?;
            let mut output = Hashed { inner: output, hash: Sha256::new() };
            let Written { tokens, options, bytes } = session
                .write_all_to(&mut output, &mut |_| ControlFlow::Continue(()))
                .map_err(|error| error.of_file(&target))?;
            output.inner.commit()?;
            written.push(file.clone());
            envelope.entries.push(Entry {
                name: name.clone(),
                file,
                size_bytes: bytes,
                sha256: hex(&output.hash.finalize()),
                tokens: tokens.len(),
                prompt_sha256: tokens_hash(&tokens),
                options,
            });
        }
        let text = envelope.to_json(&self.model.identity()).to_string();
        if text.len() > envelope::MOST_BYTES {
            let error = BundleError::TooLarge { bytes: text.len(), most: envelope::MOST_BYTES };
            return Err(of_bundle(error, path));
        }
        let mut output = OutputFile::create(path, Existing::Replace)?;
        output.write_all(text.as_bytes()).map_err(|error| of_bundle(BundleError::Io(error), path))?;
        output.commit()?;
        let tokens = envelope.entries.iter().map(|entry| entry.tokens).sum();
        let bytes = envelope.entries.iter().map(|entry| entry.size_bytes).sum::<u64>() + text.len() as u64;
        Ok(SavedBundle { tokens, bytes })
    }

    /// Loads a bundle that was [saved](Self::save) with this model. Texts continue from its sessions as they would have without
    /// saving and loading, bit for bit.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if the envelope cannot be opened. [`Error::Bundle`] if it is of another kind, version, model, tokenizer, adapter or
    /// runtime, if it is malformed, if it names a file outside its folder, or if a file is missing or has changed; the message says which.
    /// [`Error::Engine`] if a text does not fit the context or the cache.
    pub fn load(model: &Model, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let open =
            |path: &Path| File::open(path).map_err(|error| Error::File { path: path.to_owned(), error });
        let mut text = Vec::new();
        open(path)?
            .take(envelope::MOST_BYTES as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|error| of_bundle(BundleError::Io(error), path))?;
        let envelope =
            Envelope::from_json(&text, &model.identity()).map_err(|error| of_bundle(error, path))?;
        let folder = folder(path);
        let mut bundle = Self::new(model);
        for entry in envelope.entries {
            let session = entry.load(model, folder).map_err(|error| match error {
                Failure::Bundle(error) => of_bundle(error, path),
                Failure::Other(error) => error,
            })?;
            bundle.sessions.insert(entry.name, session);
        }
        Ok(bundle)
    }
}

impl Entry {
    /// Loads the session from its file in `folder`, and checks that file and session are those that the envelope describes.
    fn load(&self, model: &Model, folder: &Path) -> Result<Session, Failure> {
        let file = || self.file.clone();
        let path = folder.join(&self.file);
        // A link may lead anywhere, and a pipe may never end.
        let found = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => found,
            Ok(_) => return Err(BundleError::Outside { file: file() }.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BundleError::Missing { file: file() }.into());
            }
            Err(error) => return Err(BundleError::Io(error).into()),
        };
        if found.len() != self.size_bytes {
            return Err(BundleError::Changed { file: file() }.into());
        }
        let input = File::open(&path).map_err(BundleError::Io)?;
        let inner = BufReader::with_capacity(1 << 16, input.take(self.size_bytes));
        let mut input = Hashed { inner, hash: Sha256::new() };
        let session = model.read_session(&mut input, |_| ControlFlow::Continue(()));
        // Whatever is wrong with a file that has changed, the change is the reason.
        io::copy(&mut input, &mut io::sink()).map_err(BundleError::Io)?;
        if hex(&input.hash.finalize()) != self.sha256 {
            return Err(BundleError::Changed { file: file() }.into());
        }
        let session = session.map_err(|error| Failure::Other(error.of_file(&path)))?;
        let tokens = session.tokens().map_err(Failure::Other)?;
        if tokens.len() != self.tokens || tokens_hash(&tokens) != self.prompt_sha256 {
            return Err(BundleError::Contradicts { file: file(), what: "tokens" }.into());
        }
        if !envelope::same_settings(self.options.as_ref(), session.options().as_ref()) {
            return Err(BundleError::Contradicts { file: file(), what: "sampler" }.into());
        }
        Ok(session)
    }
}

/// The reason why a session is not loaded: a mistake in the bundle, or another error.
enum Failure {
    Bundle(BundleError),
    Other(Error),
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        Self::Bundle(error)
    }
}

/// Names of the sessions' files in the envelope's folder.
struct Numbered {
    folder: PathBuf,
    /// The envelope's name.
    stem: String,
    /// Files of earlier savings.
    old: Vec<String>,
    /// The first number above those of all files.
    free: u64,
}

impl Numbered {
    fn of(path: &Path) -> Result<Self, BundleError> {
        let stem = path.file_name().and_then(|name| name.to_str()).ok_or(BundleError::NoName)?.to_owned();
        let folder = folder(path).to_owned();
        let mut numbered = Self { folder, stem, old: Vec::new(), free: 1 };
        // A folder that cannot be read cannot be written either, and says so then.
        for entry in fs::read_dir(&numbered.folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if let Some(number) = numbered.number(&name) {
                numbered.free = numbered.free.max(u64::from(number) + 1);
                numbered.old.push(name);
            }
        }
        Ok(numbered)
    }

    /// The number of a file of this bundle.
    fn number(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix(&self.stem)?.strip_prefix('.')?.strip_suffix(".session")?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
    }

    /// The name of the file for session number `done` of this saving, counted from 0.
    fn name(&self, done: usize) -> String {
        format!("{}.{}.session", self.stem, self.free + done as u64)
    }
}

/// The folder of a path.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A reader or writer that hashes all bytes that pass through it.
struct Hashed<T> {
    inner: T,
    hash: Sha256,
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hash.update(&bytes[..read]);
        Ok(read)
    }
}

fn tokens_hash(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    for id in tokens {
        hash.update(id.to_le_bytes());
    }
    hex(&hash.finalize())
}

/// The error of the bundle at `path`.
fn of_bundle(error: BundleError, path: &Path) -> Error {
    Error::Bundle { path: path.to_owned(), error }
}
