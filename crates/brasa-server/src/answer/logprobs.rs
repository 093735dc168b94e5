//! Probabilities of tokens, as each API shows them.

use std::sync::Arc;

use brasa::{Model, Token};
use serde_json::{Map, Value, json};

/// A function that shows a token with its probability as JSON.
pub(crate) type ShowToken = Box<dyn Fn(&Token) -> Value + Send>;

/// The log-probability that is written for −∞; JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// The log-probability as a number that JSON can write: −∞ becomes −9999.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// A token in the form of chat completions, with its alternatives.
pub(crate) fn chat_form(model: &Model, token: &Token) -> Value {
    let mut shown = one(model, token.id, token.logprob.unwrap_or(IMPOSSIBLE));
    let top: Vec<Value> = token.top.iter().map(|&(id, logprob)| one(model, id, logprob)).collect();
    shown["top_logprobs"] = top.into();
    shown
}

/// A token in the form of llama.cpp's completions. With `is_final`, probabilities of the distribution that it was drawn from;
/// otherwise log-probabilities of the model's own distribution.
pub(crate) fn native_form(model: &Model, token: &Token, is_final: bool) -> Value {
    let with_id = |id: u32, logprob: f32| {
        let mut shown = one(model, id, logprob);
        shown["id"] = id.into();
        if let Some(shown) = shown.as_object_mut().filter(|_| is_final) {
            shown.shift_remove("logprob");
            shown.insert("prob".into(), logprob.exp().into());
        }
        shown
    };
    let mut shown = with_id(token.id, token.logprob.unwrap_or(IMPOSSIBLE));
    let top: Vec<Value> = token.top.iter().map(|&(id, logprob)| with_id(id, logprob)).collect();
    shown[if is_final { "top_probs" } else { "top_logprobs" }] = top.into();
    shown
}

fn one(model: &Model, id: u32, logprob: f32) -> Value {
    let bytes = model.tokenizer().piece_bytes(id).map(std::borrow::Cow::into_owned).unwrap_or_default();
    json!({"token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes})
}

/// The lists of the older completions: tokens, their probabilities, alternatives, and offsets in the text.
#[derive(Default)]
pub(crate) struct Legacy {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl Legacy {
    /// Adds a token that begins at `offset` in the text, counted in characters. The first token of a text has no probability.
    pub fn push(&mut self, model: &Model, token: &Token, offset: usize) {
        let name = |id: u32| model.tokenizer().piece(id).unwrap_or_default();
        self.tokens.push(name(token.id).into());
        self.text_offset.push(offset.into());
        self.token_logprobs.push(token.logprob.map_or(Value::Null, |logprob| finite(logprob).into()));
        let top = token.top.iter().map(|&(id, logprob)| (name(id), finite(logprob).into()));
        let top = token.logprob.map(|_| Value::Object(top.collect::<Map<_, _>>()));
        self.top_logprobs.push(top.unwrap_or_default());
    }

    /// Returns the lists as JSON and empties them.
    pub fn take(&mut self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = std::mem::take(self);
        json!({
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}

/// Shows tokens in the form of chat completions.
pub(crate) fn shower(model: &Model) -> ShowToken {
    let model = Arc::new(model.clone());
    Box::new(move |token| chat_form(&model, token))
}
