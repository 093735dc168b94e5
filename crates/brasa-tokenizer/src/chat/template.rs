use std::sync::OnceLock;

use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;
use serde_json::Map;

use super::builtin::BuiltinTemplate;
use super::generation::{with_generation_marks, without_generation_tags};
use super::history::{CallForm, Words};
use super::marks::Marks;
use super::message::Message;
use super::sandbox::Sandbox;
use super::time::CivilTime;
use crate::Result;

/// A compiled chat template.
///
/// A template from a file is an untrusted program. It runs on a thread of its own, one rendering after the other, within limits
/// that are enough for a conversation of a thousand messages of 10 kB: 20 million instructions, 128 MiB built, 1 GiB read, 64 MiB
/// written, 10 seconds, 160 levels of lists, 1 MiB of source.
#[derive(Debug)]
pub struct ChatTemplate {
    form: Form,
    /// The texts of special tokens by role: `bos_token` and so on.
    tokens: Map<String, serde_json::Value>,
    words: Words,
    found: Found,
    /// The source with marks around the model's own text, and its compiled form; `None` if the template does not mark that text.
    marked: Option<(String, OnceLock<Sandbox>)>,
}

/// Features of a template, as far as they were determined.
#[derive(Debug, Default)]
pub(super) struct Found {
    call_form: OnceLock<CallForm>,
    takes_text: OnceLock<bool>,
    needs_content: OnceLock<bool>,
    shows_system: OnceLock<bool>,
    shows_later_system: OnceLock<bool>,
}

impl Found {
    pub fn call_form(&self, ask: impl FnOnce() -> Result<CallForm>) -> Result<CallForm> {
        answer(&self.call_form, ask)
    }

    pub fn takes_text(&self, ask: impl FnOnce() -> Result<bool>) -> Result<bool> {
        answer(&self.takes_text, ask)
    }

    pub fn needs_content(&self, ask: impl FnOnce() -> Result<bool>) -> Result<bool> {
        answer(&self.needs_content, ask)
    }

    pub fn shows_system(&self, ask: impl FnOnce() -> Result<bool>) -> Result<bool> {
        answer(&self.shows_system, ask)
    }

    pub fn shows_later_system(&self, ask: impl FnOnce() -> Result<bool>) -> Result<bool> {
        answer(&self.shows_later_system, ask)
    }
}

/// The value in `known`, or the result of `ask`, which is then stored. An error is not stored.
fn answer<T: Copy>(known: &OnceLock<T>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
    match known.get() {
        Some(answer) => Ok(*answer),
        None => ask().map(|answer| *known.get_or_init(|| answer)),
    }
}

#[derive(Debug)]
enum Form {
    Jinja(Sandbox),
    Builtin { form: BuiltinTemplate, guessed: bool },
}

/// A built-in template that was chosen because the checkpoint has no chat template of its own.
///
/// Printing the guess names the template and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateGuess {
    /// The chosen template.
    pub form: BuiltinTemplate,
}

impl std::fmt::Display for TemplateGuess {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.form.control_tokens().join(", ");
        write!(
            out,
            "the model has no chat template; {} is taken, because its vocabulary has {tokens}",
            self.form.name()
        )
    }
}

/// Options of a rendering besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions<'a> {
    /// True to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// JSON schemas of tools, `{"type": "function", "function": {…}}`; `None` is not the same as an empty list.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Documents to answer from, for templates that support them.
    pub documents: Option<&'a [serde_json::Value]>,
    /// The template's `enable_thinking`: may the model think first? `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Further variables of the template.
    pub variables: Map<String, serde_json::Value>,
    /// The time that `strftime_now` formats; `None` is the present.
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

/// A message as templates see it. The reasoning has the second name `thinking`, which gpt-oss uses.
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
    /// [`TokenizerError::Template`](crate::TokenizerError::Template) with the line of the mistake;
    /// [`TokenizerError::TemplateLimit`](crate::TokenizerError::TemplateLimit) when compiling takes too much.
    pub fn new<'a>(source: &str, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let sandbox = Sandbox::new(without_generation_tags(source))?;
        let marked = with_generation_marks(source).map(|source| (source, OnceLock::new()));
        Ok(Self { marked, ..Self::of(Form::Jinja(sandbox), token_map(tokens), Words::of(source)) })
    }

    /// A built-in template, without source.
    pub fn builtin<'a>(form: BuiltinTemplate, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self::of(Form::Builtin { form, guessed: false }, token_map(tokens), Words::default())
    }

    fn of(form: Form, tokens: Map<String, serde_json::Value>, words: Words) -> Self {
        Self { form, tokens, words, found: Found::default(), marked: None }
    }

    pub(super) fn words(&self) -> Words {
        self.words
    }

    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    pub(crate) fn forget_bos(&mut self) {
        self.tokens.shift_remove("bos_token");
    }

    /// The built-in form, if the template is one.
    pub fn as_builtin(&self) -> Option<BuiltinTemplate> {
        match self.form {
            Form::Jinja(_) => None,
            Form::Builtin { form, .. } => Some(form),
        }
    }

    /// The guess that [`Tokenizer::chat_template`](crate::Tokenizer::chat_template) made; `None` for a template that the
    /// checkpoint holds or the caller chose.
    pub fn guess(&self) -> Option<TemplateGuess> {
        match self.form {
            Form::Builtin { form, guessed: true } => Some(TemplateGuess { form }),
            Form::Builtin { .. } | Form::Jinja(_) => None,
        }
    }

    pub(crate) fn guessed(mut self) -> Self {
        if let Form::Builtin { guessed, .. } = &mut self.form {
            *guessed = true;
        }
        self
    }

    /// The conversation as text, to be encoded with special tokens parsed and none added.
    ///
    /// The template gets the messages unchanged; [`fit`](Self::fit) converts them to a form that it can read.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Template`](crate::TokenizerError::Template) if the template fails or refuses the conversation, with the
    /// template's message; [`TokenizerError::TemplateLimit`](crate::TokenizerError::TemplateLimit) if it exceeds a limit.
    pub fn render(&self, messages: &[Message], options: &ChatOptions<'_>) -> Result<String> {
        self.render_with(messages, options, &Marks::default())
    }

    /// Like [`render`](Self::render), for messages with marks. The text keeps the marks.
    pub(super) fn render_with(
        &self,
        messages: &[Message],
        options: &ChatOptions<'_>,
        marks: &Marks,
    ) -> Result<String> {
        let sandbox = match &self.form {
            Form::Builtin { form, .. } => {
                let bos = self.tokens.get("bos_token").and_then(|token| token.as_str()).unwrap_or_default();
                return Ok(form.render(bos, messages, options.add_generation_prompt));
            }
            Form::Jinja(sandbox) => sandbox,
        };
        self.render_in(sandbox, messages, options, marks)
    }

    /// Like [`render_with`](Self::render_with), but with a mark before and after each text that the model wrote, by the
    /// template's tags `{% generation %}`; `None` if it has no such tags.
    pub(super) fn render_turns(
        &self,
        messages: &[Message],
        options: &ChatOptions<'_>,
        marks: &Marks,
    ) -> Result<Option<String>> {
        let Some((source, compiled)) = &self.marked else { return Ok(None) };
        if compiled.get().is_none() {
            let sandbox = Sandbox::new(source.clone())?;
            compiled.get_or_init(|| sandbox);
        }
        compiled.get().map(|sandbox| self.render_in(sandbox, messages, options, marks)).transpose()
    }

    fn render_in(
        &self,
        sandbox: &Sandbox,
        messages: &[Message],
        options: &ChatOptions<'_>,
        marks: &Marks,
    ) -> Result<String> {
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
        sandbox.render(Value::from(Serde(&variables)), options.time, marks.clone())
    }
}

fn token_map<'a>(tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Map<String, serde_json::Value> {
    tokens.into_iter().map(|(role, text)| (role.to_owned(), text.into())).collect()
}
