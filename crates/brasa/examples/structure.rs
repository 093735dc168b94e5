//! Answers of a given form: `cargo run -p brasa --example structure -- [MODEL]`.
//!
//! JSON of a schema, a line of a regular expression, and calls of tools. The built-in model is a dictionary: it follows forms, but knows little
//! beyond words.

use std::path::PathBuf;

use brasa::tokenizer::{AnswerEvent, ChatOptions, ToolChoice};
use brasa::{Error, GenerateOptions, Grammar, LoadOptions, Message, Model, Speculation, Turn, TurnOptions};
use serde_json::{Value, json};

fn main() -> Result<(), Error> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::args_os().nth(1).map_or_else(|| bundled.into(), PathBuf::from);
    let model = Model::load(path, &LoadOptions::default())?;
    println!("{}", entry(&model)?);
    println!("{}", line(&model)?);
    for (name, arguments) in calls(&model)? {
        println!("{name}({arguments})");
    }
    Ok(())
}

/// JSON that a schema accepts. A keyword that is not supported would be an error that names it.
fn entry(model: &Model) -> Result<Value, Error> {
    let schema = json!({
        "type": "object",
        "properties": {
            "word": {"const": "ember"},
            "kind": {"enum": ["noun", "verb", "adjective"]},
            "meaning": {"type": "string", "maxLength": 120},
        },
        "required": ["word", "kind", "meaning"],
        "additionalProperties": false,
    });
    let options = GenerateOptions {
        mask: Some(model.grammar(&Grammar::JsonSchema(schema))?),
        // Guesses tokens ahead where the answer repeats a text; the answer stays the same.
        speculation: Some(Speculation::LOOKUP),
        ..GenerateOptions::default()
    };
    let question = [Message::new("user", "What does \"ember\" mean?")];
    let text = model.chat(&question, &options)?.into_text()?;
    Ok(serde_json::from_str(&text).expect("the schema's JSON"))
}

/// A line of a form, by a regular expression; GBNF and Lark are grammars too.
fn line(model: &Model) -> Result<String, Error> {
    let form = Grammar::Regex(r"ember \((noun|verb|adjective)\): [a-z ]{20,100}\.".into());
    let options = GenerateOptions { mask: Some(model.grammar(&form)?), ..GenerateOptions::default() };
    let question = [Message::new("user", "What does \"ember\" mean?")];
    Ok(model.chat(&question, &options)?.into_text()?)
}

/// Calls of tools: their names and arguments. Tools that must be called are a grammar; with `ToolChoice::Auto` the model decides.
fn calls(model: &Model) -> Result<Vec<(String, String)>, Error> {
    let tools = [json!({
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up in the big dictionary",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "pattern": "^[a-z]{1,12}$"}},
                "required": ["word"],
                "additionalProperties": false,
            },
        },
    })];
    let messages = [Message::new("user", "What does \"ember\" mean?")];
    let template = ChatOptions { tools: Some(&tools), ..ChatOptions::default() };
    let asked =
        TurnOptions { template, choice: ToolChoice::Required, one_call: true, ..TurnOptions::default() };
    let Turn { prompt, mask, mut parser, .. } = model.turn(&messages, &asked)?;
    let options = GenerateOptions { mask, max_tokens: Some(200), ..GenerateOptions::default() };
    let mut events = Vec::new();
    for fragment in model.generate_ids(prompt, &options)? {
        events.extend(parser.push(&fragment?.text));
    }
    events.extend(parser.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events {
        match event {
            AnswerEvent::CallBegin { name, .. } => calls.push((name, String::new())),
            AnswerEvent::CallArguments { index, text } => calls[index].1 += &text,
            AnswerEvent::Reasoning(text) | AnswerEvent::Content(text) => println!("{text}"),
            _ => {}
        }
    }
    Ok(calls)
}
