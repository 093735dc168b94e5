//! Conversion of messages from the clients' form to the template's form.
//!
//! Clients follow OpenAI: arguments of calls are JSON text, content may come in parts, `developer` is a role. Templates differ:
//! most want arguments as objects, some as text; some support neither `developer` nor calls nor tools. The form is found by
//! rendering a call with the template once, and by words in its source.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::exact;
use super::message::{Content, Message};
use super::reader::Arguments;
use super::template::{ChatOptions, ChatTemplate};
use crate::{Result, TokenizerError};

/// Words in the source of a template that reveal its features.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words {
    /// The template shows tools.
    tools: bool,
    /// The template supports the role `developer`.
    developer: bool,
    /// The template requires ids of nine letters and digits, as Mistral's do.
    short_ids: bool,
}

impl Words {
    /// Finds the words in a template's source.
    pub fn of(source: &str) -> Self {
        Self {
            tools: source.contains("tools"),
            developer: source.contains("developer"),
            short_ids: source.contains("length != 9"),
        }
    }
}

/// The form in which a template reads earlier calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// Arguments as an object.
    Object,
    /// Arguments as JSON text.
    Text,
    /// The template does not show calls: they become content.
    Content,
}

/// A call of an earlier answer.
struct Call {
    id: Option<String>,
    name: String,
    arguments: Arguments,
}

impl Call {
    /// The arguments as an object. A text that is not an object becomes the only member of one.
    fn object(&self) -> Value {
        match &self.arguments {
            Arguments::Object(arguments) => Value::Object(arguments.clone()),
            Arguments::Other(text) => json!({"arguments": text}),
        }
    }
}

impl ChatTemplate {
    /// The messages in the form that the template reads: arguments of calls parsed or written, text parts joined by line breaks,
    /// `developer` as `system`, tools and calls as text if the template does not support them.
    ///
    /// Arguments of an earlier call that are no JSON object, such as an object that was cut off, stay text for a template that
    /// takes text, and become `{"arguments": "the text"}` for others. Whole numbers in the JSON text of arguments keep all
    /// digits.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Message`], [`TokenizerError::MissingField`] or [`TokenizerError::NotText`] for a message that no
    /// template could read, such as one with a part that is no text. [`TokenizerError::TemplateLimit`] if the template exceeds a
    /// limit.
    pub fn fit(&self, messages: &[Message], options: &ChatOptions<'_>) -> Result<Vec<Message>> {
        let mut fitted: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        let mut names: HashMap<String, String> = HashMap::new();
        for (index, message) in messages.iter().enumerate() {
            let mut message = message.clone();
            if message.role == "developer" && !self.words().developer {
                "system".clone_into(&mut message.role);
            }
            message.content = message.content.flat(&format!("messages[{index}].content"))?;
            let calls = calls(&message.tool_calls, index)?;
            for call in &calls {
                names.extend(call.id.clone().map(|id| (id, call.name.clone())));
            }
            if message.role == "tool" && message.name.is_none() {
                message.name = message.tool_call_id.as_ref().and_then(|id| names.get(id).cloned());
            }
            if !calls.is_empty() || message.role == "tool" {
                self.fit_calls(&mut message, &calls)?;
            } else if message.content == Content::Missing {
                // Templates join the text of an answer with other text.
                message.content = Content::Text(String::new());
            }
            // A template that knows no calls knows no results of tools: they are told by the user.
            if message.role == "tool" && self.call_form()? == CallForm::Content {
                message = told(&message);
                if let Some(last) = fitted.last_mut().filter(|last| last.role == "user") {
                    last.content =
                        Content::Text(format!("{}\n\n{}", last.content.text(), message.content.text()));
                    continue;
                }
            }
            // Several system messages at the beginning are one.
            if message.role == "system"
                && let [first] = &mut fitted[..]
                && first.role == "system"
            {
                first.content =
                    Content::Text(format!("{}\n\n{}", first.content.text(), message.content.text()));
                continue;
            }
            fitted.push(message);
        }
        if let Some(tools) = options.tools.filter(|tools| !tools.is_empty() && !self.words().tools) {
            introduce(tools, &mut fitted);
        }
        if fitted.iter().any(|message| message.role == "system") && !self.shows_system()? {
            fitted = without_system(fitted, 0);
        }
        // Agents put one in front of later questions too.
        if fitted.iter().skip(1).any(|message| message.role == "system") && !self.shows_later_system()? {
            fitted = without_system(fitted, 1);
        }
        Ok(fitted)
    }

    fn fit_calls(&self, message: &mut Message, calls: &[Call]) -> Result<()> {
        if self.words().short_ids {
            message.tool_call_id = message.tool_call_id.as_deref().map(short_id);
        }
        let form = self.call_form()?;
        if calls.is_empty() {
            return Ok(());
        }
        if form == CallForm::Content {
            let mut text = message.content.text();
            for call in calls {
                let line = if text.is_empty() { "" } else { "\n" };
                let call = exact::exact_json(&json!({"name": call.name, "parameters": call.object()}));
                let _ = write!(text, "{line}{call}");
            }
            message.content = Content::Text(text);
            message.tool_calls.clear();
            return Ok(());
        }
        for (written, call) in message.tool_calls.iter_mut().zip(calls) {
            let arguments = &mut written["function"]["arguments"];
            match &call.arguments {
                Arguments::Other(text) if form == CallForm::Text || self.takes_text()? => {
                    *arguments = text.as_str().into();
                }
                _ if form == CallForm::Object => *arguments = call.object(),
                _ if arguments.as_str().is_none_or(|text| text.trim().is_empty()) => {
                    *arguments = exact::exact_json(&call.object()).into();
                }
                _ => {}
            }
            if self.words().short_ids {
                written["id"] = short_id(call.id.as_deref().unwrap_or(&call.name)).into();
            }
        }
        if message.content == Content::Missing && self.needs_content()? {
            message.content = Content::Text(String::new());
        }
        Ok(())
    }

    /// The form in which the template reads earlier calls.
    fn call_form(&self) -> Result<CallForm> {
        self.found().call_form(|| {
            for (form, arguments) in [
                (CallForm::Object, json!({"needle_key": "needle_value"})),
                (CallForm::Text, json!("{\"needle_key\": \"needle_value\"}")),
            ] {
                let text = self.try_call(&arguments, Content::Text(String::new()))?;
                // A template that prints an object as Python does wants text, and one that escapes quotation marks an object.
                let is_right = |text: &str| {
                    text.contains("needle_value")
                        && !text.contains("'needle_key'")
                        && !text.contains("\\\"needle_key")
                };
                if text.is_some_and(|text| is_right(&text)) {
                    return Ok(form);
                }
            }
            Ok(CallForm::Content)
        })
    }

    /// True if a template that takes arguments as objects shows a text unchanged.
    fn takes_text(&self) -> Result<bool> {
        self.found().takes_text(|| {
            let text = self.try_call(&json!("{needle_text"), Content::Text(String::new()))?;
            Ok(text.is_some_and(|text| text.contains("{needle_text") && !text.contains("\"{needle_text")))
        })
    }

    /// True if the template fails for an answer with calls and without content.
    fn needs_content(&self) -> Result<bool> {
        self.found().needs_content(|| {
            let arguments = match self.call_form()? {
                CallForm::Text => json!("{}"),
                _ => json!({}),
            };
            Ok(self.try_call(&arguments, Content::Missing)?.is_none())
        })
    }

    /// True if the template shows system messages.
    fn shows_system(&self) -> Result<bool> {
        self.found().shows_system(|| {
            let text =
                self.try_render(&[Message::new("system", "needle_system"), Message::new("user", "u")])?;
            Ok(text.is_some_and(|text| text.contains("needle_system")))
        })
    }

    /// True if the template shows a system message that is not the first message.
    fn shows_later_system(&self) -> Result<bool> {
        self.found().shows_later_system(|| {
            let messages = [("user", "u"), ("assistant", "a"), ("system", "needle_system"), ("user", "v")];
            let text = self.try_render(&messages.map(|(role, text)| Message::new(role, text)))?;
            Ok(text.is_some_and(|text| text.contains("needle_system")))
        })
    }

    /// The text of a conversation with a call; `None` if the template refuses it.
    fn try_call(&self, arguments: &Value, content: Content) -> Result<Option<String>> {
        let call = json!({"id": "call00001", "type": "function", "function": {"name": "needle", "arguments": arguments}});
        let answer =
            Message { role: "assistant".into(), content, tool_calls: vec![call], ..Message::default() };
        let result = Message {
            tool_call_id: Some("call00001".into()),
            name: Some("needle".into()),
            ..Message::new("tool", "r")
        };
        self.try_render(&[Message::new("user", "u"), answer, result])
    }

    fn try_render(&self, messages: &[Message]) -> Result<Option<String>> {
        match self.render(messages, &ChatOptions::default()) {
            Ok(text) => Ok(Some(text)),
            Err(TokenizerError::Template { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads the calls of message number `index`.
fn calls(calls: &[Value], index: usize) -> Result<Vec<Call>> {
    let read = |(at, call): (usize, &Value)| {
        let field = format!("messages[{index}].tool_calls[{at}].function");
        let function = &call["function"];
        let Some(name) = function["name"].as_str() else {
            return Err(TokenizerError::MissingField { field: format!("{field}.name") });
        };
        let arguments = Arguments::of(&function["arguments"]);
        let id = call["id"].as_str().map(str::to_owned);
        Ok(Call { id, name: name.to_owned(), arguments })
    };
    calls.iter().enumerate().map(read).collect()
}

/// A tool's result as a message of the user.
fn told(result: &Message) -> Message {
    let text = result.content.text();
    match &result.name {
        Some(name) => Message::new("user", format!("Result of {name}:\n{text}")),
        None => Message::new("user", format!("Result:\n{text}")),
    }
}

/// Adds the description of tools to the system message, in the words of the general form of calls.
fn introduce(tools: &[Value], messages: &mut Vec<Message>) {
    let mut text = String::from("You can call these functions:\n\n");
    for tool in tools {
        text.push_str(&exact::exact_json(tool.get("function").unwrap_or(tool)));
        text.push('\n');
    }
    text.push_str(
        "\nTo call functions, answer with one JSON object on a line of its own for each call, and nothing else:\n\
         {\"name\": function name, \"parameters\": object of arguments}",
    );
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(first) => first.content = Content::Text(format!("{}\n\n{text}", first.content.text())),
        None => messages.insert(0, Message::new("system", text)),
    }
}

/// Moves the text of system messages, from message `first` on, to the user: to the user's message before it, else to the one
/// after it, else to a new one. The text of earlier messages does not change as a conversation grows.
fn without_system(messages: Vec<Message>, first: usize) -> Vec<Message> {
    let mut waiting = String::new();
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    for (at, mut message) in messages.into_iter().enumerate() {
        if message.role == "system" && at >= first {
            let text = message.content.text();
            match kept.last_mut().filter(|last| last.role == "user") {
                Some(last) => last.content = Content::Text(format!("{}\n\n{text}", last.content.text())),
                None => waiting += &(text + "\n\n"),
            }
            continue;
        }
        if !waiting.is_empty() {
            let text = std::mem::take(&mut waiting);
            if message.role == "user" {
                message.content = Content::Text(text + &message.content.text());
            } else {
                kept.push(Message::new("user", text.trim_end()));
            }
        }
        kept.push(message);
    }
    if !waiting.is_empty() {
        kept.push(Message::new("user", waiting.trim_end()));
    }
    kept
}

/// An id of nine letters and digits: the id itself if it has that form, else a hash of it.
fn short_id(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a (Fowler, Noll, Vo), 64 bits.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let letters = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut short = String::new();
    for _ in 0..9 {
        short.push(char::from(letters[(hash % 62) as usize]));
        hash /= 62;
    }
    short
}
