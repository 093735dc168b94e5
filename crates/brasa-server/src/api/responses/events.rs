//! The events of a response that is streamed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::items::{
    Head, Status, call_item, call_item_id, message_item, reasoning_item, status_at, text_part,
};
use crate::answer::choices::{Answers, Call, ChatStep, Delta};
use crate::http::{ids, sse};
use crate::request::custom::CallKind;

/// The open item of a stream, with its id and content so far.
enum Open {
    Nothing,
    Reasoning(String, String),
    Message(String, String),
    Call(String, Call),
}

/// Writes the events of one response: items open and close one after the other, and events are numbered.
struct Writer {
    events: Arc<sse::Events>,
    number: usize,
    open: Open,
    output: Vec<Value>,
}

impl Writer {
    async fn send(&mut self, event: &str, mut value: Value) -> Result<(), sse::Gone> {
        value["type"] = event.into();
        value["sequence_number"] = self.number.into();
        self.number += 1;
        self.events.send_named(event, &value).await
    }

    async fn add(&mut self, item: Value) -> Result<(), sse::Gone> {
        let index = self.output.len();
        self.send("response.output_item.added", json!({"output_index": index, "item": item})).await
    }

    async fn done(&mut self, item: Value) -> Result<(), sse::Gone> {
        let index = self.output.len();
        self.send("response.output_item.done", json!({"output_index": index, "item": item})).await?;
        self.output.push(item);
        Ok(())
    }

    /// Closes the open item and gives it the status `status`.
    async fn close(&mut self, status: Status) -> Result<(), sse::Gone> {
        let index = self.output.len();
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => Ok(()),
            Open::Reasoning(id, text) => {
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send("response.reasoning_text.done", done).await?;
                self.done(reasoning_item(&id, &text, status)).await
            }
            Open::Message(id, text) => {
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
                self.send("response.output_text.done", done).await?;
                let done = json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part(&text)});
                self.send("response.content_part.done", done).await?;
                self.done(message_item(&id, &text, status)).await
            }
            Open::Call(id, call) => {
                let (event, done) = match call.kind {
                    CallKind::Function => (
                        "response.function_call_arguments.done",
                        json!({"item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments}),
                    ),
                    CallKind::Custom => (
                        "response.custom_tool_call_input.done",
                        json!({"item_id": id, "output_index": index, "input": call.arguments}),
                    ),
                };
                self.send(event, done).await?;
                self.done(call_item(&id, &call, status)).await
            }
        }
    }

    async fn open_message(&mut self) -> Result<(), sse::Gone> {
        self.close(Status::Completed).await?;
        let id = ids::name("msg_");
        self.add(message_item(&id, "", Status::InProgress)).await?;
        let index = self.output.len();
        let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part("")});
        self.send("response.content_part.added", part).await?;
        self.open = Open::Message(id, String::new());
        Ok(())
    }

    async fn write(&mut self, delta: Delta) -> Result<(), sse::Gone> {
        let index = self.output.len();
        match delta {
            Delta::Reasoning(text) => {
                if !matches!(self.open, Open::Reasoning(..)) {
                    self.close(Status::Completed).await?;
                    let id = ids::name("rs_");
                    self.add(reasoning_item(&id, "", Status::InProgress)).await?;
                    self.open = Open::Reasoning(id, String::new());
                }
                let index = self.output.len();
                let Open::Reasoning(id, whole) = &mut self.open else { return Ok(()) };
                whole.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
                self.send("response.reasoning_text.delta", delta).await
            }
            Delta::Content(text) => {
                if !matches!(self.open, Open::Message(..)) {
                    self.open_message().await?;
                }
                let index = self.output.len();
                let Open::Message(id, whole) = &mut self.open else { return Ok(()) };
                whole.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": []});
                self.send("response.output_text.delta", delta).await
            }
            Delta::CallBegin { id: call_id, name, kind, .. } => {
                self.close(Status::Completed).await?;
                let id = call_item_id(kind);
                let call = Call { id: call_id, name, kind, arguments: String::new() };
                self.add(call_item(&id, &call, Status::InProgress)).await?;
                self.open = Open::Call(id, call);
                Ok(())
            }
            Delta::CallArguments { text, .. } => {
                let Open::Call(id, call) = &mut self.open else { return Ok(()) };
                call.arguments.push_str(&text);
                let delta = json!({"item_id": id, "output_index": index, "delta": text});
                let event = match call.kind {
                    CallKind::Function => "response.function_call_arguments.delta",
                    CallKind::Custom => "response.custom_tool_call_input.delta",
                };
                self.send(event, delta).await
            }
        }
    }
}

pub(super) async fn stream_answer(
    events: Arc<sse::Events>,
    head: Head,
    mut answers: Answers,
) -> Result<(), sse::Gone> {
    let mut writer =
        Writer { events: Arc::clone(&events), number: 0, open: Open::Nothing, output: Vec::new() };
    for event in ["response.created", "response.in_progress"] {
        writer.send(event, json!({"response": head.response(&[], None)})).await?;
    }
    while let Some((_, step)) = sse::unless_gone(&events, answers.next()).await? {
        match step {
            Ok(ChatStep::Delta(delta, _)) => writer.write(delta).await?,
            Ok(ChatStep::Prefill) => {}
            Ok(ChatStep::End(ended)) => {
                let status = status_at(Some(&ended));
                let is_silent = match writer.open {
                    Open::Nothing => true,
                    Open::Reasoning(..) => status == Status::Completed,
                    _ => false,
                };
                if writer.output.is_empty() && is_silent {
                    // An answer without a word is a message all the same.
                    writer.open_message().await?;
                }
                writer.close(status).await?;
                let response = head.response(&writer.output, Some(&ended));
                let event = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
                return writer.send(&event, json!({"response": response})).await;
            }
            Err(error) => {
                let mut response = head.response(&writer.output, None);
                response["status"] = "failed".into();
                response["error"] = json!({"code": error.code, "message": error.message});
                return writer.send("response.failed", json!({"response": response})).await;
            }
        }
    }
    Ok(())
}
