//! Conversations in files: lists of messages, as `/save` writes them, and chats that the page of `brasa serve` exports.

use brasa::Message;
use serde_json::{Map, Value, json};

/// Part of the error about a file that holds no conversation.
const EXPECTED: &str = "expected a list of messages, each with \"role\" and \"content\", as /save writes it";

/// The messages of a saved conversation: a list as `/save` writes it, a request in OpenAI's format, or chats that the page of
/// `brasa serve` exported. Of several chats, the one used last is read, in the branch that the page shows.
///
/// # Errors
///
/// A sentence that describes the mistake and its place.
pub fn messages(bytes: &[u8]) -> Result<Vec<Message>, String> {
    let parsed: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("{EXPECTED}; it is no JSON: {error}"))?;
    let list = match parsed {
        Value::Object(object) if object.get("format").is_some_and(|format| format == "brasa-chats") => {
            last_used(&object)?
        }
        Value::Object(mut object) => object.remove("messages").unwrap_or_default(),
        other => other,
    };
    let messages = Message::read_all(list, "messages").map_err(|error| format!("{EXPECTED}; {error}"))?;
    for (index, message) in messages.iter().enumerate() {
        if !["system", "developer", "user", "assistant", "tool"].contains(&message.role.as_str()) {
            let role: String = message.role.chars().take(40).collect();
            return Err(format!(
                "message {index} is from {role:?}, expected system, user, assistant or tool"
            ));
        }
    }
    match messages.last() {
        Some(last) if last.role == "user" => Err("the last message is a question without an answer".into()),
        _ => Ok(messages),
    }
}

/// The messages of the last used chat of an exported file, in OpenAI's format.
fn last_used(file: &Map<String, Value>) -> Result<Value, String> {
    let chats = file.get("chats").and_then(Value::as_array).ok_or("\"chats\" is no list")?;
    let used = |chat: &&Value| chat["updated"].as_u64().unwrap_or(0);
    let chat = chats.iter().max_by_key(used).ok_or("the file has no chat")?;
    let nodes = chat["nodes"].as_array().ok_or("\"nodes\" of the chat is no list")?;
    let mut messages = Vec::new();
    match chat["system"].as_str() {
        Some(system) if !system.trim().is_empty() => {
            messages.push(json!({"role": "system", "content": system}));
        }
        _ => {}
    }
    let mut parent = "";
    // Parents stand before their children, so the branch never comes to a place again.
    let mut behind = 0;
    loop {
        let chosen = chat["chosen"][parent].as_str();
        let children = || (behind..nodes.len()).filter(|&at| nodes[at]["parent"] == parent);
        let shown = children().find(|&at| chosen.is_some_and(|chosen| nodes[at]["id"] == chosen));
        let Some(at) = shown.or_else(|| children().next_back()) else { break };
        let node = &nodes[at];
        parent = node["id"].as_str().ok_or_else(|| format!("message {at} of the chat has no id"))?;
        messages.push(message(node));
        behind = at + 1;
    }
    // A question that failed or was not answered is asked again by whoever loads the chat.
    while messages.last().is_some_and(|last| last["role"] == "user" || last["content"] == "") {
        messages.pop();
    }
    Ok(Value::Array(messages))
}

/// A message of the page in OpenAI's format. Attached files come before its text, as the page sends them.
fn message(node: &Value) -> Value {
    let files = node["attachments"].as_array().into_iter().flatten().map(|file| {
        let (name, text) =
            (file["name"].as_str().unwrap_or_default(), file["text"].as_str().unwrap_or_default());
        let fence = "`".repeat(longest_run(text).max(2) + 1);
        format!("File {name}:\n{fence}\n{text}\n{fence}")
    });
    let said = node["content"].as_str().unwrap_or_default();
    let content: Vec<String> = files.chain((!said.is_empty()).then(|| said.to_owned())).collect();
    let mut message = json!({"role": node["role"], "content": content.join("\n\n")});
    for (name, of_page) in
        [("reasoning_content", "reasoning"), ("tool_call_id", "toolCallId"), ("name", "toolName")]
    {
        if let Some(text) = node[of_page].as_str().filter(|text| !text.is_empty()) {
            message[name] = text.into();
        }
    }
    let calls = node["toolCalls"].as_array().into_iter().flatten().map(|call| {
        let function = json!({"name": call["name"], "arguments": call["arguments"]});
        json!({"id": call["id"], "type": "function", "function": function})
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// The length of the longest run of backticks.
fn longest_run(text: &str) -> usize {
    text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::messages;

    #[test]
    fn chats_of_the_page_are_read_as_they_are_shown() {
        let file = r#"{"format": "brasa-chats", "version": 1, "chats": [
            {"id": "old", "updated": 1, "system": "", "nodes": [], "chosen": {}},
            {"id": "new", "updated": 2, "system": "Be brief.", "chosen": {"": "a", "a": "b"}, "nodes": [
                {"id": "a", "parent": "", "role": "user", "content": "one", "attachments": [{"name": "f.md", "text": "```x"}]},
                {"id": "b", "parent": "a", "role": "assistant", "content": "", "reasoning": "hm", "toolCalls": [{"id": "1", "name": "f", "arguments": "{\"x\": 1}"}]},
                {"id": "c", "parent": "a", "role": "assistant", "content": "another branch"},
                {"id": "d", "parent": "b", "role": "tool", "content": "5", "toolCallId": "1", "toolName": "f"},
                {"id": "e", "parent": "d", "role": "assistant", "content": "five"},
                {"id": "g", "parent": "e", "role": "user", "content": "not answered"}]}]}"#;
        let messages = messages(file.as_bytes()).expect("a chat");
        let said: Vec<(String, String)> =
            messages.iter().map(|message| (message.role.clone(), message.content.text())).collect();
        let said: Vec<(&str, &str)> =
            said.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
        assert_eq!(
            said,
            [
                ("system", "Be brief."),
                ("user", "File f.md:\n````\n```x\n````\n\none"),
                ("assistant", ""),
                ("tool", "5"),
                ("assistant", "five")
            ]
        );
        assert_eq!(messages[2].tool_calls.len(), 1);
        assert_eq!(messages[2].reasoning_content.as_deref(), Some("hm"));
    }

    #[test]
    fn hostile_chats_of_a_page_are_refused_by_reason() {
        for (chats, reason) in [
            ("3", "\"chats\" is no list"),
            ("[]", "the file has no chat"),
            ("[{\"updated\": 1}]", "is no list"),
            ("[{\"nodes\": [{\"parent\": \"\"}]}]", "message 0 of the chat has no id"),
            (
                "[{\"nodes\": [{\"parent\": \"\", \"id\": \"a\", \"role\": \"boss\", \"content\": \"x\"}]}]",
                "from \"boss\"",
            ),
        ] {
            let file = format!("{{\"format\": \"brasa-chats\", \"chats\": {chats}}}");
            let message = messages(file.as_bytes()).expect_err(chats);
            assert!(message.contains(reason), "{chats}: {message}");
        }
        // A message that is its own parent is read once.
        let file = r#"{"format": "brasa-chats", "chats": [{"nodes": [{"id": "", "parent": "", "role": "assistant", "content": "x"}]}]}"#;
        assert_eq!(messages(file.as_bytes()).map(|messages| messages.len()), Ok(1));
    }

    #[test]
    fn hostile_conversations_are_refused_by_reason() {
        for (text, reason) in [
            ("", "it is no JSON"),
            ("\u{feff}[]", "it is no JSON"),
            ("3", "expected a list of messages"),
            ("{\"messages\": 3}", "expected a list"),
            ("[3]", "expected a list"),
            ("[{}]", "messages[0].role is missing"),
            ("[{\"role\": 3}]", "messages[0].role: a number, expected a text"),
            ("[{\"role\": \"boss\", \"content\": \"x\"}]", "message 0 is from \"boss\""),
            ("[{\"role\": \"user\", \"content\": 3}]", "expected a list"),
            ("[{\"role\": \"user\", \"content\": \"x\"}]", "without an answer"),
            (&"[".repeat(100_000), "recursion limit"),
        ] {
            let message = messages(text.as_bytes()).expect_err(text);
            assert!(message.contains(reason), "{text:.40}: {message}");
        }
        assert!(messages(b"\xff").is_err());
        assert_eq!(messages(b"[]"), Ok(Vec::new()));
        let request = br#"{"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
        assert_eq!(messages(request).map(|messages| messages.len()), Ok(2));
    }
}
