//! A response and the items of its output.

use brasa::{FinishReason, SamplingParams};
use serde_json::{Map, Value, json};

use crate::answer::choices::{Call, Ended};
use crate::answer::usage::Usage;
use crate::http::ids;
use crate::request::custom::CallKind;

/// The progress of an output item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The answer ended within the item.
    Incomplete,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The status of the last item of an answer that has ended.
pub(super) fn status_at(ended: Option<&Ended>) -> Status {
    if ended.is_some_and(is_cut) { Status::Incomplete } else { Status::Completed }
}

/// True if an answer ended at a limit of tokens.
fn is_cut(ended: &Ended) -> bool {
    matches!(ended.end.reason, FinishReason::Length | FinishReason::ContextFull)
}

/// Fields of a response that are known before its first token.
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    /// Settings of the request, which the response repeats.
    pub settings: Map<String, Value>,
    pub sampling: SamplingParams,
}

impl Head {
    /// A whole response with `output`, with every key of its specification.
    pub fn response(&self, output: &[Value], ended: Option<&Ended>) -> Value {
        let is_cut = ended.is_some_and(is_cut);
        let status = match ended {
            None => Status::InProgress,
            Some(_) => status_at(ended),
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": (status == Status::Completed).then(ids::unix_seconds),
            "status": status.name(),
            "background": false,
            "error": null,
            "incomplete_details": if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "service_tier": "default",
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "top_logprobs": 0,
            "usage": ended.map(usage_of),
        });
        for (name, value) in &self.settings {
            response[name] = value.clone();
        }
        response
    }
}

fn usage_of(ended: &Ended) -> Value {
    let mut usage = Usage { reasoning_tokens: ended.reasoning_tokens, ..Usage::default() };
    usage.add(&ended.end.cost, true);
    usage.responses()
}

pub(super) fn reasoning_item(id: &str, text: &str, status: Status) -> Value {
    let content: Vec<Value> =
        if text.is_empty() { Vec::new() } else { vec![json!({"type": "reasoning_text", "text": text})] };
    json!({
        "id": id,
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": null,
        "status": status.name(),
    })
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// A message; one in progress has no text yet.
pub(super) fn message_item(id: &str, text: &str, status: Status) -> Value {
    let content: Vec<Value> = (status != Status::InProgress).then(|| text_part(text)).into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status.name(), "content": content})
}

pub(super) fn call_item(id: &str, call: &Call, status: Status) -> Value {
    let (kind, text) = match call.kind {
        CallKind::Function => ("function_call", "arguments"),
        CallKind::Custom => ("custom_tool_call", "input"),
    };
    json!({
        "id": id,
        "type": kind,
        "call_id": call.id,
        "name": call.name,
        text: call.arguments,
        "status": status.name(),
    })
}

/// A new id for a call's item.
pub(super) fn call_item_id(kind: CallKind) -> String {
    ids::name(match kind {
        CallKind::Function => "fc_",
        CallKind::Custom => "ctc_",
    })
}
