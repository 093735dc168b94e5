//! Conversations to ids.

use serde_json::Value;

use super::builtin::BuiltinTemplate;
use super::message::{Content, Message};
use super::template::{ChatOptions, ChatTemplate};
use crate::{AddSpecial, ParseSpecial, Result, Tokenizer, TokenizerError};

/// Private-use characters put around a control token that was found in a message.
const OPEN: char = '\u{F0A1E}';
const CLOSE: char = '\u{F0A1F}';

/// A conversation in which the texts of control tokens are text.
pub(super) struct Protected {
    pub messages: Vec<Message>,
    pub tools: Option<Vec<Value>>,
    pub documents: Option<Vec<Value>>,
}

impl Tokenizer {
    /// The checkpoint's chat template; if it has none, the built-in form whose control tokens it has.
    ///
    /// [`ChatTemplate::guess`] tells that the form was guessed.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`] for a template that does not compile, [`TokenizerError::NoTemplate`] if there is neither.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        if let Some(source) = self.chat_template_source() {
            return self.chat_template_from(source);
        }
        let has = |token: &str| self.token_to_id(token).is_some();
        let form = BuiltinTemplate::choose(has).ok_or(TokenizerError::NoTemplate)?;
        Ok(self.builtin_chat_template(form).guessed())
    }

    /// A template from elsewhere, with the texts of this tokenizer's special tokens.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`] with the line of the fault.
    pub fn chat_template_from(&self, source: &str) -> Result<ChatTemplate> {
        ChatTemplate::new(source, self.template_tokens())
    }

    /// A built-in form, with the text of this tokenizer's BOS.
    pub fn builtin_chat_template(&self, form: BuiltinTemplate) -> ChatTemplate {
        let mut template = ChatTemplate::builtin(form, self.template_tokens());
        if !self.added_around().0.iter().any(|id| Some(*id) == self.special_tokens().bos) {
            // A model that takes no BOS in front of a text takes none in front of a conversation.
            template.forget_bos();
        }
        template
    }

    /// The ids of a conversation, whose messages are [fitted](ChatTemplate::fit) to the template. Nothing is added to what the
    /// template writes, so BOS is never doubled.
    ///
    /// `in_messages` decides what the texts of control tokens mean inside messages, tools and documents: with
    /// [`ParseSpecial::No`] a user who writes `<|im_end|>` ends no turn.
    ///
    /// # Errors
    ///
    /// Errors of [`ChatTemplate::fit`], [`ChatTemplate::render`] and [`encode`](Self::encode).
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &ChatOptions<'_>,
        in_messages: ParseSpecial,
    ) -> Result<Vec<u32>> {
        let messages = template.fit(messages, options)?;
        let Protected { messages, tools, documents } = self.protected(messages, options, in_messages)?;
        let options =
            ChatOptions { tools: tools.as_deref(), documents: documents.as_deref(), ..options.clone() };
        self.encode_protected(&template.render(&messages, &options)?)
    }

    /// Fitted messages, tools and documents, in which control tokens are text if `in_messages` says so.
    pub(super) fn protected(
        &self,
        messages: Vec<Message>,
        options: &ChatOptions<'_>,
        in_messages: ParseSpecial,
    ) -> Result<Protected> {
        let others = options.tools.into_iter().chain(options.documents).flatten();
        let found = match in_messages {
            ParseSpecial::Yes => Vec::new(),
            ParseSpecial::No => {
                let texts = messages.iter().flat_map(texts).chain(others.map(ToString::to_string));
                self.control_tokens_in(texts)?
            }
        };
        let messages = messages.into_iter().map(|message| marked(message, &found)).collect();
        let all_marked = |values: Option<&[Value]>| {
            let mut values = values.map(<[Value]>::to_vec);
            if !found.is_empty() {
                values.iter_mut().flatten().for_each(|value| mark_all(value, &found));
            }
            values
        };
        Ok(Protected { messages, tools: all_marked(options.tools), documents: all_marked(options.documents) })
    }

    /// The ids of a rendered conversation whose messages were [protected](Self::protected).
    pub(super) fn encode_protected(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        // Between the marks is text; a template may have torn a pair apart, and then its token has no neighbours.
        for (index, part) in text.split([OPEN, CLOSE]).enumerate() {
            let parse = if index % 2 == 1 { ParseSpecial::No } else { ParseSpecial::Yes };
            ids.extend(self.encode(part, AddSpecial::No, parse)?);
        }
        Ok(ids)
    }

    /// The control tokens whose texts occur in texts, longest first.
    fn control_tokens_in(&self, texts: impl Iterator<Item = String>) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for text in texts {
            for id in self.encode(&text, AddSpecial::No, ParseSpecial::Yes)? {
                if self.vocabulary().kind(id).is_special()
                    && let Some(token) = self.vocabulary().text(id).filter(|token| text.contains(*token))
                {
                    found.push(token.to_owned());
                }
            }
        }
        found.sort_by_key(|token| std::cmp::Reverse(token.len()));
        found.dedup();
        Ok(found)
    }
}

fn texts(message: &Message) -> Vec<String> {
    let mut texts = vec![message.content.text()];
    texts.extend(message.reasoning_content.clone());
    texts.extend(message.tool_calls.iter().map(ToString::to_string));
    texts
}

fn marked(mut message: Message, tokens: &[String]) -> Message {
    if tokens.is_empty() {
        return message;
    }
    match &mut message.content {
        Content::Text(text) => *text = mark(text, tokens),
        Content::Parts(parts) => parts.iter_mut().for_each(|part| mark_all(part, tokens)),
        Content::Missing => {}
    }
    message.reasoning_content = message.reasoning_content.map(|text| mark(&text, tokens));
    message.tool_calls.iter_mut().for_each(|call| mark_all(call, tokens));
    message
}

fn mark_all(value: &mut Value, tokens: &[String]) {
    match value {
        Value::String(text) => *text = mark(text, tokens),
        Value::Array(list) => list.iter_mut().for_each(|item| mark_all(item, tokens)),
        Value::Object(map) => map.values_mut().for_each(|item| mark_all(item, tokens)),
        _ => {}
    }
}

fn mark(text: &str, tokens: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if let Some(token) = tokens.iter().find(|token| rest.starts_with(token.as_str())) {
            out.extend([OPEN]);
            out.push_str(token);
            out.extend([CLOSE]);
            rest = &rest[token.len()..];
            continue;
        }
        // A forged mark is dropped.
        if char != OPEN && char != CLOSE {
            out.push(char);
        }
        rest = &rest[char.len_utf8()..];
    }
    out
}
