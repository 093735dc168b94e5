//! A conversation whose keys and values stay cached.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use brasa_engine::SessionId;
use brasa_formats::{Existing, OutputFile};

use crate::{
    CacheScope, Error, GenerateOptions, Message, Metrics, Model, RequestOptions, TokenStream, session_file,
};

/// Keeps keys and values between requests.
///
/// Each request gives the *whole* text. The beginning that it shares with the text before, counted in tokens, is not computed
/// again. So a chat template may rewrite history (those of thinking models do), and the answer is still that of a fresh run, bit
/// for bit in deterministic modes.
///
/// A session can be [saved](Self::save) to a file and [loaded](Model::load_session) by another process.
///
/// A session holds a clone of its [`Model`], so it can be kept anywhere. Dropping it frees its pages.
#[derive(Debug)]
pub struct Session {
    model: Model,
    id: SessionId,
    /// The settings of the last request.
    options: Mutex<Option<GenerateOptions>>,
}

/// A session that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSession {
    /// Number of tokens whose keys and values the file holds.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Contents of a session file.
pub(crate) struct Written {
    pub(crate) tokens: Vec<u32>,
    pub(crate) options: Option<GenerateOptions>,
    pub(crate) bytes: u64,
}

/// How far saving or loading a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionProgress {
    /// Bytes written or read so far.
    pub done_bytes: u64,
    /// Bytes of the whole file.
    pub total_bytes: u64,
}

impl Session {
    pub(crate) fn new(model: Model) -> Self {
        let id = model.engine().open_session();
        Self { model, id, options: Mutex::default() }
    }

    /// The model that the session runs on.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Like [`Model::chat`], but reuses the keys and values of the last request.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::chat`]. [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) comes through
    /// the stream if an earlier stream of this session still runs.
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TokenStream, Error> {
        let stream = self.model.start_chat(messages, options, Some(self.id))?;
        self.remember(options);
        Ok(stream)
    }

    /// Like [`Model::generate_ids`], but reuses the keys and values of the last request.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::chat`].
    pub fn generate_ids(&self, prompt: Vec<u32>, options: &GenerateOptions) -> Result<TokenStream, Error> {
        let stream = self.model.start(prompt, options, Some(self.id))?;
        self.remember(options);
        Ok(stream)
    }

    /// Computes the keys and values of a prompt, so that later requests that begin with the prompt reuse them. Returns the cost.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::chat`].
    pub fn warm_prompt(&self, prompt: Vec<u32>, request: &RequestOptions) -> Result<Metrics, Error> {
        // The first token is drawn when the prompt has been computed; it is not computed itself.
        let one = GenerateOptions {
            max_tokens: Some(1),
            ignore_eos: true,
            request: *request,
            ..GenerateOptions::default()
        };
        let mut stream = self.model.start(prompt, &one, Some(self.id))?;
        stream.by_ref().try_for_each(|fragment| fragment.map(drop))?;
        Ok(*stream.metrics())
    }

    /// The tokens whose keys and values the session holds: those of its last text, except the last token drawn. Empty if other
    /// requests needed the memory.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) while a stream of the session runs.
    pub fn tokens(&self) -> Result<Vec<u32>, Error> {
        Ok(self.model.engine().session_tokens(self.id)?)
    }

    /// The scope of the keys and values that the session holds.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) while a stream of the session runs.
    pub fn scope(&self) -> Result<CacheScope, Error> {
        Ok(self.model.engine().session_scope(self.id)?)
    }

    /// The settings of the session's last request, as loaded from a file if there was none since. A mask is not kept in a file.
    pub fn options(&self) -> Option<GenerateOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops everything behind the first `length` tokens; returns the number kept. The number is 0 if a sliding window no longer
    /// holds what the next token would see.
    ///
    /// Requests do so by themselves. Calling this frees the pages earlier.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) while a stream of the session runs.
    pub fn rollback(&self, length: usize) -> Result<usize, Error> {
        Ok(self.model.engine().truncate_session(self.id, length)?)
    }

    /// Clears the text and the settings. A running stream of the session goes on.
    pub fn reset(&mut self) {
        *self = self.model.session();
    }

    /// Saves the session to a file: tokens, keys and values as they are, and the settings of the last request.
    ///
    /// The file appears whole or not at all: if saving fails or the process is killed, a file that was there stays. The session
    /// may be used meanwhile; the file holds the session's state at the time of the call.
    ///
    /// # Errors
    ///
    /// [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) while a stream of the session runs;
    /// [`Error::Format`] if the file cannot be made, [`Error::SessionFile`] if it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<SavedSession, Error> {
        self.save_with_progress(path, |_| ControlFlow::Continue(()))
    }

    /// Like [`save`](Self::save), but `progress` receives the progress and may cancel.
    ///
    /// # Errors
    ///
    /// The errors of [`save`](Self::save), and [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled).
    pub fn save_with_progress(
        &self,
        path: impl AsRef<Path>,
        progress: impl FnMut(SessionProgress) -> ControlFlow<()>,
    ) -> Result<SavedSession, Error> {
        let path = path.as_ref();
        let mut output = OutputFile::create(path, Existing::Replace)?;
        let saved = self.write_to(&mut output, progress).map_err(|error| error.of_file(path))?;
        output.commit()?;
        Ok(saved)
    }

    /// Writes the bytes of [`save`](Self::save) to any writer.
    ///
    /// # Errors
    ///
    /// The errors of [`save_with_progress`](Self::save_with_progress).
    pub fn write_to(
        &self,
        output: &mut dyn Write,
        mut progress: impl FnMut(SessionProgress) -> ControlFlow<()>,
    ) -> Result<SavedSession, Error> {
        let written = self.write_all_to(output, &mut progress)?;
        Ok(SavedSession { tokens: written.tokens.len(), bytes: written.bytes })
    }

    /// Like [`write_to`](Self::write_to); returns the tokens, the settings and the number of bytes.
    pub(crate) fn write_all_to(
        &self,
        output: &mut dyn Write,
        progress: &mut dyn FnMut(SessionProgress) -> ControlFlow<()>,
    ) -> Result<Written, Error> {
        let snapshot = self.model.engine().snapshot(self.id)?;
        let (identity, options) = (self.model.identity(), self.options());
        let bytes = session_file::write(output, &snapshot, &identity, options.as_ref(), progress)?;
        Ok(Written { tokens: snapshot.state().tokens.clone(), options, bytes })
    }

    fn remember(&self, options: &GenerateOptions) {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = Some(options.clone());
    }
}

impl Model {
    /// Loads a session that was [saved](Session::save) with this model. A text continues from the loaded session as it would have
    /// without saving and loading, bit for bit.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if the file cannot be opened. [`Error::SessionFile`] if it is no whole, undamaged file of a session, or
    /// one of another model, tokenizer, adapter, type of keys and values, or arithmetic; the message says which.
    /// [`Error::Engine`] if the text does not fit the context or the cache.
    pub fn load_session(&self, path: impl AsRef<Path>) -> Result<Session, Error> {
        self.load_session_with_progress(path, |_| ControlFlow::Continue(()))
    }

    /// Like [`load_session`](Self::load_session), but `progress` receives the progress and may cancel.
    ///
    /// # Errors
    ///
    /// The errors of [`load_session`](Self::load_session), and
    /// [`DeviceError::Cancelled`](brasa_graph::device::DeviceError::Cancelled).
    pub fn load_session_with_progress(
        &self,
        path: impl AsRef<Path>,
        progress: impl FnMut(SessionProgress) -> ControlFlow<()>,
    ) -> Result<Session, Error> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| Error::File { path: path.to_owned(), error })?;
        self.read_session(&mut BufReader::new(file), progress).map_err(|error| error.of_file(path))
    }

    /// Reads a session from anywhere, as [`load_session`](Self::load_session) does from a file.
    ///
    /// # Errors
    ///
    /// The errors of [`load_session_with_progress`](Self::load_session_with_progress).
    pub fn read_session(
        &self,
        input: &mut dyn Read,
        mut progress: impl FnMut(SessionProgress) -> ControlFlow<()>,
    ) -> Result<Session, Error> {
        let session = self.session();
        let options = session_file::read(input, self.engine(), session.id, &self.identity(), &mut progress)?;
        *session.options.lock().unwrap_or_else(PoisonError::into_inner) = options;
        Ok(session)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.engine().close_session(self.id);
    }
}
