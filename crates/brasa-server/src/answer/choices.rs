//! Answers of a chat: the text of choices, split into thoughts, the answer proper and calls, with the tokens' probabilities.
//!
//! Chat completions, responses and Anthropic's messages all read their answers with this module, streamed or whole.

use std::collections::VecDeque;

use brasa::tokenizer::{AnswerEvent, AnswerParser, InputReader};
use brasa::{FinishReason, Fragment, Metrics};
use serde_json::Value;

use crate::answer::generate::{Choices, End, Step};
use crate::answer::logprobs::ShowToken;
use crate::http::error::Result;
use crate::http::ids;
use crate::request::custom::CallKind;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    /// A part of the thoughts.
    Reasoning(String),
    /// A part of the answer proper.
    Content(String),
    /// The beginning of a call.
    CallBegin { index: usize, id: String, name: String, kind: CallKind },
    /// A part of a call's arguments, or of a custom tool's text.
    CallArguments { index: usize, text: String, kind: CallKind },
}

impl Delta {
    /// Appends the text of `next` if it continues this part; returns false if it does not.
    fn go_on(&mut self, next: &Self) -> bool {
        let (whole, more) = match (self, next) {
            (Self::Reasoning(whole), Self::Reasoning(more)) | (Self::Content(whole), Self::Content(more)) => {
                (whole, more)
            }
            (
                Self::CallArguments { index, text, .. },
                Self::CallArguments { index: of_next, text: more, .. },
            ) if index == of_next => (text, more),
            _ => return false,
        };
        *whole += more;
        true
    }
}

/// An event of one choice.
pub(crate) enum ChatStep {
    /// A part of the answer, and the tokens since the last part.
    Delta(Delta, Vec<Value>),
    /// A part of the prompt has been computed. Sent on request only.
    Prefill,
    /// The end of the choice, and the tokens since the last part.
    End(Ended),
}

/// The end of an answer, and the tokens that were not reported before.
pub(crate) struct Ended {
    pub end: End,
    pub logprobs: Vec<Value>,
    /// Tokens of the thoughts.
    pub reasoning_tokens: usize,
    /// True if the answer has calls.
    pub has_calls: bool,
}

/// Splits the fragments of one answer into parts.
struct AnswerReader {
    settings: AnswerSettings,
    logprobs: Vec<Value>,
    reasoning_tokens: usize,
    /// True if the last text was thoughts.
    is_thinking: bool,
    has_calls: bool,
    /// Reads the text out of the open call, if the call is of a custom tool.
    input: Option<InputReader>,
    /// True once the answer has all the calls that it may have and has begun a further one.
    is_cut: bool,
}

/// The answers of a request.
pub(crate) struct Answers {
    choices: Choices,
    each: Vec<AnswerReader>,
    queue: VecDeque<(usize, ChatStep)>,
}

/// Settings by which an answer is read.
pub(crate) struct AnswerSettings {
    /// Splits the text into thoughts, content and calls.
    pub parser: AnswerParser,
    /// True if an answer ends before a second call.
    pub one_call: bool,
    /// The names of custom tools.
    pub custom: Vec<String>,
    /// True for a model family whose ids of calls have nine characters.
    pub short_ids: bool,
    /// Shows the probability of a token, if requested.
    pub show_token: Option<ShowToken>,
}

impl Answers {
    /// The answers of `choices`, each read by its own settings.
    pub fn new(choices: Choices, settings: impl IntoIterator<Item = AnswerSettings>) -> Self {
        let answers = settings.into_iter().map(|settings| AnswerReader {
            settings,
            logprobs: Vec::new(),
            reasoning_tokens: 0,
            is_thinking: false,
            has_calls: false,
            input: None,
            is_cut: false,
        });
        Self { choices, each: answers.collect(), queue: VecDeque::new() }
    }

    /// The next part of an answer, or an end; `None` when all answers have ended.
    ///
    /// # Errors
    ///
    /// The error of a choice.
    pub async fn next(&mut self) -> Option<(usize, Result<ChatStep>)> {
        loop {
            if let Some((index, step)) = self.queue.pop_front() {
                return Some((index, Ok(step)));
            }
            let (index, step) = self.choices.next().await?;
            let answer = &mut self.each[index];
            match step {
                Err(error) => return Some((index, Err(error))),
                Ok(Step::Prefill) => return Some((index, Ok(ChatStep::Prefill))),
                Ok(Step::Fragments(fragments)) => {
                    let deltas = fragments.iter().flat_map(|fragment| answer.take(fragment));
                    for delta in deltas.collect::<Vec<_>>() {
                        self.put(index, delta);
                    }
                    if self.each[index].is_cut {
                        self.choices.end(index);
                    }
                }
                Ok(Step::End(end)) => {
                    let rest = answer.finish(end.reason);
                    let ended = Ended {
                        end,
                        logprobs: std::mem::take(&mut answer.logprobs),
                        reasoning_tokens: answer.reasoning_tokens,
                        has_calls: answer.has_calls,
                    };
                    for delta in rest {
                        self.put(index, delta);
                    }
                    self.put(index, ChatStep::End(ended));
                }
            }
        }
    }

    /// Queues a step. A part that continues the last queued part is merged with it.
    fn put(&mut self, index: usize, step: ChatStep) {
        if let (ChatStep::Delta(delta, logprobs), Some((last, ChatStep::Delta(whole, all)))) =
            (&step, self.queue.back_mut())
            && *last == index
            && whole.go_on(delta)
        {
            all.extend_from_slice(logprobs);
        } else {
            self.queue.push_back((index, step));
        }
    }

    /// The cost of a choice up to its last step.
    pub fn cost(&self, index: usize) -> &Metrics {
        self.choices.cost(index)
    }

    /// All answers, whole.
    ///
    /// # Errors
    ///
    /// The first error of a choice.
    pub async fn collect(mut self) -> Result<Vec<WholeAnswer>> {
        let mut wholes: Vec<WholeAnswer> = self.each.iter().map(|_| WholeAnswer::default()).collect();
        while let Some((index, step)) = self.next().await {
            wholes[index].take(step?);
        }
        Ok(wholes)
    }
}

/// A whole answer.
#[derive(Default)]
pub(crate) struct WholeAnswer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    pub logprobs: Vec<Value>,
    pub ended: Option<Ended>,
}

/// A call in an answer.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub id: String,
    pub name: String,
    pub kind: CallKind,
    /// JSON arguments, or a custom tool's text.
    pub arguments: String,
}

impl WholeAnswer {
    /// Adds a step to the answer.
    pub fn take(&mut self, step: ChatStep) {
        match step {
            ChatStep::Delta(delta, logprobs) => {
                self.logprobs.extend(logprobs);
                match delta {
                    Delta::Reasoning(text) => self.reasoning += &text,
                    Delta::Content(text) => self.content += &text,
                    Delta::CallBegin { id, name, kind, .. } => {
                        self.calls.push(Call { id, name, kind, arguments: String::new() });
                    }
                    Delta::CallArguments { index, text, .. } => {
                        if let Some(call) = self.calls.get_mut(index) {
                            call.arguments += &text;
                        }
                    }
                }
            }
            ChatStep::Prefill => {}
            ChatStep::End(mut ended) => {
                self.logprobs.append(&mut ended.logprobs);
                self.ended = Some(ended);
            }
        }
    }
}

impl AnswerReader {
    fn take(&mut self, fragment: &Fragment) -> Vec<ChatStep> {
        if self.is_cut {
            return Vec::new();
        }
        if let (Some(show), Some(token)) = (&self.settings.show_token, &fragment.token) {
            self.logprobs.push(show(token));
        }
        let events = self.settings.parser.push(&fragment.text);
        let steps = self.steps(events);
        if fragment.token.is_some() && self.is_thinking {
            self.reasoning_tokens += 1;
        }
        steps
    }

    fn finish(&mut self, reason: FinishReason) -> Vec<ChatStep> {
        if self.is_cut {
            return Vec::new();
        }
        let rest = match reason {
            FinishReason::Length | FinishReason::ContextFull => self.settings.parser.cut_off(),
            _ => self.settings.parser.finish(),
        };
        self.steps(rest)
    }

    fn steps(&mut self, events: Vec<AnswerEvent>) -> Vec<ChatStep> {
        let deltas: Vec<Delta> = events.into_iter().filter_map(|event| self.delta(event)).collect();
        let steps =
            deltas.into_iter().map(|delta| ChatStep::Delta(delta, std::mem::take(&mut self.logprobs)));
        steps.collect()
    }

    fn delta(&mut self, event: AnswerEvent) -> Option<Delta> {
        self.is_cut |= self.settings.one_call && matches!(event, AnswerEvent::CallBegin { index: 1.., .. });
        if self.is_cut {
            return None;
        }
        self.is_thinking = matches!(event, AnswerEvent::Reasoning(_));
        match event {
            AnswerEvent::Reasoning(text) => Some(Delta::Reasoning(text)),
            AnswerEvent::Content(text) => Some(Delta::Content(text)),
            AnswerEvent::CallBegin { index, name } => {
                self.has_calls = true;
                let id = if self.settings.short_ids { ids::nine_characters() } else { ids::name("call_") };
                self.input = self.settings.custom.contains(&name).then(InputReader::default);
                let kind = if self.input.is_some() { CallKind::Custom } else { CallKind::Function };
                Some(Delta::CallBegin { index, id, name, kind })
            }
            AnswerEvent::CallArguments { index, text } => match &mut self.input {
                None => Some(Delta::CallArguments { index, text, kind: CallKind::Function }),
                Some(input) => {
                    let text = input.push(&text);
                    (!text.is_empty()).then_some(Delta::CallArguments { index, text, kind: CallKind::Custom })
                }
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_up_what_goes_on_where_it_ends_and_nothing_else() {
        let arguments =
            |index, text: &str| Delta::CallArguments { index, text: text.into(), kind: CallKind::Function };
        let mut content = Delta::Content("a".into());
        assert!(content.go_on(&Delta::Content("b".into())));
        assert!(!content.go_on(&Delta::Reasoning("c".into())));
        assert!(!content.go_on(&arguments(0, "{")));
        assert_eq!(content, Delta::Content("ab".into()));
        let mut call = arguments(0, "{");
        assert!(call.go_on(&arguments(0, "}")));
        assert!(!call.go_on(&arguments(1, "{")));
        assert_eq!(call, arguments(0, "{}"));
    }
}
