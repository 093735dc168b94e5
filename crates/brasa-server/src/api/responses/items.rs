//! A response and the items of its output.

use brasa::FinishReason;
use serde_json::{Map, Value, json};

use crate::answer::{Call, Ended};
use crate::custom::CallKind;
use crate::ids;
use crate::usage::Usage;

/// Fields of a response that are known before its first token: its id, its model and its settings.
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub settings: Map<String, Value>,
    pub temperature: f32,
    pub top_p: f32,
    pub max_output_tokens: Option<usize>,
}

impl Head {
    pub fn response(&self, output: &[Value], ended: Option<&Ended>) -> Value {
        let is_cut = ended.is_some_and(|ended| {
            matches!(ended.end.reason, FinishReason::Length | FinishReason::ContextFull)
        });
        let status = match ended {
            None => "in_progress",
            Some(_) if is_cut => "incomplete",
            Some(_) => "completed",
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
            "max_output_tokens": self.max_output_tokens,
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": ended.map(usage_of),
        });
        for (name, value) in &self.settings {
            let default = match name.as_str() {
                "tools" => json!([]),
                "tool_choice" => json!("auto"),
                "parallel_tool_calls" => json!(true),
                "metadata" => json!({}),
                "text" => json!({"format": {"type": "text"}}),
                _ => Value::Null,
            };
            response[name] = if value.is_null() { default } else { value.clone() };
        }
        response
    }
}

fn usage_of(ended: &Ended) -> Value {
    let mut usage = Usage { reasoning_tokens: ended.reasoning_tokens, ..Usage::default() };
    usage.add(&ended.end.cost, true);
    usage.responses()
}

pub(super) fn reasoning_item(id: &str, text: &str) -> Value {
    let content: Vec<Value> =
        if text.is_empty() { Vec::new() } else { vec![json!({"type": "reasoning_text", "text": text})] };
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null})
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(super) fn message_item(id: &str, text: Option<&str>) -> Value {
    let status = if text.is_some() { "completed" } else { "in_progress" };
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

pub(super) fn call_item(id: &str, call: &Call, status: &str) -> Value {
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
        "status": status,
    })
}

/// A new id for a call's item.
pub(super) fn call_item_id(kind: CallKind) -> String {
    ids::name(match kind {
        CallKind::Function => "fc_",
        CallKind::Custom => "ctc_",
    })
}
