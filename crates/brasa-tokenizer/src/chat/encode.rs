//! Encodes conversations to token ids.

use std::collections::BTreeSet;

use serde_json::Value;

use super::builtin::BuiltinTemplate;
use super::generation::{END, START};
use super::marks::{Edges, Marks, Place, change_message, change_value};
use super::message::Message;
use super::template::{ChatOptions, ChatTemplate};
use crate::{AddSpecial, ParseSpecial, Result, Tokenizer, TokenizerError};

/// A conversation with marks on the characters that do not come from the template.
pub(super) struct Marked {
    pub messages: Vec<Message>,
    pub tools: Option<Vec<Value>>,
    pub documents: Option<Vec<Value>>,
    pub marks: Marks,
}

impl Tokenizer {
    /// The checkpoint's chat template; without one, the built-in template with control tokens that the vocabulary has.
    ///
    /// [`ChatTemplate::guess`] returns the guess, if a built-in template was chosen.
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

    /// Compiles a template given as `source`, with the texts of this tokenizer's special tokens.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`] with the line of the mistake.
    pub fn chat_template_from(&self, source: &str) -> Result<ChatTemplate> {
        ChatTemplate::new(source, self.template_tokens())
    }

    /// A built-in template, with the text of this tokenizer's BOS.
    pub fn builtin_chat_template(&self, form: BuiltinTemplate) -> ChatTemplate {
        let mut template = ChatTemplate::builtin(form, self.template_tokens());
        if !self.added_around().0.iter().any(|id| Some(*id) == self.special_tokens().bos) {
            // A model that takes no BOS in front of a text takes none in front of a conversation.
            template.forget_bos();
        }
        template
    }

    /// The token ids of a conversation. Messages are [fitted](ChatTemplate::fit) to the template. Nothing is added to the
    /// template's text, so BOS is never doubled.
    ///
    /// `in_messages` decides whether texts of control tokens inside messages, tools and documents are parsed. With
    /// [`ParseSpecial::No`], a user who writes `<|im_end|>` cannot end a turn, however the template changes the message. The ids
    /// are otherwise those of the text that [`ChatTemplate::render`] returns.
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
        if in_messages == ParseSpecial::Yes {
            return self.encode(&template.render(&messages, options)?, AddSpecial::No, ParseSpecial::Yes);
        }
        let Marked { messages, tools, documents, marks } = self.marked(messages, options)?;
        let options =
            ChatOptions { tools: tools.as_deref(), documents: documents.as_deref(), ..options.clone() };
        self.encode_marked(&template.render_with(&messages, &options, &marks)?, &marks)
    }

    /// Fits the messages, and marks the characters of messages, tools and documents.
    pub(super) fn marked(&self, mut messages: Vec<Message>, options: &ChatOptions<'_>) -> Result<Marked> {
        let mut tools = options.tools.map(<[Value]>::to_vec);
        let mut documents = options.documents.map(<[Value]>::to_vec);
        let mut change_all = |change: &mut dyn FnMut(&mut String, Place)| {
            let mut change = |text: &mut String, place: Place| change(text, place);
            for message in &mut messages {
                change_message(message, &mut change);
            }
            tools.iter_mut().flatten().for_each(|tool| change_value(tool, &mut change));
            documents.iter_mut().flatten().for_each(|document| change_value(document, &mut change));
        };
        let edges = self.edges_of_control_tokens();
        let (mut has_edges, mut taken) = (false, BTreeSet::new());
        change_all(&mut |text, _| {
            for char in text.chars() {
                has_edges |= edges.contains(char);
                if char >= '\u{F0000}' {
                    taken.insert(char);
                }
            }
        });
        if !has_edges {
            return Ok(Marked { messages, tools, documents, marks: Marks::default() });
        }
        let full = || TokenizerError::message("messages", "they have nearly every private-use character");
        let marks = Marks::new(edges, &taken).ok_or_else(full)?;
        let word = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.' | '$');
        change_all(&mut |text, place| {
            // A template has to find `role`, even if a control token begins with an `r`.
            let is_name = place == Place::Name && text.chars().all(word) && !self.has_control_token(text);
            if !is_name && text.contains(|char| edges.contains(char)) {
                *text = marks.mark(text);
            }
        });
        Ok(Marked { messages, tools, documents, marks })
    }

    /// The ids of a rendered conversation with [marks](Self::marked).
    pub(super) fn encode_marked(&self, text: &str, marks: &Marks) -> Result<Vec<u32>> {
        let (plain, data) = marks.take_apart(text);
        self.encode_beside(&plain, &data)
    }

    /// The characters with which a control token begins or ends, in either case, and the marks of training.
    pub(crate) fn find_edges_of_control_tokens(&self) -> Edges {
        let control = self.vocabulary().iter().filter(|(_, _, kind)| kind.is_special());
        let edges =
            control.flat_map(|(_, text, _)| text.chars().next().into_iter().chain(text.chars().last()));
        let either_case = |char: char| char.to_lowercase().chain(char.to_uppercase()).chain([char]);
        edges.collect::<BTreeSet<char>>().into_iter().flat_map(either_case).chain([START, END]).collect()
    }

    /// True if a text contains the text of a control token.
    fn has_control_token(&self, text: &str) -> bool {
        let edges = self.edges_of_control_tokens();
        text.contains(|char| edges.contains(char))
            && self
                .encode(text, AddSpecial::No, ParseSpecial::Yes)
                .is_ok_and(|ids| ids.iter().any(|id| self.vocabulary().kind(*id).is_special()))
    }
}
