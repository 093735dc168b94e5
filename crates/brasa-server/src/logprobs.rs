//! Probabilities of tokens, as each API shows them.

use std::sync::Arc;

use brasa::{Model, Token};
use serde_json::{Map, Value, json};

/// Shows a token with its probability.
pub(crate) type ShowToken = Box<dyn Fn(&Token) -> Value + Send>;

/// The log-probability of what is impossible; JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// A number that JSON can write.
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

/// A token in the form of llama.cpp's completions.
pub(crate) fn native_form(model: &Model, token: &Token) -> Value {
    let with_id = |id: u32, logprob: f32| {
        let mut shown = one(model, id, logprob);
        shown["id"] = id.into();
        shown
    };
    let mut shown = with_id(token.id, token.logprob.unwrap_or(IMPOSSIBLE));
    let top: Vec<Value> = token.top.iter().map(|&(id, logprob)| with_id(id, logprob)).collect();
    shown["top_logprobs"] = top.into();
    shown
}

fn one(model: &Model, id: u32, logprob: f32) -> Value {
    let bytes = model.tokenizer().piece_bytes(id).map(std::borrow::Cow::into_owned).unwrap_or_default();
    json!({"token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes})
}

/// The lists of the older completions: tokens, their probabilities, alternatives, and places in the text.
#[derive(Default)]
pub(crate) struct Legacy {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl Legacy {
    /// Adds a token that begins at a place of the text, counted in characters. The first token of a text has no probability.
    pub fn push(&mut self, model: &Model, token: &Token, offset: usize) {
        let name = |id: u32| model.tokenizer().piece(id).unwrap_or_default();
        self.tokens.push(name(token.id).into());
        self.text_offset.push(offset.into());
        self.token_logprobs.push(token.logprob.map_or(Value::Null, |logprob| finite(logprob).into()));
        let top = token.top.iter().map(|&(id, logprob)| (name(id), finite(logprob).into()));
        let top = token.logprob.map(|_| Value::Object(top.collect::<Map<_, _>>()));
        self.top_logprobs.push(top.unwrap_or_default());
    }

    /// The lists as JSON; they are empty afterwards.
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

/// The tokens of a text with the probabilities that the model gives them, `top` alternatives each. Blocks.
///
/// # Errors
///
/// The engine's refusal of the text, and its failure.
pub(crate) fn score(model: &Model, ids: &[u32], top: usize) -> Result<Vec<Token>, brasa::Error> {
    let first = ids.first().map(|&id| Token { id, ..Token::default() });
    let mut tokens: Vec<Token> = first.into_iter().collect();
    model.score(ids, |logits| {
        if let Some(&id) = ids.get(tokens.len()) {
            tokens.push(scored(logits, id, top));
        }
    })?;
    Ok(tokens)
}

fn scored(logits: &[f32], id: u32, top: usize) -> Token {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let logprob = |id: u32| (f64::from(logits[id as usize]) - largest - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top, by_logit);
    }
    order.truncate(top);
    order.sort_unstable_by(by_logit);
    let top = order.into_iter().map(|id| (id, logprob(id))).collect();
    Token { id, logprob: Some(logprob(id)), top, ..Token::default() }
}

/// Shows tokens in the form of chat completions.
pub(crate) fn shower(model: &Model) -> ShowToken {
    let model = Arc::new(model.clone());
    Box::new(move |token| chat_form(&model, token))
}
