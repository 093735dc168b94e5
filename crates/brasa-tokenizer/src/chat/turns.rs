//! Encodes conversations to token ids, with the ranges of the model's own turns, for training.
//!
//! A template with tags `{% generation %}` marks the model's text. For other templates, the text before a turn is found by
//! rendering the messages before it with the turn opened, and the text up to the turn's end by rendering the messages including
//! it. Both must be prefixes of the whole conversation's text; a template that shows earlier turns in another way (Qwen3 leaves
//! out earlier thoughts) is refused, and each of its turns can be trained on as the last one.

use std::ops::Range;

use super::encode::Marked;
use super::generation::{END, START};
use super::marks::Marks;
use super::message::Message;
use super::template::{ChatOptions, ChatTemplate};
use crate::{Result, Tokenizer, TokenizerError};

/// Which of a conversation's assistant turns are trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrainedTurns {
    /// All turns of the assistant.
    #[default]
    All,
    /// The last turn of the assistant.
    Last,
}

/// A conversation as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedTurns {
    /// All ids, as [`Tokenizer::encode_chat`] makes them.
    pub ids: Vec<u32>,
    /// Ranges of ids of each wanted turn, in order: the model's own text, up to the token that ends the turn.
    pub turns: Vec<Range<usize>>,
}

const APART: &str = "train on each turn by itself, as the last one of its conversation, or give a template with \
                     `{% generation %}` around what the model writes";

impl Tokenizer {
    /// The ids of a conversation, and the ranges that the assistant wrote. No turn is opened at the end, whatever `options` say.
    /// Control tokens inside messages are text.
    ///
    /// A conversation without an assistant's turn has no turns.
    ///
    /// # Errors
    ///
    /// Errors of [`encode_chat`](Self::encode_chat); [`TokenizerError::Turns`] if the template does not tell where a turn begins
    /// and ends.
    pub fn encode_turns(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &ChatOptions<'_>,
        wanted: TrainedTurns,
    ) -> Result<EncodedTurns> {
        let messages = template.fit(messages, options)?;
        let Marked { messages, tools, documents, marks } = self.marked(messages, options)?;
        let options = ChatOptions {
            tools: tools.as_deref(),
            documents: documents.as_deref(),
            add_generation_prompt: false,
            ..options.clone()
        };
        let (text, mut spans) = match template.render_turns(&messages, &options, &marks)? {
            Some(marked) => taken_apart(&marked),
            None => by_prefixes(template, &messages, &options, &marks, wanted)?,
        };
        if wanted == TrainedTurns::Last {
            spans.drain(..spans.len().saturating_sub(1));
        }
        let ids = self.encode_marked(&text, &marks)?;
        let mut turns = Vec::with_capacity(spans.len());
        for span in spans {
            // A token that lies across the beginning is the model's: it would have written the rest of it.
            let start = self.ids_within(&text[..span.start], &marks, &ids)?;
            let end = self.ids_within(&text[..span.end], &marks, &ids)?.max(start);
            let turn = &ids[start..end];
            let last = turn.iter().rposition(|&id| self.is_end_of_generation(id));
            turns.push(start..last.map_or(end, |last| start + last + 1));
        }
        Ok(EncodedTurns { ids, turns })
    }

    /// The number of `ids` that the text `before` consists of.
    fn ids_within(&self, before: &str, marks: &Marks, ids: &[u32]) -> Result<usize> {
        let own = self.encode_marked(before, marks)?;
        Ok(own.iter().zip(ids).take_while(|(a, b)| a == b).count())
    }
}

/// Removes the marks of a text; returns the marked spans. Spans with only another mark between them are joined.
fn taken_apart(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut spans) = (String::with_capacity(marked.len()), Vec::<Range<usize>>::new());
    let mut start = None;
    for char in marked.chars() {
        match char {
            START => start = Some(text.len()),
            END => {
                let span = start.take().unwrap_or(text.len())..text.len();
                match spans.last_mut().filter(|last| last.end == span.start) {
                    Some(last) => last.end = span.end,
                    None => spans.push(span),
                }
            }
            char => text.push(char),
        }
    }
    (text, spans)
}

/// The rendered conversation and the spans of its wanted turns.
fn by_prefixes(
    template: &ChatTemplate,
    messages: &[Message],
    options: &ChatOptions<'_>,
    marks: &Marks,
    wanted: TrainedTurns,
) -> Result<(String, Vec<Range<usize>>)> {
    let whole = template.render_with(messages, options, marks)?;
    let opened = ChatOptions { add_generation_prompt: true, ..options.clone() };
    let assistants = messages.iter().enumerate().filter(|(_, message)| message.role == "assistant");
    let mut turns: Vec<usize> = assistants.map(|(turn, _)| turn).collect();
    if wanted == TrainedTurns::Last {
        turns.drain(..turns.len().saturating_sub(1));
    }
    let mut spans = Vec::with_capacity(turns.len());
    for turn in turns {
        let refuse = |reason: String, hint| TokenizerError::Turns { turn, reason, hint };
        let failed = |error: TokenizerError| {
            refuse(
                format!("where it begins is not known, {error}"),
                "begin the conversation with the user's turn",
            )
        };
        let before = template.render_with(&messages[..turn], &opened, marks).map_err(failed)?;
        if !whole.starts_with(&before) {
            let what = "the template does not open this turn as it shows it in the whole conversation";
            return Err(refuse(what.into(), APART));
        }
        let end = if turn + 1 == messages.len() {
            whole.len()
        } else {
            let up_to = template.render_with(&messages[..=turn], options, marks)?;
            if !whole.starts_with(&up_to) {
                let what = "the template shows this turn in another way once others follow";
                return Err(refuse(what.into(), APART));
            }
            up_to.len()
        };
        if end < before.len() {
            return Err(refuse("the template ends this turn before it begins".into(), APART));
        }
        spans.push(before.len()..end);
    }
    Ok((whole, spans))
}
