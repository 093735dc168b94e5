use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn of a conversation, with the field names of OpenAI's chat format, which the templates expect.
///
/// serde reads messages as [`Message::read`] does: a null is an absent field, and thoughts may stand under `reasoning` or `thinking`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text or the parts of the message.
    #[serde(skip_serializing_if = "Content::is_missing")]
    pub content: Content,
    /// The reasoning that an assistant wrote before its answer. Templates see it as `thinking` too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The assistant's calls: `{"type": "function", "function": {"name": …, "arguments": {…}}}`. Arguments may be an object or its
    /// JSON text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// The id of the call that a `tool` message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the speaker, or of the tool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All other fields, for templates that read them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts such as `{"type": "text", "text": …}`.
    Parts(Vec<Value>),
    /// No content, as beside tool calls. Templates do not see the field.
    #[default]
    Missing,
}

impl Content {
    fn is_missing(&self) -> bool {
        *self == Self::Missing
    }
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(content.into()), ..Self::default() }
    }
}
