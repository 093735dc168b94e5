//! A client of a running server, for `brasa run --server`, `brasa generate --server` and `brasa train --serve`.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use brasa::sampling::SamplingOrder;
use brasa::tokenizer::{AnswerPart, Thoughts};
use serde_json::{Map, Value, json};
use ureq::Agent;

use crate::args::{RemoteArguments, SamplingArguments};
use crate::failure::Failure;
use crate::paint::Paint;
use crate::painted::PaintedAnswer;
use crate::{input, output};

/// The environment variable with the server's key.
const KEY: &str = "BRASA_API_KEY";
/// Longest time for making a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence of the server. A busy server sends pings while a request waits.
const SILENCE: Duration = Duration::from_mins(10);
/// Most bytes of one event, and of the text of an error.
const LARGEST_EVENT_BYTES: u64 = 16 << 20;

/// The text or conversation that the server is asked to continue.
pub enum Question {
    /// Messages of a chat.
    Chat {
        /// The messages, in OpenAI's form.
        messages: Vec<Value>,
        /// Whether the model may think first; `None` if no flag says so.
        thinking: Option<bool>,
    },
    /// A raw text, or token ids.
    Raw(Value),
}

/// Sends the question to the server. Prints the answer while it arrives, or one JSON object at its end.
///
/// # Errors
///
/// [`Failure::Usage`] for flags that a server does not support; [`Failure::Failed`] with the server's own message, or if the
/// server cannot be reached or breaks off.
pub fn answer(
    remote: &RemoteArguments,
    model: Option<&str>,
    question: Question,
    sampling: &SamplingArguments,
    as_json: bool,
    verbose: bool,
) -> Result<(), Failure> {
    let mut body = fields(sampling)?;
    if let Some(model) = model {
        body.insert("model".into(), model.into());
    }
    let path = match question {
        Question::Chat { messages, thinking } => {
            body.insert("messages".into(), messages.into());
            if let Some(thinking) = thinking {
                body.insert("chat_template_kwargs".into(), json!({"enable_thinking": thinking}));
            }
            "/v1/chat/completions"
        }
        Question::Raw(prompt) => {
            body.insert("prompt".into(), prompt);
            "/v1/completions"
        }
    };
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({"include_usage": true}));
    let url = root(remote.server.as_deref().unwrap_or_default());
    let url = format!("{url}{path}");
    let body = send(&url, Some(&Value::Object(body).to_string()), None)?;
    let mut events = Events { url, lines: BufReader::new(Box::new(body.into_reader())) };
    let mut shown = (!as_json).then(|| PaintedAnswer::new(Paint::of_output(), Thoughts::new(None, "")));
    let mut heard = Heard::default();
    let end = loop {
        match events.next() {
            Ok(Some(event)) => {
                for part in heard.take(&event) {
                    if let Some(shown) = &mut shown {
                        shown.part(part)?;
                    }
                }
            }
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    if let Some(shown) = &mut shown {
        shown.finish()?;
        if shown.is_empty() {
            output::write("\n")?;
        }
    }
    end?;
    if as_json {
        output::line(&heard.object().to_string())?;
    }
    if verbose {
        let tokens = |name: &str| heard.usage[name].as_u64().unwrap_or_default();
        output::note(&format!(
            "{} prompt tokens, {} generated",
            tokens("prompt_tokens"),
            tokens("completion_tokens")
        ));
    }
    Ok(())
}

/// The fields of a request for the given flags. For other fields the server has defaults.
fn fields(sampling: &SamplingArguments) -> Result<Map<String, Value>, Failure> {
    if sampling.context_policy.is_some() || sampling.keep > 0 {
        return Err(Failure::Usage(
            "--context-policy and --keep: a server ends an answer when its context is full".into(),
        ));
    }
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.into(), value);
        }
    };
    set("max_tokens", sampling.n.map(Value::from));
    set("seed", sampling.seed.map(Value::from));
    set("temperature", sampling.temperature.map(Value::from));
    set("top_k", sampling.top_k.map(Value::from));
    set("top_p", sampling.top_p.map(Value::from));
    set("min_p", sampling.min_p.map(Value::from));
    sampling.rules.fields().for_each(|(name, value)| set(name, Some(value)));
    set("repeat_penalty", sampling.repeat_penalty.map(Value::from));
    set("repeat_last_n", Some(sampling.repeat_last_n.map_or(json!(-1), Value::from)));
    let unless_zero = |number: f32| (number != 0.0).then(|| Value::from(number));
    set("frequency_penalty", unless_zero(sampling.frequency_penalty));
    set("presence_penalty", unless_zero(sampling.presence_penalty));
    if !sampling.logit_bias.is_empty() {
        // JSON has no infinity; -100 is OpenAI's word for never.
        let bias = |(id, bias): &(u32, f32)| (id.to_string(), bias.max(-100.0).into());
        set("logit_bias", Some(Value::Object(sampling.logit_bias.iter().map(bias).collect())));
    }
    let names = |order: SamplingOrder| order.stages().iter().map(|stage| stage.name()).collect();
    set("samplers", sampling.order().map(names));
    set("stop", (!sampling.stop.is_empty()).then(|| sampling.stop.clone().into()));
    set("ignore_eos", sampling.ignore_eos.then_some(Value::Bool(true)));
    let file = |path: &Option<_>| path.as_deref().map(input::text).transpose();
    let schema = file(&sampling.json_schema_file)?.or_else(|| sampling.json_schema.clone());
    let schema = schema.map(|text| serde_json::from_str(&text));
    let schema =
        schema.transpose().map_err(|error| Failure::Usage(format!("--json-schema: not JSON: {error}")))?;
    set("json_schema", schema);
    set("grammar", file(&sampling.grammar_file)?.or_else(|| sampling.grammar.clone()).map(Value::from));
    Ok(body)
}

/// Sends a request to `path`: GET without `body`, else POST. Returns the JSON of the answer, which must be complete within the time
/// `within`.
///
/// # Errors
///
/// [`Failure::Usage`] for an invalid URL; [`Failure::Failed`] with the server's own message, or if the server cannot be reached
/// or takes longer.
pub fn ask(server: &str, path: &str, body: Option<&Value>, within: Duration) -> Result<Value, Failure> {
    let url = format!("{}{path}", root(server));
    let answer = send(&url, body.map(Value::to_string).as_deref(), Some(within))?;
    let mut text = String::new();
    let broken = |error: &dyn std::fmt::Display| Failure::Failed(format!("{url}: {error}"));
    let read = answer.into_reader().take(LARGEST_EVENT_BYTES).read_to_string(&mut text);
    read.map_err(|error| broken(&error))?;
    serde_json::from_str(&text).map_err(|error| broken(&error))
}

/// The address of a server without the path of its API.
fn root(server: &str) -> &str {
    let url = server.trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url)
}

/// Sends a request, as GET if there is no body. Fails unless the answer has status 200 and, if `within` is given, is complete
/// within that time.
fn send(url: &str, body: Option<&str>, within: Option<Duration>) -> Result<ureq::Body, Failure> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("brasa/", env!("CARGO_PKG_VERSION")))
        .timeout_global(within)
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE));
    let host = match url.split_once("://") {
        Some(("http", host)) => host,
        Some(("https", host)) => {
            let tls = brasa_hub::tls_config().map_err(|error| Failure::Failed(error.to_string()))?;
            config = config.tls_config(tls).https_only(true);
            host
        }
        _ => {
            return Err(Failure::Usage(format!("--server {url}: expected http://HOST:PORT or https://HOST")));
        }
    };
    if ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| host.starts_with(own)) {
        config = config.proxy(None);
    }
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    let agent = config.build().new_agent();
    let unreachable = |error: &dyn std::fmt::Display| Failure::Failed(format!("{url}: {error}"));
    let sent = match body {
        Some(body) => {
            authorized(agent.post(url), key.as_deref()).header("content-type", "application/json").send(body)
        }
        None => authorized(agent.get(url), key.as_deref()).call(),
    };
    let mut response = sent.map_err(|error| match &error {
        ureq::Error::Io(cause) if cause.kind() == std::io::ErrorKind::ConnectionRefused => unreachable(
            &format_args!("{error}\nhint: nothing listens at this address; `brasa serve` starts a server"),
        ),
        _ => unreachable(&error),
    })?;
    let status = response.status().as_u16();
    if status != 200 {
        let mut text = String::new();
        // A body that cannot be read leaves the status to tell.
        let _ = response.body_mut().as_reader().take(LARGEST_EVENT_BYTES).read_to_string(&mut text);
        let message = serde_json::from_str(&text).ok().and_then(|body: Value| message(&body["error"]));
        let message = message.unwrap_or_else(|| "the server refuses".into());
        let hint = match (status, &key) {
            (401, None) => format!("\nhint: {KEY} holds the server's key"),
            (401, Some(_)) => format!("\nhint: {KEY} holds another key than the server's"),
            _ => String::new(),
        };
        return Err(Failure::Failed(format!("{url}: {status}: {message}{hint}")));
    }
    Ok(response.into_body())
}

/// The request with the server's key, if there is one.
fn authorized<B>(request: ureq::RequestBuilder<B>, key: Option<&str>) -> ureq::RequestBuilder<B> {
    match key {
        Some(key) => request.header("authorization", format!("Bearer {key}")),
        None => request,
    }
}

/// The message in the JSON of an error.
fn message(error: &Value) -> Option<String> {
    error["message"].as_str().or(error.as_str()).map(str::to_owned)
}

/// The events of an answer, as they arrive.
struct Events {
    url: String,
    lines: BufReader<Box<dyn Read>>,
}

impl Events {
    /// The next event; `None` after the last.
    fn next(&mut self) -> Result<Option<Value>, Failure> {
        let broken = |what: &str| Failure::Failed(format!("{}: {what}", self.url));
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.lines).take(LARGEST_EVENT_BYTES);
            bounded.read_until(b'\n', &mut line).map_err(|error| broken(&error.to_string()))?;
            if !line.ends_with(b"\n") {
                return Err(broken("the server broke off its answer"));
            }
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
            if data == b"[DONE]" {
                return Ok(None);
            }
            let event: Value = serde_json::from_slice(data)
                .map_err(|error| broken(&format!("an event that is no JSON: {error}")))?;
            if let Some(message) = message(&event["error"]) {
                return Err(broken(&message));
            }
            return Ok(Some(event));
        }
    }
}

/// The part of an answer that has arrived.
#[derive(Default)]
struct Heard {
    thoughts: String,
    text: String,
    finish_reason: Value,
    model: Value,
    usage: Value,
}

impl Heard {
    /// Adds an event; returns the new parts of the answer to show.
    fn take(&mut self, event: &Value) -> Vec<AnswerPart> {
        if event["usage"].is_object() {
            self.usage = event["usage"].clone();
        }
        if self.model.is_null() {
            self.model = event["model"].clone();
        }
        let choice = &event["choices"][0];
        if !choice["finish_reason"].is_null() {
            self.finish_reason = choice["finish_reason"].clone();
        }
        let delta = &choice["delta"];
        let mut parts = Vec::new();
        if let Some(thought) = delta["reasoning_content"].as_str().filter(|thought| !thought.is_empty()) {
            self.thoughts += thought;
            parts.push(AnswerPart::Thought(thought.to_owned()));
        }
        let text = delta["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        if !text.is_empty() {
            if self.text.is_empty() && !self.thoughts.is_empty() {
                // The thoughts end with a line of their own.
                parts.push(AnswerPart::Mark("\n"));
            }
            self.text += text;
            parts.push(AnswerPart::Answer(text.to_owned()));
        }
        parts
    }

    /// The whole answer as one JSON object.
    fn object(&self) -> Value {
        let mut object = json!({
            "text": self.text,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "usage": self.usage,
        });
        if !self.thoughts.is_empty() {
            object["reasoning"] = self.thoughts.as_str().into();
        }
        object
    }
}
