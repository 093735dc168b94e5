//! Converts rows in the forms of Alpaca and ShareGPT to rows with `messages`.

use serde_json::{Map, Value, json};

use super::row::Fault;

/// Converts a row with `instruction`, `input` and `output`, or with `conversations`, to `messages`. Other rows are unchanged.
///
/// An empty `input` is ignored. Otherwise it follows the instruction on a line of its own.
pub fn translate(row: &mut Map<String, Value>) -> Result<(), Fault> {
    if row.contains_key("messages") {
        return Ok(());
    }
    if row.contains_key("instruction") && row.contains_key("output") {
        let mut text = |field: &str| match row.remove(field) {
            Some(Value::String(text)) => Ok(text),
            None | Some(Value::Null) => Ok(String::new()),
            Some(_) => Err(Fault::new(format!("{field}: expected text"), ALPACA)),
        };
        let (instruction, input, output) = (text("instruction")?, text("input")?, text("output")?);
        let system = text("system")?;
        let between = if instruction.is_empty() || input.is_empty() { "" } else { "\n" };
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": instruction + between + &input}));
        messages.push(json!({"role": "assistant", "content": output}));
        row.insert("messages".into(), messages.into());
    } else if let Some(turns) = row.remove("conversations") {
        let Value::Array(turns) = turns else {
            return Err(Fault::new("conversations: expected a list", SHAREGPT));
        };
        let system = match row.remove("system") {
            Some(Value::String(text)) if !text.is_empty() => Some(json!({"role": "system", "content": text})),
            _ => None,
        };
        let turns = turns.into_iter().enumerate().map(|(at, turn)| message(at, turn));
        let messages = system.into_iter().map(Ok).chain(turns).collect::<Result<Vec<_>, _>>()?;
        row.insert("messages".into(), messages.into());
    }
    Ok(())
}

const ALPACA: &str = "`instruction`, `input` and `output` are texts";
const SHAREGPT: &str = "`conversations` is a list of {\"from\": \"human\" or \"gpt\", \"value\": …}";

/// Converts a turn to a message. A turn that is already a message is unchanged.
fn message(at: usize, mut turn: Value) -> Result<Value, Fault> {
    let Some(from) = turn["from"].as_str() else { return Ok(turn) };
    let role = match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "chatgpt" | "model" | "bing" | "bard" => "assistant",
        "system" => "system",
        _ => {
            let what = format!("conversations[{at}]: a turn from `{from:.40}`");
            return Err(Fault::new(what, "calls of tools go under `messages`, in OpenAI's form"));
        }
    };
    match turn["value"].take() {
        Value::String(text) => Ok(json!({"role": role, "content": text})),
        _ => Err(Fault::new(format!("conversations[{at}].value: expected text"), SHAREGPT)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn messages(row: Value) -> Result<Value, String> {
        let Value::Object(mut row) = row else { panic!("an object") };
        translate(&mut row).map_err(|fault| fault.what)?;
        Ok(row.remove("messages").unwrap_or_default())
    }

    fn turns(list: &[(&str, &str)]) -> Value {
        list.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
    }

    #[test]
    fn alpaca_and_sharegpt_become_messages() {
        let alpaca = json!({"instruction": "Translate.", "input": "Glut", "output": "ember"});
        assert_eq!(messages(alpaca).unwrap(), turns(&[("user", "Translate.\nGlut"), ("assistant", "ember")]));
        let short = json!({"instruction": "Say it.", "input": "", "output": "it", "system": "Be brief."});
        let expected = turns(&[("system", "Be brief."), ("user", "Say it."), ("assistant", "it")]);
        assert_eq!(messages(short).unwrap(), expected);
        let sharegpt = json!({"conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}
        ]});
        assert_eq!(messages(sharegpt).unwrap(), turns(&[("system", "s"), ("user", "a"), ("assistant", "b")]));
        let own = json!({"conversations": [{"role": "user", "content": "a"}]});
        assert_eq!(messages(own).unwrap(), turns(&[("user", "a")]));
        for row in
            [json!({"text": "x"}), json!({"instruction": "x"}), json!({"prompt": "x", "completion": "y"})]
        {
            assert_eq!(messages(row).unwrap(), Value::Null);
        }
    }

    #[test]
    fn other_turns_are_named() {
        for (row, said) in [
            (json!({"conversations": 3}), "conversations: expected a list"),
            (
                json!({"conversations": [{"from": "observation", "value": "x"}]}),
                "conversations[0]: a turn from `observation`",
            ),
            (
                json!({"conversations": [{"from": "gpt", "value": 3}]}),
                "conversations[0].value: expected text",
            ),
            (json!({"instruction": 3, "output": "x"}), "instruction: expected text"),
        ] {
            assert_eq!(messages(row).unwrap_err(), said);
        }
    }
}
