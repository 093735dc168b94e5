//! Rows to token ids.

use brasa_tokenizer::{
    AddSpecial, ChatOptions, ChatTemplate, EncodedTurns, Message, ParseSpecial, Tokenizer, TokenizerError,
    TrainedTurns,
};
use serde_json::Value;

use super::document::Document;
use super::row::{Fault, Row};

/// The tokenizer and the chat template that turn examples into token ids.
#[derive(Clone, Copy, Debug)]
pub struct Examples<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template. Without one, a prompt and its completion are one text, and conversations are refused.
    pub template: Option<&'a ChatTemplate>,
    /// Number of token ids of the model.
    pub vocab_size: usize,
}

/// Options of reading and encoding examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Which tokens are learned.
    pub learned: Learned,
    /// Whether a conversation is one document, or one for each turn of the assistant.
    pub turns: Turns,
    /// The template's `enable_thinking`.
    pub thinking: Option<bool>,
    /// Most rows of a document in a step.
    pub max_rows: usize,
    /// Whether longer documents are refused, cut or left out.
    pub long: Long,
    /// Whether a document ends with a learned token of padding, as in MLX-LM's trainer, unless it was cut. With padding, a
    /// document without learned tokens keeps its place.
    pub padding: Padding,
    /// True if rows are preferences. Each row then makes two documents, the chosen one first, and other rows are refused. If
    /// false, preferences are refused.
    pub preferences: bool,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            learned: Learned::default(),
            turns: Turns::default(),
            thinking: None,
            max_rows: 2048,
            long: Long::default(),
            padding: Padding::default(),
            preferences: false,
        }
    }
}

/// Which tokens are learned in conversations, and in prompts with completions. In plain texts all tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Learned {
    /// All turns of the assistant; the completions of prompts.
    #[default]
    Answers,
    /// The last turn of the assistant; the completions of prompts.
    LastAnswer,
    /// All tokens from the beginning of the assistant's last turn on, also those that the template adds after it. The last turn
    /// has to be the assistant's.
    FromLastAnswer,
    /// Every token.
    Everything,
}

/// Whether a conversation is one document, or one for each turn of the assistant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Turns {
    /// A conversation is one document.
    #[default]
    Together,
    /// Each of the assistant's turns ends a document of its own, rendered as the model sees the conversation when it answers.
    /// Needed for templates that render earlier turns in another way.
    Apart,
}

/// Whether a document that is longer than a step is refused, cut or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Long {
    /// Such an example is an error.
    #[default]
    Refuse,
    /// The example's end is cut off.
    Cut,
    /// The example is left out.
    Skip,
}

/// Whether a token of padding is learned, as trainers with padded batches may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Padding {
    /// No padding.
    #[default]
    None,
    /// The first token of padding, token 0, is learned, as MLX-LM's trainer learns it.
    FirstLearned,
}

const NO_ANSWER: &str = "add the assistant's turn, leave the row out, or learn every token";

impl Examples<'_> {
    /// The documents of a row. Each has a learned token.
    pub(super) fn documents(&self, row: Row, options: &DataOptions) -> Result<Vec<Document>, Fault> {
        if matches!(row, Row::Preference { .. }) != options.preferences {
            return Err(if options.preferences {
                Fault::new("no `chosen` and `rejected`", "a preference is learned of rows of both")
            } else {
                Fault::new("`chosen` and `rejected`", "rows of both are learned by a preference's loss")
            });
        }
        let documents = match row {
            Row::Preference { chosen, rejected } => [self.answer(&chosen)?, self.answer(&rejected)?].into(),
            Row::Chat { messages, tools } => self.chat(&messages, tools.as_deref(), options)?,
            Row::Completion { prompt, completion } => self.completion(prompt, completion, options)?,
            Row::Text(text) => {
                vec![Document::learned_from(self.with_end(self.begun(&text)?), 0)]
            }
            Row::Tokens { tokens, weights } => {
                vec![match weights {
                    Some(weights) => Document::weighted(tokens, &weights),
                    None => Document::learned_from(tokens, 0),
                }]
            }
        };
        for document in &documents {
            if let Some(id) = document.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                let hint = "the ids are those of another model";
                return Err(Fault::new(format!("token id {id}, the model has {}", self.vocab_size), hint));
            }
            if document.spans.is_empty() && options.padding == Padding::None {
                let what = format!("nothing to learn in {} tokens", document.tokens.len());
                return Err(Fault::new(what, "leave the row out"));
            }
        }
        Ok(documents)
    }

    fn chat(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
        options: &DataOptions,
    ) -> Result<Vec<Document>, Fault> {
        let Some(template) = self.template else {
            let hint = "give a chat template, or rows of `text`";
            return Err(Fault::new("a conversation, but the model has no chat template", hint));
        };
        let chat = ChatOptions { tools, thinking: options.thinking, ..ChatOptions::default() };
        let encode = |messages: &[Message], wanted| {
            self.tokenizer.encode_turns(template, messages, &chat, wanted).map_err(|error| fault(&error))
        };
        if options.learned == Learned::Everything {
            let EncodedTurns { ids, .. } = encode(messages, TrainedTurns::Last)?;
            return Ok(vec![Document::learned_from(ids, 0)]);
        }
        let answers = messages.iter().enumerate().filter(|(_, message)| message.role == "assistant");
        let answers: Vec<usize> = answers.map(|(turn, _)| turn).collect();
        let Some(&last) = answers.last() else {
            return Err(Fault::new("no assistant turn", NO_ANSWER));
        };
        if options.learned == Learned::FromLastAnswer {
            if last + 1 < messages.len() {
                let hint = "leave out the turns behind the assistant's, or learn every token";
                return Err(Fault::new("the last turn is not the assistant's", hint));
            }
            let EncodedTurns { ids, turns } = encode(messages, TrainedTurns::Last)?;
            let start = turns.last().map_or(ids.len(), |turn| turn.start);
            return Ok(vec![Document::learned_from(ids, start)]);
        }
        let encoded = match (options.learned, options.turns) {
            // What follows the last learned turn is of no use.
            (Learned::LastAnswer, _) => vec![encode(&messages[..=last], TrainedTurns::Last)?],
            (_, Turns::Together) => vec![encode(&messages[..=last], TrainedTurns::All)?],
            (_, Turns::Apart) => answers
                .into_iter()
                .map(|turn| encode(&messages[..=turn], TrainedTurns::Last))
                .collect::<Result<_, _>>()?,
        };
        let documents = encoded.into_iter().map(|EncodedTurns { ids, turns }| {
            if turns.iter().all(std::ops::Range::is_empty) {
                return Err(Fault::new("no assistant turn in what the template shows", NO_ANSWER));
            }
            Ok(Document::new(ids, turns))
        });
        documents.collect()
    }

    /// A document of a conversation with its last turn learned. Without a chat template, prompt and completion are joined to one
    /// text.
    fn answer(&self, messages: &[Message]) -> Result<Document, Fault> {
        let options = DataOptions { learned: Learned::LastAnswer, ..DataOptions::default() };
        let documents = match (self.template, messages) {
            (None, [prompt, answer]) if prompt.role == "user" => {
                self.completion(prompt.content.text(), answer.content.text(), &options)?
            }
            _ => self.chat(messages, None, &options)?,
        };
        documents.into_iter().next().ok_or_else(|| Fault::new("no assistant turn", NO_ANSWER))
    }

    fn completion(
        &self,
        prompt: String,
        completion: String,
        options: &DataOptions,
    ) -> Result<Vec<Document>, Fault> {
        if self.template.is_some() {
            let messages = [Message::new("user", prompt), Message::new("assistant", completion)];
            return self.chat(&messages, None, options);
        }
        let before = self.begun(&prompt)?;
        let ids = self.with_end(self.begun(&(prompt + &completion))?);
        let shared = match options.learned {
            Learned::Everything => 0,
            Learned::Answers | Learned::LastAnswer | Learned::FromLastAnswer => {
                before.iter().zip(&ids).take_while(|(a, b)| a == b).count()
            }
        };
        Ok(vec![Document::learned_from(ids, shared)])
    }

    /// The ids of a text with the tokenizer's leading special tokens. If the text begins with them already, they are not doubled.
    fn begun(&self, text: &str) -> Result<Vec<u32>, Fault> {
        let encoded = self.tokenizer.encode(text, AddSpecial::AsModel, ParseSpecial::Yes);
        let mut ids = encoded.map_err(|error| fault(&error))?;
        let (before, behind) = self.tokenizer.added_around();
        if !behind.is_empty() && ids.ends_with(behind) {
            ids.truncate(ids.len() - behind.len());
        }
        if let ([begin], [first, second, ..]) = (before, &ids[..])
            && begin == first
            && first == second
        {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The ids with the token that ends a text, unless they end with one.
    fn with_end(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let ended = ids.last().is_some_and(|&id| self.tokenizer.is_end_of_generation(id));
        ids.extend(self.tokenizer.special_tokens().eos.filter(|_| !ended));
        ids
    }
}

/// The tokenizer's error as a fault of a row, split into message and remedy.
fn fault(error: &TokenizerError) -> Fault {
    let text = error.to_string();
    match text.split_once("\nhint: ") {
        Some((what, hint)) => Fault::new(what, hint),
        None => Fault::new(text, "change the row, or leave it out"),
    }
}
