//! A conversation whose keys and values stay cached.

use brasa_engine::SessionId;

use crate::{Error, GenerateOptions, Message, Model, TokenStream};

/// Keeps keys and values between requests.
///
/// Each request gives the *whole* text. The beginning that it shares with the text before, counted in tokens, is not
/// computed again. So a chat template may rewrite history (as thinking models' do), and the answer is still that of a
/// fresh run, bit for bit in deterministic modes.
///
/// A session holds a clone of its [`Model`], so it can be kept anywhere. Dropping it frees its pages.
#[derive(Debug)]
pub struct Session {
    model: Model,
    id: SessionId,
}

impl Session {
    pub(crate) fn new(model: Model) -> Self {
        let id = model.engine().open_session();
        Self { model, id }
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
        let prompt = self.model.chat_prompt(messages)?;
        self.generate_ids(prompt, options)
    }

    /// Like [`Model::generate_ids`], but reuses the keys and values of the last request.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::chat`].
    pub fn generate_ids(&self, prompt: Vec<u32>, options: &GenerateOptions) -> Result<TokenStream, Error> {
        self.model.start(prompt, options, Some(self.id))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.engine().close_session(self.id);
    }
}
