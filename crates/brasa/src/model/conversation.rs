//! What a model makes of a conversation: its prompt, the grammar of its answer, and the parts of the answer.

use std::sync::Arc;

use brasa_engine::MaskSource;
use brasa_grammar::Grammar;
use brasa_tokenizer::{AnswerParser, ChatOptions, Message, ParseSpecial, Thoughts, ToolChoice, ToolFormat};
use serde_json::Value;

use super::Model;
use crate::Error;

impl Model {
    /// Compiles a grammar for [`GenerateOptions::mask`](crate::GenerateOptions::mask), which holds answers to it.
    ///
    /// The first grammar of a model takes longer: about a second for a vocabulary of 150,000 tokens. Later ones take
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Grammar`] says where the grammar is wrong, or what of it is not supported.
    pub fn grammar(&self, grammar: &Grammar) -> Result<Arc<dyn MaskSource>, Error> {
        Ok(self.0.grammars.compile(grammar)?)
    }

    /// A mask for the answer to a chat's `prompt`: a model that thinks first may do so freely, and `mask` sets in behind the
    /// thoughts. [`chat`](Self::chat) does this by itself.
    pub fn after_thoughts(&self, prompt: &[u32], mask: Arc<dyn MaskSource>) -> Arc<dyn MaskSource> {
        self.0.grammars.after_thoughts(mask, self.0.thought_marks, &self.end_of_prompt(prompt))
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

    /// Splits the answer to `prompt` into thoughts and the answer proper.
    ///
    /// The marks are those of the model's chat template or vocabulary; the text of a stream holds them.
    pub fn thoughts(&self, prompt: &[u32]) -> Thoughts {
        Thoughts::new(self.0.thought_marks, &self.end_of_prompt(prompt))
    }

    /// Takes the answer to `prompt` apart into thoughts, content, and calls of tools.
    ///
    /// `tools` are the tools of the prompt, `{"type": "function", "function": {…}}` each. The text of a stream holds the marks
    /// around calls; the command line shows them as they are.
    pub fn answer_parser(&self, prompt: &[u32], tools: &[Value], choice: &ToolChoice) -> AnswerParser {
        let end = self.end_of_prompt(prompt);
        AnswerParser::new(self.0.tool_format, self.0.thought_marks, &end, tools, choice)
    }

    /// The form in which the model writes calls of tools.
    pub fn tool_format(&self) -> ToolFormat {
        self.0.tool_format
    }

    /// The grammar that an answer has to follow so that its calls of tools are right, in Lark as llguidance reads it; `None` if
    /// nothing is asked of the answer. [`ToolFormat::constraint`] says more.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if no grammar describes the model's calls, or if `choice` names a tool that is not there.
    pub fn tool_constraint(
        &self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<String>, Error> {
        Ok(self.0.tool_format.constraint(tools, choice, parallel, &self.0.tokenizer)?)
    }

    /// The grammar of answers that are either calls of tools or texts of `content`. Such answers are read by
    /// [`AnswerParser::either`].
    ///
    /// # Errors
    ///
    /// The errors of [`tool_constraint`](Self::tool_constraint), and [`Error::Tokenizer`] for models whose calls begin like other
    /// answers.
    pub fn calls_or(
        &self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
        content: Grammar,
    ) -> Result<Grammar, Error> {
        let calls = self.0.tool_format.marked_calls(tools, choice, parallel, &self.0.tokenizer)?;
        Ok(match calls {
            Some(calls) => Grammar::OneOf(vec![Grammar::Lark(calls), content]),
            None => content,
        })
    }

    /// The end of a prompt's text, long enough for any mark around thoughts.
    fn end_of_prompt(&self, prompt: &[u32]) -> String {
        // The longest mark is shorter than this many tokens.
        const LAST_TOKENS: usize = 32;
        let last = &prompt[prompt.len().saturating_sub(LAST_TOKENS)..];
        self.0.tokenizer.decode(last, false).unwrap_or_default()
    }
}
