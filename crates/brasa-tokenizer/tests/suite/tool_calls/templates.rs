//! The form of calls of a template and a vocabulary.

use std::collections::BTreeMap;

use brasa_tokenizer::{HfFiles, Tokenizer, ToolFormat};
use serde_json::{Value, json};

use super::{folder, plain_tokenizer};

#[test]
fn forms_are_found_in_published_templates_and_vocabularies() {
    let tokenizer = plain_tokenizer();
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder().join("chat/templates")).expect("folder") {
        let path = entry.expect("entry").path();
        let source = std::fs::read_to_string(&path).expect("template");
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name").to_owned();
        found.entry(ToolFormat::of(Some(&source), &tokenizer).name()).or_default().push(name);
    }
    let counts: Vec<(&str, usize)> = found.iter().map(|(&format, names)| (format, names.len())).collect();
    assert_eq!(
        counts,
        [
            ("command-r", 1),
            ("deepseek", 2),
            ("gemma-4", 2),
            // SmolLM3's, Gemma 2's and Phi 3.5's templates know nothing of tools.
            ("generic", 3),
            ("glm", 2),
            ("gpt-oss", 1),
            ("hermes", 5),
            ("kimi-k2", 1),
            ("lfm2", 1),
            ("llama-3", 3),
            ("minimax-m2", 1),
            ("mistral", 4),
            ("nemotron-nano", 1),
            ("qwen3-coder", 2),
        ],
        "{found:#?}"
    );
    assert_eq!(ToolFormat::of(None, &tokenizer).name(), "generic");
    let template = "{{ tools }}";
    let with = |tokens: &[&str]| {
        let added: Vec<Value> = tokens
            .iter()
            .zip(0..)
            .map(|(token, id)| json!({"id": id, "content": token, "special": true}))
            .collect();
        let vocabulary: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id.into())).collect();
        let model = json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        let file = json!({"model": model, "added_tokens": added}).to_string();
        Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).expect("tokenizer")
    };
    for (tokens, format) in [
        (&["<tool_call>", "</tool_call>"][..], "hermes"),
        (&["[TOOL_CALLS]", "[ARGS]"], "mistral"),
        (&["<|tool_call>", "<tool_call|>", "<tool_call>", "</tool_call>"], "gemma-4"),
        (&["<start_function_call>", "<end_function_call>"], "functiongemma"),
        (&["<|tool_call|>", "<|/tool_call|>"], "phi-4-mini"),
        (&["<|python_tag|>"], "llama-3"),
        (&["<|python_start|>", "<|python_end|>"], "llama-4"),
    ] {
        let tokenizer = with(tokens);
        let found = ToolFormat::of(Some(template), &tokenizer);
        assert_eq!(found.name(), format);
        // Marks are shown, though they are control tokens.
        let shown = found.token_ids(&tokenizer);
        let mut stream = tokenizer.decode_stream(true).showing(shown.into());
        assert_eq!(stream.push(1.min(tokens.len() as u32 - 1)).expect("id"), tokens[1.min(tokens.len() - 1)]);
        // A template that knows nothing of tools gets the general form.
        assert_eq!(ToolFormat::of(Some("{{ messages }}"), &tokenizer).name(), "generic");
    }
}
