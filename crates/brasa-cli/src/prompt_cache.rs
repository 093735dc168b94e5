//! `--prompt-cache FILE`: keeps keys and values of a text in a file.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use brasa::{GenerateOptions, Model, Session};

use crate::args::PromptCacheArguments;
use crate::failure::Failure;
use crate::output;

/// Time after which a note is printed if a file is still being written or read.
const LONG: Duration = Duration::from_secs(2);

/// A session that is loaded from a file and saved to it.
pub struct PromptCache {
    session: Session,
    /// The file to write; `None` if it is only to be read.
    path: Option<PathBuf>,
    /// True if answers are saved too.
    all: bool,
    /// Tokens in the file when it was loaded.
    loaded: Vec<u32>,
}

impl PromptCache {
    /// The session in the file that the flags name; a new session if the file does not exist. `None` without the flag.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for flags without a file; [`Failure::Failed`] if the file cannot be read, is damaged, or belongs to
    /// another model.
    pub fn open(model: &Model, arguments: &PromptCacheArguments) -> Result<Option<Self>, Failure> {
        let Some(path) = &arguments.prompt_cache else {
            if arguments.prompt_cache_all || arguments.prompt_cache_ro {
                let message =
                    "--prompt-cache-all and --prompt-cache-ro need a file\nhint: --prompt-cache FILE";
                return Err(Failure::Usage(message.into()));
            }
            return Ok(None);
        };
        let session = if path.exists() {
            let mut notes = Notes::new("reading", path.display().to_string());
            model.load_session_with_progress(path, |progress| {
                notes.saw(progress.done_bytes, progress.total_bytes)
            })?
        } else {
            model.session()
        };
        let loaded = session.tokens()?;
        let writes = (!arguments.prompt_cache_ro).then(|| path.clone());
        Ok(Some(Self { session, path: writes, all: arguments.prompt_cache_all, loaded }))
    }

    /// The session, for requests.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Writes the file: the keys and values of `prompt`, and of the answer too with `--prompt-cache-all`.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the file cannot be written; the old file is then unchanged.
    pub fn keep(&self, prompt: &[u32], options: &GenerateOptions) -> Result<(), Failure> {
        let Some(path) = &self.path else { return Ok(()) };
        if !self.all && self.session.rollback(prompt.len())? < prompt.len() {
            // A sliding window has moved on with the answer.
            self.session.warm_prompt(prompt.to_vec(), &options.request)?;
        }
        if self.session.tokens()? == self.loaded {
            return Ok(());
        }
        let mut notes = Notes::new("writing", path.display().to_string());
        self.session
            .save_with_progress(path, |progress| notes.saw(progress.done_bytes, progress.total_bytes))?;
        Ok(())
    }

    /// Writes the file of a chat: the whole conversation.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the file cannot be written; the old file is then unchanged.
    pub fn keep_all(session: &Session, path: Option<&PathBuf>) -> Result<(), Failure> {
        if let Some(path) = path.filter(|_| session.tokens().is_ok_and(|tokens| !tokens.is_empty())) {
            let mut notes = Notes::new("writing", path.display().to_string());
            session
                .save_with_progress(path, |progress| notes.saw(progress.done_bytes, progress.total_bytes))?;
        }
        Ok(())
    }

    /// The session and the file to write, for a chat.
    pub fn into_parts(self) -> (Session, Option<PathBuf>) {
        (self.session, self.path)
    }
}

/// Prints a note if reading or writing a file takes long.
struct Notes {
    what: &'static str,
    path: String,
    began: Instant,
    noted: bool,
}

impl Notes {
    fn new(what: &'static str, path: String) -> Self {
        Self { what, path, began: Instant::now(), noted: false }
    }

    fn saw(&mut self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()> {
        if !self.noted && done_bytes < total_bytes && self.began.elapsed() > LONG {
            self.noted = true;
            output::note(&format!("{} {} ({} MB)", self.what, self.path, total_bytes / 1_000_000));
        }
        ControlFlow::Continue(())
    }
}
