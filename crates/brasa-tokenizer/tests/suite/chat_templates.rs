//! Published chat templates: the text that transformers makes of golden conversations (tools/golden/chat_templates.py).

use std::collections::BTreeMap;
use std::path::PathBuf;

use brasa_tokenizer::{
    ChatOptions, ChatTemplate, CivilTime, HfFiles, Message, ThoughtMarks, Tokenizer, TokenizerError,
};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    std::env::var_os("BRASA_CHAT_GOLDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat"), PathBuf::from)
}

/// Texts that transformers makes of conversations with published templates.
struct Golden {
    conversations: BTreeMap<String, Vec<Message>>,
    golden: Value,
}

impl Golden {
    fn read() -> Self {
        let packed = std::fs::read(folder().join("golden.json.xz")).expect("golden");
        let mut unpacked = Vec::new();
        lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).expect("xz");
        let golden: Value = serde_json::from_slice(&unpacked).expect("json");
        let conversations = serde_json::from_value(golden["conversations"].clone()).expect("conversations");
        Self { conversations, golden }
    }

    fn template(&self, name: &str) -> Result<ChatTemplate, TokenizerError> {
        let source =
            std::fs::read_to_string(folder().join(format!("templates/{name}.jinja"))).expect("template");
        let tokens = self.golden["tokens"].as_object().expect("tokens").iter();
        ChatTemplate::new(&source, tokens.map(|(role, text)| (role.as_str(), text.as_str().expect("text"))))
    }

    fn options(&self, setting: &str) -> ChatOptions<'_> {
        let setting = &self.golden["settings"][setting];
        ChatOptions {
            add_generation_prompt: setting["add_generation_prompt"].as_bool().unwrap_or(true),
            tools: setting["tools"].as_array().map(Vec::as_slice),
            thinking: setting["enable_thinking"].as_bool(),
            // 2024-07-26 12:34:56
            time: Some(CivilTime::from_unix(1_721_997_296)),
            ..ChatOptions::default()
        }
    }

    /// Templates, conversations, settings, and the texts; no text where the template refuses the conversation.
    fn cases(&self) -> impl Iterator<Item = (&str, &str, &str, Option<&str>)> {
        self.golden["cases"].as_array().expect("cases").iter().map(|case| {
            let text = |at: usize| case[at].as_str();
            (text(0).expect("name"), text(1).expect("name"), text(2).expect("name"), text(3))
        })
    }
}

#[test]
fn published_templates_render_as_in_transformers() {
    let golden = Golden::read();
    let mut wrong = Vec::new();
    let mut templates: BTreeMap<&str, Result<ChatTemplate, TokenizerError>> = BTreeMap::new();
    for (name, conversation, setting, expected) in golden.cases() {
        let template = templates.entry(name).or_insert_with(|| golden.template(name));
        let rendered = match template {
            Ok(template) => template
                .render(&golden.conversations[conversation], &golden.options(setting))
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if rendered.as_deref().ok() != expected {
            let difference = difference(expected, &rendered);
            wrong.push(format!("{name} / {conversation} / {setting}: {difference}"));
        }
    }
    let cases = golden.cases().count();
    for text in &wrong {
        println!("{text}");
    }
    assert!(wrong.is_empty(), "{} of {cases} cases differ", wrong.len());
    assert!(cases > 1_000);
}

/// Clients send arguments as text. Templates that show calls write then what they write, in transformers too, of objects.
#[test]
fn histories_with_calls_become_what_templates_read() {
    // These show no calls, or only beside an answer that is `none`.
    const WITHOUT_CALLS: [&str; 4] = [
        "HuggingFaceTB-SmolLM3-3B",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "google-gemma-2-2b-it",
        "microsoft-Phi-3.5-mini-instruct",
    ];
    let golden = Golden::read();
    let mut templates: BTreeMap<&str, ChatTemplate> = BTreeMap::new();
    let mut cases = 0;
    for (name, conversation, setting, expected) in golden.cases() {
        // A template that does not show tools gets their description in a message.
        let shows_tools = name != "deepseek-ai-DeepSeek-V3.1" || !setting.starts_with("tools");
        if !conversation.starts_with("tool_call") || WITHOUT_CALLS.contains(&name) || !shows_tools {
            continue;
        }
        let template = templates.entry(name).or_insert_with(|| golden.template(name).expect("template"));
        let options = golden.options(setting);
        let mut objects = golden.conversations[conversation].clone();
        let mut texts = objects.clone();
        let calls = |messages: &mut [Message], change: fn(&mut Value)| {
            let calls = messages.iter_mut().flat_map(|message| &mut message.tool_calls);
            calls.for_each(|call| change(&mut call["function"]["arguments"]));
        };
        calls(&mut texts, |arguments| {
            if arguments.is_object() {
                *arguments = arguments.to_string().into();
            }
        });
        calls(&mut objects, |arguments| {
            if let Some(text) = arguments.as_str() {
                *arguments = serde_json::from_str(text).expect("json");
            }
        });
        let expected = match conversation {
            // There transformers has the text of a text.
            "tool_call_text_arguments" => template.render(&objects, &options).ok(),
            _ => expected.map(str::to_owned),
        };
        let fitted = template.fit(&texts, &options).expect("fitted");
        assert_eq!(template.render(&fitted, &options).ok(), expected, "{name} {conversation} {setting}");
        cases += 1;
    }
    assert!(cases > 400, "{cases}");
}

fn conversation(messages: Value) -> Vec<Message> {
    serde_json::from_value(messages).expect("messages")
}

/// A call of `f`, as clients send it.
fn calling(id: &str, arguments: &Value) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]})
}

#[test]
fn conversations_are_fitted_to_templates_that_know_less() {
    let golden = Golden::read();
    let tools = [
        json!({"type": "function", "function": {"name": "f", "description": "F", "parameters": {"type": "object"}}}),
    ];
    let options = ChatOptions { tools: Some(&tools), ..ChatOptions::default() };
    let messages = conversation(json!([
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hi"},
        calling("call_1", &json!("{\"a\": 1}")),
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]));
    let written = |name: &str, messages: &[Message], options: &ChatOptions<'_>| {
        let template = golden.template(name).expect("template");
        let fitted = template.fit(messages, options).expect("fitted");
        template.render(&fitted, options).expect("text")
    };
    // No system message, no tools, no calls, no results.
    let gemma = written("google-gemma-2-2b-it", &messages, &options);
    assert_eq!(
        gemma,
        "<s><start_of_turn>user\nBe\nkind.\n\nYou can call these functions:\n\n\
         {\"name\":\"f\",\"description\":\"F\",\"parameters\":{\"type\":\"object\"}}\n\n\
         To call functions, answer with one JSON object on a line of its own for each call, and nothing else:\n\
         {\"name\": function name, \"parameters\": object of arguments}\n\nHi<end_of_turn>\n\
         <start_of_turn>model\n{\"name\":\"f\",\"parameters\":{\"a\":1}}<end_of_turn>\n\
         <start_of_turn>user\nResult of f:\n3<end_of_turn>\n<start_of_turn>model\n"
    );
    // Ids of nine letters, the same for the call and for its result.
    let mistral = written("mistralai-Mistral-Nemo-Instruct-2407", &messages[1..], &ChatOptions::default());
    let after = |mark: &str| mistral.split(mark).nth(1).expect("mark")[..10].to_owned();
    assert_eq!(after("\"id\": \""), after("\"call_id\": \""), "{mistral}");
    assert!(after("\"id\": \"").ends_with('"'), "{mistral}");
    // `developer` is kept where the template knows it, and the role of a result is told where templates ask for it.
    assert!(written("openai-gpt-oss-120b", &messages, &options).contains("# Instructions\n\nBe\nkind."));
    let qwen = written("Qwen3.5-4B", &messages, &options);
    assert!(
        qwen.contains("Be\nkind.<|im_end|>") && qwen.contains("<parameter=a>\n1\n</parameter>"),
        "{qwen}"
    );

    // Qwen3.5's template refuses a system message that is not the first one: the user tells it, always in the same place.
    let turns = [
        json!({"role": "system", "content": "Be kind."}),
        json!({"role": "developer", "content": "Be brief."}),
        json!({"role": "user", "content": "Hi"}),
        json!({"role": "system", "content": "It is late."}),
        json!({"role": "assistant", "content": "Hello"}),
        json!({"role": "system", "content": "It is later."}),
        json!({"role": "user", "content": "Bye"}),
        json!({"role": "assistant", "content": "Wait"}),
        json!({"role": "system", "content": "It is dark."}),
    ];
    let texts = [4, 7, 9]
        .map(|count| written("Qwen3.5-4B", &conversation(json!(turns[..count])), &ChatOptions::default()));
    assert!(texts[2].starts_with("<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>\n"), "{}", texts[2]);
    for turn in ["Hi\n\nIt is late.", "It is later.\n\nBye", "It is dark."] {
        assert!(texts[2].contains(&format!("<|im_start|>user\n{turn}<|im_end|>\n")), "{}", texts[2]);
    }
    for pair in texts.windows(2) {
        let end = pair[0].rfind("<|im_start|>assistant").expect("answer");
        assert!(pair[1].starts_with(&pair[0][..end]), "{} {}", pair[0], pair[1]);
    }
    // Others show it where it stands.
    let later = written("Qwen-Qwen3-0.6B", &conversation(json!(turns[..4])), &ChatOptions::default());
    assert!(later.contains("<|im_start|>system\nIt is late.<|im_end|>\n"), "{later}");

    // A template that takes text keeps the text, and one that needs content gets it.
    let source = "{% for m in messages %}{{ m.content.strip() }}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}\
                  {% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, []).expect("template");
    for (arguments, expected) in [
        (json!("{ \"a\":1}"), "<{ \"a\":1}>"),
        (json!({"a": 1}), "<{\"a\":1}>"),
        (json!(""), "<{}>"),
        (json!(null), "<{}>"),
        // What is no object stays as it is, and whole numbers keep all digits.
        (json!("{\"a\": "), "<{\"a\": >"),
        (json!([1]), "<[1]>"),
        (json!("{\"a\": 12345678901234567890123}"), "<{\"a\": 12345678901234567890123}>"),
    ] {
        let fitted = template.fit(&conversation(json!([calling("x", &arguments)])), &ChatOptions::default());
        assert_eq!(
            template.render(&fitted.expect("fitted"), &ChatOptions::default()).expect("text"),
            expected
        );
    }

    // Arguments of calls that are no objects are shown by every template that shows calls.
    for entry in std::fs::read_dir(folder().join("templates")).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name");
        let template = golden.template(name).expect("template");
        let shown = |arguments: Value| {
            let turns = [
                json!({"role": "user", "content": "Hi"}),
                calling("call00001", &arguments),
                json!({"role": "tool", "tool_call_id": "call00001", "content": "3"}),
            ];
            let options = ChatOptions::default();
            let fitted = template.fit(&conversation(json!(turns)), &options).expect("fitted");
            template.render(&fitted, &options).unwrap_or_else(|error| panic!("{name} {arguments}: {error}"))
        };
        let object = shown(json!(
            "{\"needle\": \"hay\", \"id\": 12345678901234567890123, \"big\": -123456789012345678901234567890123456789012}"
        ));
        if !object.contains("hay") {
            continue;
        }
        assert!(
            object.contains("12345678901234567890123")
                && object.contains("-123456789012345678901234567890123456789012"),
            "{object}"
        );
        for other in [json!("{\"needle\": [1, "), json!("needle"), json!(["needle"]), json!("[\"needle\"]")] {
            let text = shown(other.clone());
            assert!(text.contains("needle"), "{name} {other}: {text}");
        }
    }

    // Messages that no template could read.
    for (message, error) in [
        (
            json!({"role": "assistant", "tool_calls": ["f"]}),
            "messages[1].tool_calls[0]: a string, expected a call",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}),
            "messages[1].tool_calls[0].function.name is missing",
        ),
        (
            json!({"role": "assistant", "tool_calls": "f"}),
            "messages[1].tool_calls: a string, expected a list of calls",
        ),
        (json!({"role": "user"}), "messages[1].content is missing"),
        (json!({"role": 7}), "messages[1].role: a number, expected a text"),
        (json!([]), "messages[1]: a list, expected an object with `role` and `content`"),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            "messages[1].content[0].type: a part of type `image_url`, and the model reads text only",
        ),
        (json!({"role": "user", "content": [{"type": "text"}]}), "messages[1].content[0].text is missing"),
    ] {
        let messages = json!([{"role": "user", "content": "Hi"}, message]);
        let found = Message::read_all(messages, "messages").expect_err("error");
        assert_eq!(found.to_string(), error);
        let by_serde = serde_json::from_value::<Message>(message).expect_err("error").to_string();
        assert_eq!(by_serde, error.replacen("messages[1]", "message", 1));
    }
    // A null is an absent field, and thoughts have several names.
    let message = json!({"role": "assistant", "content": null, "reasoning_content": null, "reasoning": "", "thinking": "Hm.",
        "tool_calls": null, "tool_call_id": null, "name": null, "refusal": null, "weight": null});
    let read: Message = serde_json::from_value(message).expect("message");
    let expected =
        Message { role: "assistant".into(), reasoning_content: Some("Hm.".into()), ..Message::default() };
    assert_eq!(read, expected);
    // A custom tool's call is one of a function with a text.
    let call = json!({"type": "custom", "id": "c", "custom": {"name": "f", "input": "x"}});
    let read = Message::read(json!({"role": "assistant", "tool_calls": [call]}), "message").expect("message");
    assert_eq!(read.tool_calls[0]["function"], json!({"name": "f", "arguments": {"input": "x"}}));
}

#[test]
fn marks_of_thoughts_are_found_in_published_templates_and_vocabularies() {
    let tokenizer = |tokens: &[&str]| {
        let vocabulary: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id.into())).collect();
        let special: Vec<Value> = tokens
            .iter()
            .zip(0..)
            .map(|(token, id)| serde_json::json!({"id": id, "content": token, "special": true}))
            .collect();
        let model = serde_json::json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        let file = serde_json::json!({"model": model, "added_tokens": special}).to_string();
        Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).expect("tokenizer")
    };
    let (plain, thinking) = (tokenizer(&["a"]), tokenizer(&["<think>", "</think>"]));
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder().join("templates")).expect("folder") {
        let path = entry.expect("entry").path();
        let source = std::fs::read_to_string(&path).expect("template");
        // What the template says comes before what the vocabulary says.
        let of_both = ThoughtMarks::of(Some(&source), &thinking).expect("marks");
        let marks = ThoughtMarks::of(Some(&source), &plain);
        assert_eq!(of_both.start, marks.map_or("<think>", |marks| marks.start), "{}", path.display());
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name").to_owned();
        found.entry(marks.map_or("none", |marks| marks.start)).or_default().push(name);
    }
    let counts: Vec<(&str, usize)> = found.iter().map(|(&marks, names)| (marks, names.len())).collect();
    assert_eq!(
        counts,
        [
            ("<think>", 12),
            ("<|START_THINKING|>", 1),
            ("<|channel>thought", 2),
            ("<|channel|>analysis<|message|>", 1),
            ("[THINK]", 1),
            ("none", 12),
        ],
        "{found:#?}"
    );
    assert_eq!(ThoughtMarks::of(None, &plain), None);
    let gemma = tokenizer(&["<think>", "</think>", "<|channel>", "<channel|>"]);
    let marks = ThoughtMarks::of(None, &gemma).expect("marks");
    assert_eq!((marks.end, marks.token_ids(&gemma)), ("<channel|>", vec![2, 3]));
    // Control tokens are no text, but for those of the marks.
    let mut stream = gemma.decode_stream(true).showing(marks.token_ids(&gemma).into());
    assert_eq!(stream.push(1).expect("id") + &stream.push(3).expect("id"), "<channel|>");
}

/// Both texts from shortly before the first difference on.
fn difference(expected: Option<&str>, found: &Result<String, String>) -> String {
    match (expected, found) {
        (None, Ok(_)) => "expected an error".to_owned(),
        (_, Err(error)) => format!("unexpected error: {error}"),
        (Some(expected), Ok(found)) => {
            let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
            let from = |text: &str| text.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
            format!("expected …{:?}…, found …{:?}…", from(expected), from(found))
        }
    }
}
