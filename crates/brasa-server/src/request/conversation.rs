//! Conversations: reads and checks the messages of a request, and makes token ids of them.

use brasa::tokenizer::{AddSpecial, ChatOptions, Content, ParseSpecial, ToolChoice};
use brasa::{AnswerForm, Message, Model, Turn, TurnOptions};
use serde_json::{Map, Value};

use crate::http::error::{ApiError, Result};
use crate::request::constraint::Constraint;
use crate::request::custom::CustomTool;
use crate::request::fields::Fields;

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 10_000;

/// A conversation that has been read, ready for the chat template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub messages: Vec<Message>,
    /// Tools in OpenAI's form.
    pub tools: Vec<Value>,
    /// The tools that take free text in place of JSON.
    pub custom: Vec<CustomTool>,
    /// Whether the answer may or must contain calls, and of which tool.
    pub choice: ToolChoice,
    /// True if an answer may have one call at most.
    pub one_call: bool,
    /// The grammar of the answer after the thoughts.
    pub constraint: Option<Constraint>,
    /// True if the model may think first; `None` leaves the choice to the template.
    pub thinking: Option<bool>,
    /// Further variables for the template.
    pub variables: Map<String, Value>,
    /// Documents for the template, from which the model is to answer.
    pub documents: Option<Vec<Value>>,
    /// The end of the prompt, at which the answer begins.
    pub beginning: Beginning,
}

/// The end of a prompt after the last message: a message to continue, an opened turn, or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Continues the last message if it is the assistant's. Otherwise the template opens a turn of the assistant.
    #[default]
    Usual,
    /// The template opens a turn of the assistant.
    Opened,
    /// The prompt ends with the last message, whose turn is closed.
    Bare,
}

impl Conversation {
    /// Reads `messages`, `tools`, `chat_template_kwargs` and `reasoning_effort` of a chat request.
    pub fn read(fields: &mut Fields) -> Result<Self> {
        let messages: Vec<Value> = fields.required("messages")?;
        if messages.len() > MOST_MESSAGES {
            return Err(ApiError::field("messages", format!("more than {MOST_MESSAGES} messages")));
        }
        let messages = messages.into_iter().enumerate().map(|(at, message)| message_of(fields, at, message));
        let messages = messages.collect::<Result<_>>()?;
        let mut conversation = Self { messages, ..Self::begin(fields)? };
        conversation.read_tools(fields)?;
        conversation.choose(fields)?;
        conversation.read_template_options(fields)?;
        if conversation.messages.is_empty() {
            return Err(ApiError::field("messages", "`messages` is empty: there is nothing to answer"));
        }
        Ok(conversation)
    }

    /// A conversation without messages, with template options from the request's fields or the operator's defaults.
    pub fn begin(fields: &mut Fields) -> Result<Self> {
        if fields.peek("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty()) {
            // A call has its own form.
            fields.take_default("grammar");
            fields.take_default("json_schema");
        }
        let mut conversation = Self::default();
        let mut defaults = Map::new();
        for name in ["reasoning_effort", "chat_template_kwargs"] {
            defaults.extend(fields.take_default(name).map(|value| (name.to_owned(), value)));
        }
        conversation.read_template_options(&mut Fields::new(defaults))?;
        Ok(conversation)
    }

    /// Reads `tools` in the form of chat completions.
    fn read_tools(&mut self, fields: &mut Fields) -> Result<()> {
        for (at, mut tool) in
            fields.optional::<Vec<Value>>("tools")?.unwrap_or_default().into_iter().enumerate()
        {
            let place = format!("tools[{at}]");
            if tool["type"] == "custom" {
                fields.see_inside(&place, &tool, &["type", "custom"]);
                self.add_custom(fields, &format!("{place}.custom"), tool["custom"].take())?;
                continue;
            }
            if tool["type"] != "function" {
                let message =
                    format!("`{place}.type` is {}, expected \"function\" or \"custom\"", tool["type"]);
                return Err(ApiError::field(&format!("{place}.type"), message));
            }
            fields.see_inside(&place, &tool, &["type", "function"]);
            let known = ["name", "description", "parameters", "strict"];
            fields.see_inside(&format!("{place}.function"), &tool["function"], &known);
            if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
                let name = format!("{place}.function.name");
                return Err(ApiError::field(&name, format!("`{name}` is missing")));
            }
            self.tools.push(fields.exact_numbers(&place, tool)?);
        }
        Ok(())
    }

    /// Adds a custom tool, and a function that replaces it in the template.
    pub fn add_custom(&mut self, body: &Fields, place: &str, tool: Value) -> Result<()> {
        let (tool, function) = CustomTool::read(body, place, tool)?;
        self.custom.push(tool);
        self.tools.push(function);
        Ok(())
    }

    fn read_template_options(&mut self, fields: &mut Fields) -> Result<()> {
        if let Some(effort) = fields.optional::<String>("reasoning_effort")? {
            self.set_effort("reasoning_effort", &effort)?;
        }
        if let Some(reasoning) = fields.value("reasoning") {
            let mut reasoning = fields.inside("reasoning", reasoning)?;
            if let Some(effort) = reasoning.optional::<String>("effort")? {
                self.set_effort("reasoning.effort", &effort)?;
            }
            if let Some(is_on) = reasoning.switch("enabled")? {
                self.thinking = Some(is_on);
            }
        }
        if let Some(thinking) = fields.value("thinking") {
            self.set_thinking(fields, &thinking)?;
        }
        if let Some(is_on) = fields.switch("enable_thinking")? {
            self.thinking = Some(is_on);
        }
        if let Some(documents) = fields.optional::<Vec<Value>>("documents")? {
            if let Some(at) = documents.iter().position(|document| !document.is_object()) {
                let name = format!("documents[{at}]");
                return Err(ApiError::field(&name, format!("`{name}` has to be an object")));
            }
            self.documents = Some(documents).filter(|documents| !documents.is_empty());
        }
        self.read_beginning(fields)?;
        if let Some(mut variables) = fields.optional::<Map<String, Value>>("chat_template_kwargs")? {
            if let Some(thinking) = variables.swap_remove("enable_thinking") {
                let wrong = || {
                    let name = "chat_template_kwargs.enable_thinking";
                    ApiError::field(name, format!("`{name}` is {thinking}, expected true or false"))
                };
                self.thinking = Some(thinking.as_bool().ok_or_else(wrong)?);
            }
            for reserved in ["messages", "tools", "documents", "add_generation_prompt"] {
                if variables.contains_key(reserved) {
                    let name = format!("chat_template_kwargs.{reserved}");
                    return Err(ApiError::field(&name, format!("`{name}` is set by the request itself")));
                }
            }
            self.variables.extend(variables);
        }
        Ok(())
    }

    /// Reads `add_generation_prompt` and `continue_final_message`.
    fn read_beginning(&mut self, fields: &mut Fields) -> Result<()> {
        let opens = fields.switch("add_generation_prompt")?;
        let name = "continue_final_message";
        self.beginning = match fields.switch(name)? {
            Some(true) if opens == Some(true) => {
                let message = format!("`{name}` and `add_generation_prompt` cannot both be true");
                return Err(ApiError::field(name, message));
            }
            Some(true) if self.parts().1.is_none() => {
                let message = format!(
                    "`{name}` needs a last message of the assistant, without calls and behind other messages"
                );
                return Err(ApiError::field(name, message));
            }
            Some(false) | None if opens == Some(false) => Beginning::Bare,
            Some(false) => Beginning::Opened,
            Some(true) | None => Beginning::Usual,
        };
        Ok(())
    }

    /// Reads `thinking` in Anthropic's form.
    pub fn set_thinking(&mut self, body: &Fields, thinking: &Value) -> Result<()> {
        // Thoughts are bounded by the limit of the answer alone, and always shown.
        body.see_inside("thinking", thinking, &["type", "budget_tokens", "display"]);
        self.thinking = match thinking["type"].as_str() {
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            _ => {
                let message = "`thinking.type` has to be enabled, adaptive or disabled";
                return Err(ApiError::field("thinking.type", message));
            }
        };
        Ok(())
    }

    /// Reads `tool_choice` and `parallel_tool_calls`, once the tools are known.
    pub fn choose(&mut self, fields: &mut Fields) -> Result<()> {
        self.refuse_shared_names()?;
        self.one_call = fields.switch("parallel_tool_calls")? == Some(false);
        let Some(value) = fields.value("tool_choice") else { return Ok(()) };
        fields.see_inside(
            "tool_choice",
            &value,
            &["type", "function", "custom", "name", "allowed_tools", "mode", "tools"],
        );
        let name_of = |value: &Value| {
            let name = value["function"]["name"].as_str().or(value["custom"]["name"].as_str());
            name.or(value["name"].as_str()).map(str::to_owned)
        };
        let choice = match (&value, value["type"].as_str()) {
            (Value::String(word), _) if word == "auto" => Some(ToolChoice::Auto),
            (Value::String(word), _) if word == "none" => Some(ToolChoice::None),
            (Value::String(word), _) if word == "required" => Some(ToolChoice::Required),
            (_, Some("function" | "custom")) => name_of(&value).map(ToolChoice::Named),
            (_, Some("allowed_tools")) => {
                let allowed =
                    if value["allowed_tools"].is_object() { &value["allowed_tools"] } else { &value };
                let names =
                    allowed["tools"].as_array().map(|tools| tools.iter().filter_map(name_of).collect());
                let required = allowed["mode"] == "required";
                names.map(|names| ToolChoice::Allowed { names, required })
            }
            _ => None,
        };
        let choice = choice.ok_or_else(|| {
            let message = format!(
                "`tool_choice` is {value}, expected auto, none, required, a function, a custom tool or allowed_tools"
            );
            ApiError::field("tool_choice", message)
        })?;
        self.set_choice(choice)
    }

    /// Refuses a custom tool that shares its name with another tool, since a call would be ambiguous.
    fn refuse_shared_names(&self) -> Result<()> {
        for CustomTool { name, .. } in &self.custom {
            let named = self.tools.iter().filter(|tool| tool["function"]["name"] == name.as_str());
            if named.count() > 1 {
                let message = format!("`tools` has several tools `{name}`, of which one is custom");
                return Err(ApiError::field("tools", message));
            }
        }
        Ok(())
    }

    /// Sets the tool choice. Tools that must not be called are hidden from the model.
    pub fn set_choice(&mut self, choice: ToolChoice) -> Result<()> {
        let has = |name: &String| self.tools.iter().any(|tool| tool["function"]["name"] == name.as_str());
        let missing = match &choice {
            ToolChoice::Named(name) => Some(name).filter(|name| !has(name)),
            ToolChoice::Allowed { names, .. } => names.iter().find(|name| !has(name)),
            _ => None,
        };
        if let Some(name) = missing {
            let message = format!("`tool_choice` names `{name}`, and there is no such tool");
            return Err(ApiError::field("tool_choice", message));
        }
        if choice.is_required() && self.tools.is_empty() {
            return Err(ApiError::field(
                "tool_choice",
                "`tool_choice` asks for a call, and there are no tools",
            ));
        }
        if choice == ToolChoice::None {
            self.tools.clear();
            self.custom.clear();
        }
        self.choice = choice;
        Ok(())
    }

    /// Makes prompt, mask and parser of the answer. Blocks.
    ///
    /// # Errors
    ///
    /// The template's error; 400 that names the part of a grammar, a schema or a tool that is wrong or not supported.
    pub fn turn(&self, model: &Model) -> Result<Turn> {
        let prompt = self.encode(model)?;
        // Compiled first by itself, so that an error names the field that is at fault.
        let own = self.constraint.as_ref().map(|constraint| constraint.compile(model)).transpose()?;
        for tool in self.custom.iter().filter(|tool| self.choice.allows(&tool.name)) {
            tool.constraint.as_ref().map(|constraint| constraint.compile(model)).transpose()?;
        }
        let form = match (own, &self.constraint) {
            (Some(mask), _) if self.tools.is_empty() => AnswerForm::Mask(mask),
            (Some(_), Some(constraint)) => AnswerForm::Grammar(constraint.grammar().clone()),
            _ => AnswerForm::Free,
        };
        let asked = TurnOptions {
            template: ChatOptions {
                tools: (!self.tools.is_empty()).then_some(self.tools.as_slice()),
                ..ChatOptions::default()
            },
            choice: self.choice.clone(),
            one_call: self.one_call,
            form,
        };
        model.turn_behind(prompt, &asked).map_err(|error| match error {
            brasa::Error::Tokenizer(error) => {
                // The choice is at fault, but for a grammar that the model's form of calls cannot stand beside or hold.
                let has_grammar = self.custom.iter().any(|tool| tool.constraint.is_some());
                let param = match &self.constraint {
                    Some(constraint) if !self.choice.is_required() => constraint.param(),
                    _ if has_grammar => "tools",
                    _ => "tool_choice",
                };
                ApiError { code: "unsupported_field", ..ApiError::field(param, error.to_string()) }
            }
            other => ApiError::from(other).with_param("tools"),
        })
    }

    /// Earlier calls with arguments that are not a JSON object, by id and name. The template gets such arguments as text.
    pub fn calls_without_object(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.messages.iter().flat_map(|message| {
            message.calls_without_object().map(|at| {
                let call = &message.tool_calls[at];
                (&call["id"], &call["function"]["name"])
            })
        })
    }

    /// Sets the effort of thinking to the value `effort` of the field `name`.
    pub fn set_effort(&mut self, name: &str, effort: &str) -> Result<()> {
        if !["none", "minimal", "low", "medium", "high", "xhigh", "max"].contains(&effort) {
            let message =
                format!("`{name}` is `{effort}`, expected none, minimal, low, medium, high, xhigh or max");
            return Err(ApiError::field(name, message));
        }
        self.thinking = Some(effort != "none");
        if effort != "none" {
            self.variables.insert("reasoning_effort".into(), effort.into());
        }
        Ok(())
    }

    /// The token ids, ready for the answer. If the last message is the assistant's, the answer continues it. Blocks.
    pub fn encode(&self, model: &Model) -> Result<Vec<u32>> {
        self.check_documents(model)?;
        let (messages, begun) = self.parts();
        let mut ids = model.chat_prompt_with(messages, &self.template_options(begun))?;
        if let Some(begun) = begun {
            ids.extend(model.tokenizer().encode(&begun.content.text(), AddSpecial::No, ParseSpecial::No)?);
        }
        Ok(ids)
    }

    /// The text from which [`encode`](Self::encode) makes token ids. Blocks.
    pub fn render(&self, model: &Model) -> Result<String> {
        self.check_documents(model)?;
        let Some(template) = model.chat_template() else {
            let missing = model.tokenizer().chat_template().err().map(ApiError::from);
            return Err(missing.unwrap_or_else(|| ApiError::invalid("the model has no chat template")));
        };
        let (messages, begun) = self.parts();
        let options = self.template_options(begun);
        let text = template.render(&template.fit(messages, &options)?, &options)?;
        Ok(text + &begun.map(|begun| begun.content.text()).unwrap_or_default())
    }

    /// Refuses documents if the model's template does not use them.
    fn check_documents(&self, model: &Model) -> Result<()> {
        let source = model.tokenizer().chat_template_source().unwrap_or_default();
        if self.documents.is_some() && !source.contains("documents") {
            return Err(ApiError::unsupported(
                "documents",
                "the model's chat template has no place for them",
            ));
        }
        Ok(())
    }

    /// The messages for the template, and the beginning of the answer if the last message is one.
    fn parts(&self) -> (&[Message], Option<&Message>) {
        match self.messages.split_last() {
            _ if self.beginning != Beginning::Usual => (&self.messages, None),
            Some((last, before))
                if last.role == "assistant" && last.tool_calls.is_empty() && !before.is_empty() =>
            {
                (before, Some(last))
            }
            _ => (&self.messages, None),
        }
    }

    fn template_options(&self, begun: Option<&Message>) -> ChatOptions<'_> {
        ChatOptions {
            tools: (!self.tools.is_empty()).then_some(self.tools.as_slice()),
            // An answer that has begun is past its thoughts.
            thinking: self.thinking.or(begun.map(|_| false)),
            variables: self.variables.clone(),
            documents: self.documents.as_deref(),
            add_generation_prompt: self.beginning != Beginning::Bare,
            ..ChatOptions::default()
        }
    }
}

/// Reads a message of a chat request, with the fields that templates use.
fn message_of(body: &Fields, at: usize, value: Value) -> Result<Message> {
    let place = format!("messages[{at}]");
    let mut fields = body.inside(&place, value)?;
    fields.refuse("audio", "the model takes text alone")?;
    fields.refuse("function_call", "it was replaced by `tool_calls`")?;
    // Sources of an earlier answer, of which a template makes nothing.
    fields.value("annotations");
    if let Some(content) = fields.peek("content") {
        see_parts(body, &format!("{place}.content"), content);
    }
    for (at, call) in fields.peek("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let place = format!("{place}.tool_calls[{at}]");
        body.see_inside(&place, call, &["id", "type", "function", "custom", "index"]);
        let kind = if call["type"] == "custom" { "custom" } else { "function" };
        body.see_inside(&format!("{place}.{kind}"), &call[kind], &["name", "arguments", "input"]);
    }
    let known = [
        "role",
        "content",
        "refusal",
        "reasoning_content",
        "reasoning",
        "thinking",
        "tool_calls",
        "tool_call_id",
        "name",
    ];
    let read = known.into_iter().filter_map(|name| Some((name.to_owned(), fields.value(name)?)));
    let mut message = Message::read(Value::Object(read.collect()), &place)?;
    if !["system", "developer", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let text = format!(
            "`{place}.role` is `{}`, expected system, developer, user, assistant or tool",
            message.role
        );
        return Err(ApiError::field(&format!("{place}.role"), text));
    }
    for call in message.tool_calls.iter_mut().filter_map(Value::as_object_mut) {
        call.retain(|name, _| ["id", "type", "function"].contains(&name.as_str()));
        if let Some(Value::Object(function)) = call.get_mut("function") {
            function.retain(|name, _| ["name", "arguments"].contains(&name.as_str()));
            // Arguments as JSON text have kept their digits.
            if let Some(arguments) = function.get_mut("arguments").filter(|arguments| arguments.is_object()) {
                *arguments = body.exact_history(arguments.take());
            }
        }
    }
    Ok(message)
}

/// A text, or the text of all text parts; other parts are refused by name.
pub(crate) fn text_of(body: &Fields, name: &str, content: Value) -> Result<String> {
    see_parts(body, name, &content);
    Ok(Content::read(content, name)?.text())
}

/// Counts the unknown fields of the parts of a content.
fn see_parts(body: &Fields, name: &str, content: &Value) {
    for (at, part) in content.as_array().into_iter().flatten().enumerate() {
        // Sources and probabilities belong to answers that were given earlier.
        let known =
            ["type", "text", "refusal", "thinking", "signature", "annotations", "logprobs", "citations"];
        body.see_inside(&format!("{name}[{at}]"), part, &known);
    }
}
