//! Conversations and grammars, prepared for a model: prompts, templates, masks.

use std::sync::Arc;

use brasa_engine::MaskSource;
use brasa_grammar::Grammar;
use brasa_tokenizer::{ChatOptions, Message, ParseSpecial, ToolFormat};

use super::Model;
use crate::Error;

impl Model {
    /// Compiles a grammar into a mask for [`GenerateOptions::mask`](crate::GenerateOptions::mask). With [`chat`](Self::chat) and
    /// [`turn`](Self::turn) a reasoning model may think freely first.
    ///
    /// The first grammar of a model takes longer: about a second for a vocabulary of 150,000 tokens. Later ones take
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Grammar`] says where the grammar is wrong, or which part of it is not supported.
    pub fn grammar(&self, grammar: &Grammar) -> Result<Arc<dyn MaskSource>, Error> {
        Ok(self.0.grammars.compile(grammar)?)
    }

    /// The token ids of a conversation, ready for the answer.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        self.chat_prompt_with(messages, &ChatOptions::default())
    }

    /// Like [`chat_prompt`](Self::chat_prompt), with tools, thinking and other arguments of the template.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat).
    pub fn chat_prompt_with(
        &self,
        messages: &[Message],
        options: &ChatOptions<'_>,
    ) -> Result<Vec<u32>, Error> {
        let missing;
        let template = if let Some(template) = &self.0.template {
            template
        } else {
            // Asked again, the tokenizer says why there is none.
            missing = self.0.tokenizer.chat_template()?;
            &missing
        };
        // A user's words are text, even if they look like a control token.
        Ok(self.0.tokenizer.encode_chat(template, messages, options, ParseSpecial::No)?)
    }

    /// The form in which the model writes calls of tools.
    pub fn tool_format(&self) -> ToolFormat {
        self.0.tool_format
    }
}
