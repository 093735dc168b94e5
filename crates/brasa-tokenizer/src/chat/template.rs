use std::io::Write;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde::Serialize;
use serde_json::Map;

use super::builtin::BuiltinTemplate;
use super::environment::{RAISED, environment, set_time, without_generation_tags};
use super::message::Message;
use super::time::CivilTime;
use crate::{Result, TokenizerError};

/// Most that a rendering may write.
const MOST_BYTES: usize = 64 << 20;
/// The largest template that is compiled; published ones stay below 50 kB.
const LARGEST_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    form: Form,
    /// The texts of special tokens by role: `bos_token` and so on.
    tokens: Map<String, serde_json::Value>,
}

#[derive(Debug)]
enum Form {
    Jinja(Box<Environment<'static>>),
    Builtin(BuiltinTemplate),
}

/// Arguments of a rendering besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions<'a> {
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// JSON schemas of tools, `{"type": "function", "function": {…}}`; `None` is not the same as an empty list.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Documents to answer from, for templates that know them.
    pub documents: Option<&'a [serde_json::Value]>,
    /// The template's `enable_thinking`: may the model think first? `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Any other variable.
    pub variables: Map<String, serde_json::Value>,
    /// The moment that `strftime_now` tells; `None` is now.
    pub time: Option<CivilTime>,
}

impl Default for ChatOptions<'_> {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            documents: None,
            thinking: None,
            variables: Map::new(),
            time: None,
        }
    }
}

#[derive(Serialize)]
struct Variables<'a> {
    messages: Vec<Visible<'a>>,
    tools: Option<&'a [serde_json::Value]>,
    documents: Option<&'a [serde_json::Value]>,
    add_generation_prompt: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_thinking: Option<bool>,
    #[serde(flatten)]
    tokens: &'a Map<String, serde_json::Value>,
    #[serde(flatten)]
    other: &'a Map<String, serde_json::Value>,
}

/// A message as templates see it: those of gpt-oss call the reasoning `thinking`.
#[derive(Serialize)]
struct Visible<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    #[serde(flatten)]
    message: &'a Message,
}

impl ChatTemplate {
    /// Compiles Jinja source. `tokens` are variables for the texts of special tokens: `bos_token`, `eos_token`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`] with the line of the fault.
    pub fn new<'a>(source: &str, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        if source.len() > LARGEST_SOURCE_BYTES {
            return Err(TokenizerError::Template {
                reason: format!("{} bytes found, expected at most {LARGEST_SOURCE_BYTES}", source.len()),
            });
        }
        let mut environment = environment().map_err(|error| failure(&error))?;
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| failure(&error))?;
        Ok(Self { form: Form::Jinja(Box::new(environment)), tokens: token_map(tokens) })
    }

    /// One of the forms that need no source.
    pub fn builtin<'a>(form: BuiltinTemplate, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { form: Form::Builtin(form), tokens: token_map(tokens) }
    }

    pub(crate) fn forget_bos(&mut self) {
        self.tokens.shift_remove("bos_token");
    }

    /// The built-in form, if the template is one.
    pub fn as_builtin(&self) -> Option<BuiltinTemplate> {
        match self.form {
            Form::Jinja(_) => None,
            Form::Builtin(form) => Some(form),
        }
    }

    /// The conversation as text, to be encoded with special tokens parsed and none added.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`] when the template fails or refuses the conversation, in its own words;
    /// [`TokenizerError::TemplateLimit`] when it does too much.
    pub fn render(&self, messages: &[Message], options: &ChatOptions<'_>) -> Result<String> {
        let environment = match &self.form {
            Form::Builtin(form) => {
                let bos = self.tokens.get("bos_token").and_then(|token| token.as_str()).unwrap_or_default();
                return Ok(form.render(bos, messages, options.add_generation_prompt));
            }
            Form::Jinja(environment) => environment,
        };
        let mut environment = environment.as_ref().clone();
        set_time(&mut environment, options.time);
        let messages = messages
            .iter()
            .map(|message| Visible { thinking: message.reasoning_content.as_deref(), message })
            .collect();
        let variables = Variables {
            messages,
            tools: options.tools,
            documents: options.documents,
            add_generation_prompt: options.add_generation_prompt,
            enable_thinking: options.thinking,
            tokens: &self.tokens,
            other: &options.variables,
        };
        let mut out = Bounded(Vec::new());
        let template = environment.get_template(NAME).map_err(|error| failure(&error))?;
        template
            .render_captured_to(Value::from(Serde(&variables)), &mut out)
            .map_err(|error| failure(&error))?;
        String::from_utf8(out.0).map_err(|error| TokenizerError::Template { reason: error.to_string() })
    }
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_BYTES {
            return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn token_map<'a>(tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Map<String, serde_json::Value> {
    tokens.into_iter().map(|(role, text)| (role.to_owned(), text.into())).collect()
}

fn failure(error: &minijinja::Error) -> TokenizerError {
    let detail = error.detail().unwrap_or_default();
    if let Some(raised) = detail.strip_prefix(RAISED) {
        return TokenizerError::Template { reason: raised.to_owned() };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TokenizerError::TemplateLimit { limit: "number of steps" },
        ErrorKind::WriteFailure => TokenizerError::TemplateLimit { limit: "length of text" },
        _ if detail.contains("recursion limit") => TokenizerError::TemplateLimit { limit: "depth of calls" },
        kind => {
            let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
            let detail = if detail.is_empty() { kind.to_string() } else { format!("{kind}: {detail}") };
            TokenizerError::Template { reason: detail + &line }
        }
    }
}
