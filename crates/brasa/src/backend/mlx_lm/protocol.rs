//! The lines between Brasa and the process: JSON objects with the id of their request.

use serde_json::{Map, Value};

/// The name of the backend, by which callers choose it and errors name it.
pub(super) const NAME: &str = "mlx_lm";

/// Most bytes of a line that the process writes.
pub(super) const MOST_LINE_BYTES: usize = 1 << 20;

/// A line of the process.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    /// Id of the request that the line answers; `None` if the process could not read an id.
    pub(super) id: Option<u64>,
    pub(super) event: Event,
}

/// The message of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// A command is done; its results.
    Done(Map<String, Value>),
    /// The prompt has been read and has this many tokens.
    Prompt(usize),
    /// More of the prompt has been computed.
    Prefilled,
    /// A piece of text; the token is `None` for text that was held back.
    Token { text: String, id: Option<u32> },
    /// The text ended.
    End(Ended),
    /// The request failed.
    Failed(String),
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Stop,
    Length,
    Context,
    Cancelled,
}

impl Reply {
    /// Reads a line, without its end.
    ///
    /// # Errors
    ///
    /// Describes what the line is in place of a reply.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        Self::parse(line).ok_or_else(|| format!("a line that is no reply: {}", excerpt(line)))
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let Value::Object(mut fields) = serde_json::from_slice(line).ok()? else { return None };
        let id = match fields.remove("id")? {
            Value::Null => None,
            id => Some(id.as_u64()?),
        };
        let event = if let Some(error) = fields.get("error") {
            Event::Failed(error.as_str()?.to_owned())
        } else if let Some(tokens) = fields.get("prompt_tokens") {
            Event::Prompt(usize::try_from(tokens.as_u64()?).ok()?)
        } else if fields.contains_key("prefilled") {
            Event::Prefilled
        } else if let Some(text) = fields.get("token") {
            let id = match fields.get("token_id")? {
                Value::Null => None,
                id => Some(u32::try_from(id.as_u64()?).ok()?),
            };
            Event::Token { text: text.as_str()?.to_owned(), id }
        } else if let Some(ended) = fields.get("done") {
            Event::End(match ended.as_str()? {
                "stop" => Ended::Stop,
                "length" => Ended::Length,
                "context" => Ended::Context,
                "cancelled" => Ended::Cancelled,
                _ => return None,
            })
        } else if fields.get("ok")? == &Value::Bool(true) {
            Event::Done(fields)
        } else {
            return None;
        };
        Some(Self { id, event })
    }
}

/// The beginning of a line, for a message.
fn excerpt(line: &[u8]) -> String {
    const MOST_BYTES: usize = 120;
    let shown = String::from_utf8_lossy(&line[..line.len().min(MOST_BYTES)]);
    let more = if line.len() > MOST_BYTES { " …" } else { "" };
    format!("`{}`{more}", shown.escape_debug())
}
