use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn of a conversation, with the field names of OpenAI's chat format, which the templates expect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text or the parts of the message.
    #[serde(default, skip_serializing_if = "Content::is_missing")]
    pub content: Content,
    /// The reasoning that an assistant wrote before its answer. Templates see it as `thinking` too.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "thinking", alias = "reasoning")]
    pub reasoning_content: Option<String>,
    /// Calls that an assistant asks for: `{"type": "function", "function": {"name": …, "arguments": {…}}}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// The id of the call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the speaker, or of the tool that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Anything else that a template may ask for.
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
    /// The message says nothing, as beside tool calls. Templates do not see the field.
    #[default]
    Missing,
}

impl Content {
    fn is_missing(&self) -> bool {
        *self == Self::Missing
    }

    /// The text: that of all text parts together if there are parts.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            Self::Missing => String::new(),
        }
    }
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(content.into()), ..Self::default() }
    }
}
