//! A conversation whose keys and values stay cached.

use brasa_engine::SessionId;

use crate::{Error, GenerateOptions, Message, Model, TokenStream};

/// Keeps keys and values between requests.
///
/// Each request gives the *whole* text; what it has in common with the text before, counted in tokens from the
/// start, is not computed again. So a chat template may rewrite history (as thinking models' do) and the answer is
/// still that of a fresh run, bit for bit in deterministic modes.
#[derive(Debug)]
pub struct Session<'m> {
    model: &'m Model,
    id: SessionId,
}

impl<'m> Session<'m> {
    pub(crate) fn new(model: &'m Model) -> Self {
        Self { model, id: model.engine().open_session() }
    }

    /// As [`Model::chat`], reusing what the last request left.
    ///
    /// # Errors
    ///
    /// Those of [`Model::chat`]. [`EngineError::SessionBusy`](brasa_engine::EngineError::SessionBusy) comes through the
    /// stream where an earlier stream of this session still runs.
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<TokenStream, Error> {
        let prompt = self.model.chat_prompt(messages)?;
        self.generate_ids(prompt, options)
    }

    /// As [`Model::generate_ids`], reusing what the last request left.
    ///
    /// # Errors
    ///
    /// Those of [`Session::chat`].
    pub fn generate_ids(&self, prompt: Vec<u32>, options: &GenerateOptions) -> Result<TokenStream, Error> {
        self.model.start(prompt, options, Some(self.id))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.model.engine().close_session(self.id);
    }
}
