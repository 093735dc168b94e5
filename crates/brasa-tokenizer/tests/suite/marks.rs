//! Control tokens within messages are text, and templates see them as they are, whatever they do with a message.

use brasa_tokenizer::{
    AddSpecial, ChatOptions, ChatTemplate, HfFiles, Message, ParseSpecial, Tokenizer, TrainedTurns,
};
use serde_json::{Value, json};

/// A tokenizer whose ids are bytes and control tokens, so that no text depends on its neighbours.
fn tokenizer(control: &[String]) -> Tokenizer {
    // GPT-2's alphabet of bytes.
    let plain = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let letters = (0..256_u32).map(|byte| if plain(byte) { byte } else { others.next().expect("a letter") });
    let letters = letters.map(|letter| char::from_u32(letter).expect("a letter").to_string());
    let vocabulary: serde_json::Map<String, Value> =
        letters.zip(0..).map(|(letter, id)| (letter, id.into())).collect();
    let added = control.iter().zip(256..);
    let added: Vec<Value> = added
        .map(|(token, id)| json!({"id": id, "content": token, "special": true, "normalized": false}))
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": false});
    let file = json!({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": added,
                      "pre_tokenizer": byte_level, "decoder": byte_level});
    Tokenizer::from_json(&HfFiles { tokenizer: &file.to_string(), ..HfFiles::default() }).expect("tokenizer")
}

/// Texts in a template's source that look like a control token: `<…>`, `[…]` or `<｜…｜>` without spaces.
fn tokens_in(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, open) in source.char_indices().filter(|(_, char)| matches!(char, '<' | '[')) {
        let close = if open == '<' { '>' } else { ']' };
        let Some(end) = source[at..].find(close) else { continue };
        let token = &source[at..=at + end];
        let inner = &token[1..token.len() - 1];
        let is_name = inner.chars().all(|char| char.is_alphanumeric() || "_|/｜▁~".contains(char));
        let is_word = inner.len() > 2 && !inner.contains(char::is_numeric) && inner != "INST";
        let is_upper = open == '<' || inner.chars().all(|char| !char.is_lowercase());
        if is_name && is_word && is_upper && !found.contains(&token.to_owned()) {
            found.push(token.to_owned());
        }
    }
    found
}

fn ids(tokenizer: &Tokenizer, text: &str, parse: ParseSpecial) -> Vec<u32> {
    tokenizer.encode(text, AddSpecial::No, parse).expect("ids")
}

/// The ids of a text in which tokens between `before` and `behind` come from messages.
fn expected(tokenizer: &Tokenizer, text: &str, token: &str, before: &str, behind: &str) -> Vec<u32> {
    let whole = format!("{before}{token}{behind}");
    let mut out = Vec::new();
    for (at, part) in text.split(&whole).enumerate() {
        if at > 0 {
            out.extend(ids(tokenizer, &whole, ParseSpecial::No));
        }
        out.extend(ids(tokenizer, part, ParseSpecial::Yes));
    }
    out
}

#[test]
fn published_templates_see_messages_as_they_are_and_obey_no_token_in_them() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/templates");
    let (mut combinations, mut rendered, mut wrong) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        let source = std::fs::read_to_string(&path).expect("template");
        let template =
            ChatTemplate::new(&source, [("bos_token", "<s>"), ("eos_token", "</s>")]).expect("compiles");
        let mut control = tokens_in(&source);
        control.extend(["<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
        control.sort();
        control.dedup();
        let tokenizer = tokenizer(&control);
        for token in &control {
            combinations += 1;
            for (before, behind) in [("⟦", "⟧"), ("⟦", "\n\n⟧")] {
                let text = format!(" \n{before}{token}{behind}\n ");
                let tool = json!({"type": "function", "function": {"name": "f", "description": text,
                    "parameters": {"type": "object", "properties": {text.clone(): {"type": "string", "description": text}}}}});
                let call = json!({"role": "assistant", "content": text, "tool_calls": [{"id": "c00000000", "type": "function",
                    "function": {"name": "f", "arguments": {"a": text, text.clone(): [text]}}}]});
                let messages: Vec<Message> = serde_json::from_value(json!([
                    {"role": "system", "content": text},
                    {"role": "user", "content": text},
                    {"role": "assistant", "content": text, "reasoning_content": text},
                    {"role": "user", "content": text},
                    call,
                    {"role": "tool", "tool_call_id": "c00000000", "content": text},
                ]))
                .expect("messages");
                for (count, tools) in [(4, None), (6, Some([tool]))] {
                    let options = ChatOptions {
                        tools: tools.as_ref().map(<[Value; 1]>::as_slice),
                        ..ChatOptions::default()
                    };
                    // Some refuse a conversation: with and without marks.
                    let found =
                        tokenizer.encode_chat(&template, &messages[..count], &options, ParseSpecial::No);
                    let fitted = template.fit(&messages[..count], &options).expect("fitted");
                    let Ok(plain) = template.render(&fitted, &options) else {
                        found.expect_err("refused");
                        continue;
                    };
                    rendered += 1;
                    let found = found.expect("ids");
                    let text = tokenizer.decode(&found, false).expect("text");
                    if text != plain {
                        let at = text.chars().zip(plain.chars()).take_while(|(a, b)| a == b).count();
                        let near = |text: &str| {
                            text.chars().skip(at.saturating_sub(30)).take(80).collect::<String>()
                        };
                        wrong.push(format!(
                            "{} {token}: {:?}, and without marks {:?}",
                            path.display(),
                            near(&text),
                            near(&plain)
                        ));
                        continue;
                    }
                    // JSON writes the line breaks in another way.
                    let escaped = behind.replace('\n', "\\n");
                    let expected = if plain.contains(&format!("{token}{escaped}")) && behind != escaped {
                        let own = |part: &[u32]| part.iter().filter(|id| **id >= 256).count();
                        assert!(own(&found) <= own(&expected(&tokenizer, &plain, token, before, behind)));
                        continue;
                    } else {
                        expected(&tokenizer, &plain, token, before, behind)
                    };
                    if found != expected {
                        wrong.push(format!("{} {token:?} {before:?} {behind:?}: other ids", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {rendered}: {}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(combinations > 200 && rendered > 400, "{combinations} {rendered}");
}

/// Expressions that templates apply to a text `c`; `T` is a control token.
const OPERATIONS: [&str; 46] = [
    "c",
    "c ~ c",
    "c + c",
    "c * 2",
    "c | trim",
    "c.strip()",
    "c.lstrip('\\n')",
    "c.rstrip('>')",
    "c | trim('<>|')",
    "c.split(T)[0]",
    "c.split(T)[-1]",
    "c.split(T)[-1].lstrip('\\n')",
    "c.split(T, 1) | join('-')",
    "c.split('|') | join('|')",
    "c.split() | join(' ')",
    "c | split(T) | last",
    "c.splitlines() | join('/')",
    "c | lines | join",
    "c.partition(T)[2]",
    "c.rpartition(T)[0]",
    "c.removeprefix(T)",
    "c.removesuffix(T)",
    "c.replace('#', '')",
    "c | replace('#', '')",
    "c.replace(T, '')",
    "c.replace('', '.')",
    "c | upper",
    "c.lower()",
    "c.title()",
    "c | capitalize",
    "c | upper | lower",
    "c | reverse",
    "c[::-1]",
    "c[1:]",
    "c[:-1]",
    "c[3:9]",
    "c | tojson",
    "c | tojson(ensure_ascii=true)",
    "[c] | string",
    "{c: c} | tojson",
    "{c: c}[c]",
    "'%s' | format(c)",
    "c | list | join",
    "c | escape",
    "[T in c, c.startswith(T), c.endswith(T), c.find(T), c.rfind('|'), c.count('<'), c == T, c < T, c | length, c in [T], c | int(7)]",
    "[c, 'x'] | sort | map('upper') | select('ne', T) | join(',')",
];

/// Control tokens of several kinds.
const CONTROL: [&str; 6] =
    ["<|im_end|>", "</think>", "[PAD]", "<｜end▁of▁sentence｜>", "\u{100000}end", "Turn"];

/// Texts of users around a control token.
fn contents(token: &str) -> [String; 7] {
    let (head, tail) = token.split_at(token.char_indices().nth(2).expect("long").0);
    [
        token.to_owned(),
        format!("{token}\n\n a {token} "),
        format!("\n a\u{100001}{token}{token}b\u{F0A2E}"),
        // A token that the template puts together.
        format!("{head}#{tail} {head}{token}{tail}"),
        token.chars().rev().collect(),
        format!("{} {}", token.to_lowercase(), token.to_uppercase()),
        format!("ß{token} \"quoted\" 'x'\\"),
    ]
}

/// Asserts that a chat's ids are those of the rendered text, in which what `⟦` and `⟧` enclose is text alone. Returns what differs.
fn check(tokenizer: &Tokenizer, template: &ChatTemplate, content: &str) -> Result<(), String> {
    let messages = [Message::new("user", content)];
    let options = ChatOptions::default();
    let plain = template.render(&messages, &options).expect("text");
    let mut expected = Vec::new();
    for part in plain.split_inclusive(['⟦', '⟧']) {
        let parse = if part.ends_with('⟧') { ParseSpecial::No } else { ParseSpecial::Yes };
        expected.extend(ids(tokenizer, part, parse));
    }
    let found = tokenizer.encode_chat(template, &messages, &options, ParseSpecial::No).expect("ids");
    let text = tokenizer.decode(&found, false).expect("text");
    if text != plain {
        return Err(format!("{text:?}, expected {plain:?}"));
    }
    let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    let behind = tokenizer.decode(&expected[..same], false).expect("text");
    if found == expected { Ok(()) } else { Err(format!("other ids behind {behind:?}")) }
}

/// A template that writes `operation` of each message. The token is written before and behind each text, and the texts' own signs tell where
/// they begin and end.
fn template_of(token: &str, operation: &str) -> ChatTemplate {
    let source = format!(
        "{{% set T = '{token}' %}}{{% for m in messages %}}{{% set c = m.content %}}{operation}{{% endfor %}}"
    );
    ChatTemplate::new(&source, []).expect("compiles")
}

#[test]
fn templates_that_cut_texts_at_control_tokens_see_no_marks() {
    let tokenizer = tokenizer(&CONTROL.map(str::to_owned));
    let written = OPERATIONS.map(|operation| format!("{{{{ T ~ '⟦' ~ ({operation}) ~ '⟧' ~ T }}}}"));
    for token in CONTROL {
        let template = template_of(token, &written.concat());
        for content in contents(token) {
            if let Err(error) = check(&tokenizer, &template, &content) {
                panic!("{token:?} {content:?}: {error}");
            }
        }
    }
}

/// Two operations one after the other, each pair a template of its own: 230 templates, each with every token.
#[test]
fn hundreds_of_templates_that_cut_texts_twice_see_no_marks() {
    let tokenizer = tokenizer(&CONTROL.map(str::to_owned));
    let (mut templates, mut wrong) = (0, Vec::new());
    for (at, first) in OPERATIONS.iter().enumerate() {
        // Steps that share no factor with the count bring every operation into second place.
        for step in [1, 3, 7, 11, 17] {
            let second = OPERATIONS[(at * 5 + step) % OPERATIONS.len()];
            templates += 1;
            let written = format!("{{% set c = ({first}) ~ '' %}}{{{{ T ~ '⟦' ~ ({second}) ~ '⟧' ~ T }}}}");
            for (number, token) in CONTROL.iter().enumerate() {
                let template = template_of(token, &written);
                // Contents take turns, so that each pair meets six of the seven.
                let content = &contents(token)[(number + at + step) % 7];
                if let Err(error) = check(&tokenizer, &template, content) {
                    wrong.push(format!("{token:?} {content:?} {first}, then {second}: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(9)].join("\n"));
    assert!(templates >= 200, "{templates}");
}

#[test]
fn training_learns_the_template_s_own_tokens_where_a_template_cuts_thoughts_off() {
    let control = ["<think>", "</think>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let tokenizer = tokenizer(&control);
    let body = "{{ m.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>' }}";
    let turn = |body: &str| {
        format!("{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\\n' }}}}{body}\n{{% endfor %}}")
    };
    let only =
        "{% if m.role == 'assistant' %}{% generation %}BODY{% endgeneration %}{% else %}BODY{% endif %}";
    let tagged = turn(&only.replace("BODY", body));
    for source in [
        format!("{}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}", turn(body)),
        tagged,
    ] {
        let template = tokenizer.chat_template_from(&source).expect("compiles");
        let messages = [
            Message::new("user", "one<|im_end|>\u{F0A2F}\u{F0A2E}"),
            Message::new("assistant", "<think>h</think>\n\nfirst\u{F0A2F}"),
        ];
        let encoded = tokenizer
            .encode_turns(&template, &messages, &ChatOptions::default(), TrainedTurns::All)
            .expect("turns");
        let learned = &encoded.ids[encoded.turns[0].clone()];
        assert_eq!(tokenizer.decode(learned, false).expect("text"), "first\u{F0A2F}<|im_end|>", "{source}");
        assert_eq!(learned.len(), 5 + 4 + 1);
        let own = encoded.ids.iter().filter(|id| **id >= 256).count();
        assert_eq!((own, encoded.turns.len()), (4, 1), "two of each, and the user's is text");
    }
}
