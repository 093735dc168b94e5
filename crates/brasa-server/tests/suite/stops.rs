//! Stop texts: which one ended an answer, and where none is found.

use brasa::LoadOptions;
use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{Running, models, server};
use super::device::Device;

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// If several stop texts occur, the one that is complete first is named, in every form.
#[test]
fn the_stop_that_is_complete_first_is_named() {
    let body = json!({"prompt": "An ember is", "n_predict": 40, "temperature": 0});
    let whole = server().post("/completion", &body).json(200);
    let text = whole["content"].as_str().unwrap();
    let word = &text[8..16];
    for (stops, first) in [
        (vec![word, &word[..3]], &word[..3]),
        (vec![&word[..1], &word[..2]], &word[..1]),
        (vec![&word[2..4], &word[1..4], &word[..5]], &word[1..4]),
    ] {
        let answer = server().post("/completion", &with(&body, &json!({"stop": stops}))).json(200);
        let before = text.find(first).unwrap();
        assert_eq!(answer["content"], text[..before], "{stops:?}");
        assert_eq!(
            (&answer["stop_type"], &answer["stopping_word"]),
            (&json!("word"), &json!(first)),
            "{stops:?}"
        );
    }
    // The model's own end can be ignored; a stop text cannot.
    let ignoring = json!({"stop": [word], "ignore_eos": true});
    assert_eq!(server().post("/completion", &with(&body, &ignoring)).json(200)["stopping_word"], word);
}

/// A template in whose source a mark of Qwen's thoughts stands.
const QWEN: &str = "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'].split('</think>')[-1] + '<|im_end|>\n' }}{%- endfor -%}{{ '<|im_start|>assistant\n' }}";

/// A template in whose source a mark of Gemma 4's thoughts stands.
const GEMMA: &str = "{{ bos_token }}{%- for message in messages -%}{{ '<|turn>' + message['role'] + '\n' + \
    message['content'].split('<channel|>')[-1] + '<turn|>\n' }}{%- endfor -%}{{ '<|turn>model\n' }}";

/// Thoughts and an answer between the marks of two families.
struct Thinker {
    server: Running,
    device: Device,
    /// The text that the model writes.
    text: &'static str,
    /// A word of its marks that stands nowhere else.
    word_of_mark: &'static str,
}

impl Thinker {
    fn new(path: &str, template: &str, text: &'static str, word_of_mark: &'static str) -> Self {
        let device = Device::new();
        let options = device.options();
        let load = LoadOptions { chat_template: Some(template.to_owned()), ..options.load };
        let models = vec![ModelSource { id: "thinker".into(), data: ModelData::Path(models().join(path)) }];
        let server = Running::start(ServerOptions { models, load, ..options });
        Self { server, device, text, word_of_mark }
    }

    /// Asks a question in one form, and has the model answer with thoughts and a text. `tokens` says where the answer counts the
    /// prompt's.
    fn ask(&self, path: &str, body: &Value, tokens: &[&str]) -> Value {
        let body = with(body, &json!({"max_tokens": 60, "temperature": 0}));
        let short = self.server.post(path, &with(&body, &json!({"max_tokens": 1}))).json(200);
        let prompt: u64 =
            tokens.iter().map(|place| short.pointer(place).and_then(Value::as_u64).unwrap()).sum();
        let ids =
            self.server.post("/tokenize", &json!({"content": self.text, "parse_special": true})).json(200);
        let mut ids: Vec<u32> = serde_json::from_value(ids["tokens"].clone()).unwrap();
        let info = self.server.get("/tokenizer_info").json(200);
        let end =
            self.server.post("/tokenize", &json!({"content": info["eos_token"], "parse_special": true}));
        ids.extend(serde_json::from_value::<Vec<u32>>(end.json(200)["tokens"].clone()).unwrap());
        self.device.say(prompt as usize, ids);
        self.server.post(path, &body).json(200)
    }
}

/// A stop text counts in thoughts and in the answer, and nowhere in the marks between them; the answer names the one that ended it.
#[test]
fn stops_are_named_behind_thoughts_and_in_them() {
    let thinkers = [
        Thinker::new(
            "lexicon-qwen3/lexicon-qwen3-Q6_K.gguf",
            QWEN,
            "<think>\nthe wind is cold\n</think>\n\nthe harbor is warm and cold",
            "think",
        ),
        Thinker::new(
            "tiny-gemma4",
            GEMMA,
            "<|channel>thought\nthe wind is cold\n<channel|>the harbor is warm and cold",
            "channel",
        ),
    ];
    let (thoughts, answer) = ("the wind is cold", "the harbor is warm and cold");
    for thinker in thinkers {
        let mark = thinker.word_of_mark;
        for (stops, named, thought, said) in [
            (vec!["nowhere"], None, thoughts, answer),
            // Marks hold no stop text.
            (vec![mark], None, thoughts, answer),
            (vec![mark, "harbor"], Some("harbor"), thoughts, "the "),
            (vec!["harbor", "warm"], Some("harbor"), thoughts, "the "),
            (vec!["warm", "wind"], Some("wind"), "the ", ""),
            (vec!["cold"], Some("cold"), "the wind is ", ""),
        ] {
            let place = format!("{mark}: {stops:?}");
            let question = json!([{"role": "user", "content": "Where is it warm?"}]);
            let trimmed = |text: &Value| text.as_str().unwrap_or_default().trim().to_owned();

            let chat = json!({"messages": question, "stop": stops, "enable_thinking": true});
            let chat = thinker.ask("/v1/chat/completions", &chat, &["/usage/prompt_tokens"]);
            let message = &chat["choices"][0]["message"];
            assert_eq!(trimmed(&message["reasoning_content"]), thought.trim(), "{place}: {chat}");
            assert_eq!(trimmed(&message["content"]), said.trim(), "{place}: {chat}");
            assert_eq!(chat["choices"][0]["finish_reason"], "stop", "{place}");

            let thinking = json!({"type": "enabled", "budget_tokens": 1024});
            let body = json!({"messages": question, "stop_sequences": stops, "thinking": thinking});
            let message = thinker.ask(
                "/v1/messages",
                &body,
                &["/usage/input_tokens", "/usage/cache_read_input_tokens"],
            );
            let reason = if named.is_some() { "stop_sequence" } else { "end_turn" };
            assert_eq!(message["stop_reason"], reason, "{place}: {message}");
            assert_eq!(message["stop_sequence"], json!(named), "{place}");
            let blocks = message["content"].as_array().unwrap();
            let of = |kind: &str| {
                blocks.iter().find(|block| block["type"] == kind).map(|block| trimmed(&block[kind]))
            };
            assert_eq!(of("thinking").as_deref(), Some(thought.trim()), "{place}: {message}");
            assert_eq!(of("text").unwrap_or_default(), said.trim(), "{place}: {message}");
        }
        // A raw text has no marks: each of its letters counts.
        let raw = json!({"prompt": "Where is it warm?", "stop": [mark, "harbor"]});
        let raw = thinker.ask("/completion", &raw, &["/tokens_evaluated"]);
        assert_eq!((&raw["stop_type"], &raw["stopping_word"]), (&json!("word"), &json!(mark)), "{raw}");
        assert_eq!(raw["content"], thinker.text[..thinker.text.find(mark).unwrap()], "{raw}");
        let raw = json!({"prompt": "Where is it warm?", "stop": ["warm", "harbor"]});
        let raw = thinker.ask("/completion", &raw, &["/tokens_evaluated"]);
        assert_eq!(raw["stopping_word"], "harbor", "{raw}");
        thinker.server.stop();
    }
}
