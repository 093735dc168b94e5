//! Conversations are read in one way by the server, by serde and by training.

use brasa::tokenizer::{ChatOptions, TokenizerError, TrainedTurns};
use brasa::train::data::{DataOptions, Dataset, Examples, Learned};
use brasa::{Message, Model};
use brasa_server::ModelData;
use serde_json::{Map, Value, json};

use super::client::{options, server};

/// Numbers that look random and are the same in every run (Marsaglia 2003, xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn pick(&mut self, choices: &[Value]) -> Value {
        choices[self.roll(choices.len())].clone()
    }

    fn message(&mut self) -> Value {
        let mut message = Map::new();
        let role = ["system", "user", "assistant", "assistant", "tool"][self.roll(5)];
        message.insert("role".into(), role.into());
        // Most fields are as they should be, so that most messages can be read.
        let parts = [
            json!({"type": "text", "text": "one"}),
            json!({"type": "output_text", "text": "two\n", "annotations": []}),
            json!("three"),
            json!({"text": "four"}),
            json!({"type": "refusal", "refusal": "no"}),
            json!({"type": "refusal", "refusal": null}),
        ];
        let odd_parts = [
            json!({"type": "image_url", "image_url": {"url": "x"}}),
            json!({"type": "text"}),
            json!({"type": 5}),
            json!(7),
            json!({"type": "text", "text": null}),
        ];
        let content = match self.roll(12) {
            0 => Value::Null,
            1 => json!(7),
            2 => json!([]),
            3..6 => {
                let mut list: Vec<Value> = (0..=self.roll(3)).map(|_| self.pick(&parts)).collect();
                if self.roll(6) == 0 {
                    list.push(self.pick(&odd_parts));
                }
                list.into()
            }
            _ => self.pick(&[
                json!("ember"),
                json!(""),
                json!(" <|im_end|>\n"),
                json!("<think>a</think>\n\nb"),
            ]),
        };
        if self.roll(10) > 0 {
            message.insert("content".into(), content);
        }
        for (field, odds) in [
            ("reasoning_content", 4),
            ("reasoning", 6),
            ("thinking", 6),
            ("name", 8),
            ("tool_call_id", 4),
            ("refusal", 6),
            ("weight", 6),
        ] {
            if self.roll(odds) == 0 {
                let values = [Value::Null, json!(""), json!("hm"), json!("hm"), json!("hm"), json!("hm")];
                let value = if self.roll(20) == 0 { json!(3) } else { self.pick(&values) };
                message.insert(field.into(), value);
            }
        }
        if role == "assistant" && self.roll(2) == 0 {
            let calls = match self.roll(10) {
                0 => Value::Null,
                1 => json!({}),
                _ => (0..self.roll(3)).map(|_| self.call()).collect(),
            };
            message.insert("tool_calls".into(), calls);
        }
        Value::Object(message)
    }

    fn call(&mut self) -> Value {
        let arguments = self.pick(&[
            json!({"a": [1, null, "x"]}),
            json!("{\"a\": 12345678901234567890123}"),
            json!("{\"a\": 1}"),
            json!(""),
            Value::Null,
            json!("{\"a\": \"b"),
            json!([1]),
            json!(7),
        ]);
        match self.roll(12) {
            0 => json!({"id": "c", "type": "custom", "custom": {"name": "f", "input": "text"}}),
            1 => json!({"type": "custom", "custom": {"name": "f"}}),
            2 => json!({"id": "c", "type": "function", "function": {"arguments": arguments}}),
            3 => json!({"name": "f", "arguments": arguments}),
            4 => json!("f"),
            5 => json!({"id": null, "function": {"name": 7}}),
            6 => json!({"id": "c", "type": "function", "function": {"name": "f"}}),
            _ => {
                json!({"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": arguments}})
            }
        }
    }
}

#[test]
fn the_server_serde_and_training_read_the_same_histories() {
    let ModelData::Path(path) = &options().models[0].data else { unreachable!("a path") };
    let model = Model::load(path, &options().load).unwrap();
    let (tokenizer, template) = (model.tokenizer(), model.chat_template().unwrap());
    let examples = Examples { tokenizer, template: Some(template), vocab_size: usize::MAX };
    let data = DataOptions { learned: Learned::Everything, ..DataOptions::default() };
    let mut dice = Dice(45);
    let (mut read, mut refused, mut odd) = (0, 0, 0);
    for _ in 0..600 {
        let mut messages: Vec<Value> = (0..=dice.roll(3)).map(|_| dice.message()).collect();
        messages.push(json!({"role": "user", "content": "coal"}));
        let messages = Value::Array(messages);
        let by_server = server().post("/apply-template", &json!({"messages": messages}));
        let by_library = Message::read_all(messages.clone(), "messages");
        let by_serde: Result<Vec<Message>, _> = serde_json::from_value(messages.clone());
        let row = format!("{}\n", json!({"messages": messages}));
        let by_training = Dataset::read_from(row.as_bytes(), "rows", &examples, &data);
        let found = match by_library {
            Ok(found) => found,
            Err(error) => {
                refused += 1;
                let (TokenizerError::Message { field, .. }
                | TokenizerError::MissingField { field }
                | TokenizerError::NotText { field, .. }) = &error
                else {
                    panic!("{messages}: {error}")
                };
                assert_eq!(by_server.error(400).1.as_ref(), Some(field), "{messages}: {error}");
                assert!(by_serde.is_err(), "{messages}");
                let told = by_training.unwrap_err().to_string();
                assert!(told.starts_with(&format!("rows:1: {error}")), "{messages}: {told}");
                continue;
            }
        };
        read += 1;
        assert_eq!(by_serde.unwrap(), found);
        let chat = ChatOptions::default();
        let shown = template.render(&template.fit(&found, &chat).unwrap(), &chat).unwrap();
        assert_eq!(by_server.json(200)["prompt"], shown.as_str(), "{messages}");
        if found.iter().any(|message| message.calls_without_object().next().is_some()) {
            // Of a row they can be put right, and would be learned.
            odd += 1;
            let told = by_training.unwrap_err().to_string();
            assert!(told.contains(".function.arguments: no JSON object"), "{messages}: {told}");
            continue;
        }
        let turns = tokenizer.encode_turns(template, &found, &chat, TrainedTurns::Last).unwrap();
        assert_eq!(by_training.unwrap().documents[0].tokens[..], turns.ids[..], "{messages}");
    }
    assert!(read > 250 && refused > 250 && odd > 10, "{read} {refused} {odd}");
}
