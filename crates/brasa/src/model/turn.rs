//! One answer in a conversation: its prompt, its grammar and its parser.
//!
//! Prompt, grammar and reader have to agree: on the tools, on the form in which the model writes calls, and on whether the model
//! thinks first. So they are made together, and nowhere else.

use std::sync::Arc;

use brasa_engine::MaskSource;
use brasa_grammar::Grammar;
use brasa_tokenizer::{AnswerParser, ChatOptions, Message, OtherAnswers, Thoughts, ToolChoice};
use serde_json::Value;

use super::Model;
use crate::Error;

/// Requirements of an answer: tools, choice, format, template options.
#[derive(Clone, Debug, Default)]
pub struct TurnOptions<'a> {
    /// Tools that may be called, and the other arguments of the chat template.
    pub template: ChatOptions<'a>,
    /// Whether the answer may or must contain calls, and of which tool.
    pub choice: ToolChoice,
    /// True if an answer may have one call at most.
    pub one_call: bool,
    /// The form of an answer that contains no calls.
    pub form: AnswerForm,
}

/// The form of an answer behind the model's thoughts.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum AnswerForm {
    /// Any text.
    #[default]
    Free,
    /// A text that follows a grammar. If there are tools and the model decides, an answer is either calls or such a text.
    Grammar(Grammar),
    /// A text that a compiled grammar allows. It cannot be joined with calls that the model decides on.
    Mask(Arc<dyn MaskSource>),
}

impl std::fmt::Debug for AnswerForm {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Free => out.write_str("Free"),
            Self::Grammar(grammar) => out.debug_tuple("Grammar").field(grammar).finish(),
            Self::Mask(_) => out.write_str("Mask"),
        }
    }
}

/// One answer in a conversation, ready to be started. [`Model::turn`] makes one.
pub struct Turn {
    /// The token ids in front of the answer.
    pub prompt: Vec<u32>,
    /// The mask for [`GenerateOptions::mask`](crate::GenerateOptions::mask). A model that thinks first may do so freely; the mask
    /// sets in behind the thoughts.
    pub mask: Option<Arc<dyn MaskSource>>,
    /// Takes the answer apart into thoughts, content and calls.
    pub parser: AnswerParser,
    /// Splits the answer into thoughts and the rest, calls as they are written.
    pub thoughts: Thoughts,
}

/// The kinds of answers beside calls that a grammar allows, as far as they are known.
fn other_answers(grammar: &Grammar) -> OtherAnswers {
    let (Grammar::JsonSchema(schema) | Grammar::LenientJsonSchema(schema)) = grammar else {
        return OtherAnswers::Any;
    };
    let is_never_list = match schema.get("type") {
        Some(Value::String(kind)) => kind != "array",
        Some(Value::Array(kinds)) => kinds.iter().all(|kind| kind != "array"),
        _ => false,
    };
    if is_never_list { OtherAnswers::NoLists } else { OtherAnswers::Any }
}

impl Model {
    /// The next answer of a conversation.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat) and [`turn_behind`](Self::turn_behind).
    pub fn turn(&self, messages: &[Message], options: &TurnOptions<'_>) -> Result<Turn, Error> {
        self.turn_behind(self.chat_prompt_with(messages, &options.template)?, options)
    }

    /// The answer to a prompt that [`chat_prompt_with`](Self::chat_prompt_with) made of the same template options. The prompt may go
    /// on with the beginning of the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if no grammar describes the model's calls, or if the choice names a tool that is not there;
    /// [`Error::Grammar`] if a schema or a grammar is wrong or not supported; [`Error::Options`] for a compiled grammar beside
    /// tools.
    pub fn turn_behind(&self, prompt: Vec<u32>, options: &TurnOptions<'_>) -> Result<Turn, Error> {
        let TurnOptions { template, choice, one_call, form } = options;
        let tools: &[Value] = match choice {
            ToolChoice::None => &[],
            _ => template.tools.unwrap_or_default(),
        };
        let (format, tokenizer) = (self.0.tool_format, &self.0.tokenizer);
        // Calls that are required are the whole answer.
        let is_either = !tools.is_empty() && !choice.is_required() && !matches!(form, AnswerForm::Free);
        let mask = match form {
            AnswerForm::Grammar(content) if is_either => {
                let calls = format
                    .calls_alone(tools, choice, !one_call, other_answers(content), tokenizer)?
                    .map(Grammar::Lark);
                let both = calls.map(|calls| Grammar::OneOf(vec![calls, content.clone()]));
                Some(self.grammar(&both.unwrap_or_else(|| content.clone()))?)
            }
            AnswerForm::Mask(_) if is_either => {
                let reason =
                    "a compiled grammar cannot be joined with calls of tools; give the grammar itself";
                return Err(Error::Options(reason.into()));
            }
            AnswerForm::Mask(mask) if tools.is_empty() => Some(Arc::clone(mask)),
            AnswerForm::Grammar(content) if tools.is_empty() => Some(self.grammar(content)?),
            _ => {
                let calls = format.constraint(tools, choice, !one_call, tokenizer)?.map(Grammar::Lark);
                calls.map(|calls| self.grammar(&calls)).transpose()?
            }
        };
        let (marks, end) = (self.0.thought_marks, self.end_of_prompt(&prompt));
        let parser = AnswerParser::new(format, marks, &end, tools, choice);
        Ok(Turn {
            mask: mask.map(|mask| self.0.grammars.after_thoughts(mask, marks, &end)),
            parser: if is_either { parser.either() } else { parser },
            thoughts: Thoughts::new(marks, &end),
            prompt,
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
