//! Files of examples to documents.

use std::fmt::Write as _;
use std::sync::OnceLock;

use brasa_golden::folder;
use brasa_tokenizer::{ChatTemplate, Tokenizer};
use brasa_train::TrainError;
use brasa_train::data::{DataOptions, Dataset, Document, Examples, Files, Learned, Long, Turns};

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_directory(&folder("tiny-llama")).expect("a tokenizer"))
}

fn read_with(
    rows: &str,
    template: Option<&ChatTemplate>,
    options: &DataOptions,
) -> Result<Dataset, TrainError> {
    let examples = Examples { tokenizer: tokenizer(), template, vocab_size: 4096 };
    Dataset::read_from(rows.as_bytes(), "train.jsonl", &examples, options)
}

fn read(rows: &str, options: &DataOptions) -> Result<Dataset, TrainError> {
    read_with(rows, Some(&tokenizer().chat_template().expect("a template")), options)
}

/// A document as text, with what is learned in brackets.
fn shown(document: &Document) -> String {
    let mut text = String::new();
    let text_of = |tokens: &[u32]| tokenizer().decode(tokens, false).expect("text");
    let mut at = 0;
    for span in &document.spans {
        let (start, end) = (span.tokens.start as usize, span.tokens.end as usize);
        write!(text, "{}[{}]", text_of(&document.tokens[at..start]), text_of(&document.tokens[start..end]))
            .expect("memory");
        at = end;
    }
    text + &text_of(&document.tokens[at..])
}

fn all_shown(rows: &str, options: &DataOptions) -> Vec<String> {
    read(rows, options).expect("documents").documents.iter().map(shown).collect()
}

const TWO_TURNS: &str = r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"},
    {"role": "user", "content": "five"}]}"#;

fn header(role: &str) -> String {
    format!("<|start_header_id|>{role}<|end_header_id|>\n\n")
}

#[test]
fn conversations_learn_answers_the_last_answer_or_everything() {
    let rows = TWO_TURNS.replace('\n', " ");
    let [system, user, assistant] = ["system", "user", "assistant"].map(header);
    let begin = tokenizer().decode(&[tokenizer().special_tokens().bos.expect("a BOS")], false).expect("text");
    let before = format!("{begin}{system}s<|eot_id|>{user}one<|eot_id|>{assistant}");
    let between = format!("{user}three<|eot_id|>{assistant}");
    let default = DataOptions::default();
    assert_eq!(all_shown(&rows, &default), [format!("{before}[two<|eot_id|>]{between}[four<|eot_id|>]")]);
    let last = DataOptions { learned: Learned::LastAnswer, ..default };
    assert_eq!(all_shown(&rows, &last), [format!("{before}two<|eot_id|>{between}[four<|eot_id|>]")]);
    let apart = DataOptions { turns: Turns::Apart, ..default };
    assert_eq!(
        all_shown(&rows, &apart),
        [format!("{before}[two<|eot_id|>]"), format!("{before}two<|eot_id|>{between}[four<|eot_id|>]")]
    );
    let everything = DataOptions { learned: Learned::Everything, ..default };
    let rest = before.strip_prefix(&begin).expect("it begins so");
    assert_eq!(
        all_shown(&rows, &everything),
        [format!("{begin}[{rest}two<|eot_id|>{between}four<|eot_id|>{user}five<|eot_id|>]")]
    );
}

#[test]
fn prompts_and_completions_are_a_conversation_or_without_a_template_one_text() {
    let rows = r#"{"prompt": "one", "completion": " two", "id": 7}"#;
    let begin = tokenizer().decode(&[tokenizer().special_tokens().bos.expect("a BOS")], false).expect("text");
    let expected = format!("{begin}{}one<|eot_id|>{}[two<|eot_id|>]", header("user"), header("assistant"));
    assert_eq!(all_shown(rows, &DataOptions::default()), [expected]);
    let plain = read_with(rows, None, &DataOptions::default()).expect("documents");
    let end = tokenizer().special_tokens().eos.expect("an EOS");
    let document = &plain.documents[0];
    assert_eq!(document.tokens.last(), Some(&end));
    let text = shown(document);
    assert!(text.starts_with(&format!("{begin}one[ two<")), "{text}");
    let everything = DataOptions { learned: Learned::Everything, ..DataOptions::default() };
    let all = shown(&read_with(rows, None, &everything).expect("documents").documents[0]);
    assert!(all.starts_with(&format!("{begin}[one two<")), "{all}");
}

#[test]
fn texts_begin_and_end_once() {
    let tokens = tokenizer().special_tokens();
    let [begin, end] = [tokens.bos, tokens.eos].map(Option::unwrap);
    let begin_text = tokenizer().decode(&[begin], false).expect("text");
    let end_text = tokenizer().decode(&[end], false).expect("text");
    let whole = format!("{begin_text}word{end_text}");
    let rows = ["word", &whole].map(|text| format!("{{\"text\": {}}}", serde_json::json!(text))).join("\n");
    let data = read(&rows, &DataOptions::default()).expect("documents");
    let [first, second] = &data.documents[..] else { panic!("two documents") };
    assert_eq!(first, second);
    assert_eq!(first.learned(), first.tokens.len() - 1);
    assert_eq!((first.tokens[0], first.tokens[first.tokens.len() - 1]), (begin, end));
}

#[test]
fn token_ids_come_as_they_are_with_weights() {
    let rows =
        "\u{FEFF}{\"tokens\": [5, 6, 7, 8], \"weights\": [1, 0.5, 0.5, 0]}\r\n\n{\"input_ids\": [9, 10]}\n";
    let data = read(rows, &DataOptions::default()).expect("documents");
    let targets = |at: usize| data.documents[at].targets().collect::<Vec<_>>();
    assert_eq!((targets(0), targets(1)), (vec![(1, 0.5), (2, 0.5)], vec![(1, 1.0)]));
    assert_eq!((data.documents[0].rows(), data.documents[0].learned()), (2, 2));
    assert_eq!(
        data.report.to_string(),
        "2 rows, 2 documents, 6 tokens, 3 of them learned; lengths 2 to 4, median 2, 95 % up to 2"
    );
}

#[test]
fn long_rows_are_refused_cut_or_left_out_and_counted() {
    let rows = "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [1, 2, 3, 4, 5, 6]}\n{\"tokens\": [1, 2, 3, 4, 5], \"weights\": [0, 0, 0, 0, 1]}";
    let options = |long| DataOptions { max_rows: 3, long, ..DataOptions::default() };
    assert_eq!(
        read(rows, &options(Long::Refuse)).expect_err("too long").to_string(),
        "train.jsonl:2: 6 tokens, a step has at most 4\nhint: allow 5 tokens a step, or cut or skip long examples"
    );
    let cut = read(rows, &options(Long::Cut)).expect("documents");
    assert_eq!(cut.documents[1].tokens[..], [1, 2, 3, 4]);
    assert_eq!(
        cut.report.to_string(),
        "3 rows, 2 documents, 7 tokens, 5 of them learned; lengths 3 to 6, median 5, 95 % up to 5\n1 too long and cut, the \
         first on line 2: 2 tokens lost\n1 too long and left out, the first on line 3: 5 tokens lost"
    );
    let skipped = read(rows, &options(Long::Skip)).expect("documents");
    assert_eq!((skipped.documents.len(), skipped.report.skipped.documents), (1, 2));
    let none = read("{\"tokens\": [1, 2, 3, 4, 5, 6]}", &options(Long::Skip)).expect_err("nothing is left");
    assert_eq!(
        none.to_string(),
        "train.jsonl: no example is left: 1 of 1 rows are too long\nhint: more than 3 tokens a step"
    );
}

/// Data sets write null for every field that another row has, and some write thoughts under several names.
#[test]
fn fields_that_are_null_are_absent_and_parts_are_lines() {
    let plain = r#"{"messages": [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "three"}]}"#;
    let rows = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        "tool_calls": null, "name": null, "reasoning_content": null}, {"role": "assistant", "content": "three", "tool_calls": null,
        "reasoning_content": null, "reasoning": "", "thinking": null, "tool_call_id": null, "weight": null}]}"#;
    let options = DataOptions::default();
    assert_eq!(all_shown(&rows.replace('\n', " "), &options), all_shown(plain, &options));
}

#[test]
fn bad_rows_are_named_with_line_and_remedy() {
    let cases = [
        ("", "train.jsonl: no rows\nhint: each line is one example, a JSON object"),
        ("\n \n", "train.jsonl: no rows\n"),
        (
            "{\"text\": \"a\"}\n\n{\"text\": \"a\"",
            "train.jsonl:3: not JSON: EOF while parsing an object at line 1 column 12\nhint: each line is one JSON object",
        ),
        (
            "[1]",
            "train.jsonl:1: a list, expected an object\nhint: each line is one JSON object; `jq -c '.[]' FILE`",
        ),
        ("{}", "train.jsonl:1: no example in an empty row\n"),
        (
            r#"{"question": "a", "answer": "b"}"#,
            "train.jsonl:1: no example in the fields `question`, `answer`\n",
        ),
        (r#"{"text": "a", "messages": []}"#, "train.jsonl:1: `messages` and `text` in one row\n"),
        (r#"{"text": 5}"#, "train.jsonl:1: text: a number, expected text\n"),
        (r#"{"prompt": "a"}"#, "train.jsonl:1: `prompt` without `completion`\n"),
        (
            r#"{"prompt": [], "completion": []}"#,
            "train.jsonl:1: prompt: a list, expected text\nhint: conversations go under `messages`",
        ),
        (r#"{"messages": []}"#, "train.jsonl:1: messages: none\nhint: leave the row out"),
        (r#"{"messages": "a"}"#, "train.jsonl:1: messages: a string, expected a list of messages"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": {}}]}"#,
            "train.jsonl:1: messages[1].tool_calls: an object, expected a list of calls\n",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": "}}]}]}"#,
            "train.jsonl:1: messages[0].tool_calls[0].function.arguments: no JSON object\nhint: arguments are an object",
        ),
        (r#"{"messages": [{"content": "a"}]}"#, "train.jsonl:1: messages[0].role is missing"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "train.jsonl:1: no assistant turn\nhint: add the assistant's turn, leave the row out, or learn every token",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}], "tools": 1}"#,
            "train.jsonl:1: tools: a number, expected a list\n",
        ),
        (r#"{"tokens": [1, -2]}"#, "train.jsonl:1: tokens: invalid value"),
        (
            r#"{"tokens": [1, 4096]}"#,
            "train.jsonl:1: token id 4096, the model has 4096\nhint: the ids are those of another model",
        ),
        (r#"{"tokens": [1]}"#, "train.jsonl:1: nothing to learn in 1 tokens\nhint: leave the row out"),
        (r#"{"tokens": [1, 2], "weights": [1]}"#, "train.jsonl:1: weights: 1 for 2 tokens\n"),
        (r#"{"tokens": [1, 2], "weights": [1, -1]}"#, "train.jsonl:1: weights[1]: -1\n"),
        (r#"{"tokens": [1, 2], "weights": [1, 1e39]}"#, "train.jsonl:1: weights[1]: inf\n"),
    ];
    for (rows, expected) in cases {
        let error = read(rows, &DataOptions::default()).expect_err(rows).to_string();
        assert!(error.starts_with(expected) && error.contains("\nhint: "), "{rows}\n{error}");
    }
    let error = read_with(TWO_TURNS.replace('\n', " ").as_str(), None, &DataOptions::default());
    let error = error.expect_err("no template").to_string();
    assert!(
        error.starts_with("train.jsonl:1: a conversation, but the model has no chat template\n"),
        "{error}"
    );
}

#[test]
fn one_bad_line_among_many_is_found_and_bytes_that_are_no_text_are_named() {
    let mut rows = "{\"tokens\": [1, 2]}\n".repeat(50_000).into_bytes();
    rows.extend_from_slice(b"{\"text\": \"\xff\"}\n");
    let examples = Examples { tokenizer: tokenizer(), template: None, vocab_size: 4096 };
    let error = Dataset::read_from(&rows[..], "train.jsonl", &examples, &DataOptions::default());
    assert_eq!(
        error.expect_err("a bad line").to_string(),
        "train.jsonl:50001: byte 11 is not UTF-8\nhint: save the file as UTF-8"
    );
}

/// The form of all rows is checked before the first is made of token ids: the mistake at the end comes first.
#[test]
fn mistakes_of_form_are_told_before_those_of_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("train.jsonl");
    let rows = "{\"tokens\": [1, 99999]}\n".repeat(20_000) + "{\"txt\": \"b\"}\n";
    std::fs::write(&path, rows).expect("written");
    let examples = Examples { tokenizer: tokenizer(), template: None, vocab_size: 4096 };
    let error = Dataset::read(&path, &examples, &DataOptions::default()).expect_err("a bad line").to_string();
    assert!(error.contains("train.jsonl:20001: no example in the fields `txt`\nhint: "), "{error}");
}

#[test]
fn tables_have_a_row_of_names_and_cells_in_quotes() {
    let read = |text: &str| {
        let examples = Examples { tokenizer: tokenizer(), template: None, vocab_size: 4096 };
        Dataset::read_from(text.as_bytes(), "train.csv", &examples, &DataOptions::default())
    };
    let table = "number,prompt,completion\r\n1,one ,\" two\"\r\n\n2,\"a \"\"b\"\", c\nd\",e\n";
    let found = read(table).expect("documents");
    let lines = "{\"prompt\": \"one \", \"completion\": \" two\"}\n{\"prompt\": \"a \\\"b\\\", c\\nd\", \"completion\": \"e\"}";
    let expected = read_with(lines, None, &DataOptions::default()).expect("documents");
    assert_eq!(found.documents, expected.documents);
    let tokens = read("tokens,weights\n\"[5, 6, 7]\",\"[0, 1, 0]\"\n\"[1, 2]\",\n").expect("documents");
    assert_eq!(tokens.documents.iter().map(Document::learned).collect::<Vec<_>>(), [1, 1]);
    for (table, expected) in [
        ("text\na\nb,c\n", "train.csv:3: 2 cells, the first row names 1\nhint: "),
        ("text\n\"a\nb\nc\n", "train.csv:2: a quote that is not closed\nhint: "),
        ("text\na \"b\"\n", "train.csv:2: a quote within cell 1\nhint: "),
        ("text\n\"a\"b\n", "train.csv:2: text behind the quotes of cell 1\nhint: "),
        ("tokens\n[1 2]\n", "train.csv:2: tokens: not JSON: "),
        ("txt\na\n", "train.csv:2: no example in the fields `txt`\nhint: "),
        ("text\n", "train.csv: no rows\nhint: "),
    ] {
        let error = read(table).expect_err(table).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn templates_that_do_not_tell_where_a_turn_ends_are_refused_by_line() {
    let source = "{% for m in messages %}<|start_header_id|>{{ ('!' if not loop.last else '') + m.content }}{% endfor %}";
    let template = tokenizer().chat_template_from(source).expect("compiles");
    let rows = TWO_TURNS.replace('\n', " ");
    let error =
        read_with(&rows, Some(&template), &DataOptions::default()).expect_err("ambiguous").to_string();
    let expected = "train.jsonl:1: messages[2]: the template does not open this turn as it shows it in the whole conversation\nhint: ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_folder_has_its_files_and_a_file_is_what_is_learned() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let error = Files::find(path).expect_err("no files").to_string();
    assert!(error.contains("no train.jsonl in this folder\nhint: name a file"), "{error}");
    let missing = Files::find(&path.join("none")).expect_err("no folder").to_string();
    assert!(missing.contains("none: no such file or folder\nhint: "), "{missing}");
    for name in ["train.jsonl", "test.jsonl"] {
        std::fs::write(path.join(name), "{\"tokens\": [1, 2]}").expect("written");
    }
    std::fs::write(path.join("train.csv"), "text\na").expect("written");
    let both = Files::find(path).expect_err("two files").to_string();
    assert!(both.contains(": both train.jsonl and train.csv\nhint: "), "{both}");
    std::fs::remove_file(path.join("train.csv")).expect("removed");
    let files = Files::find(path).expect("files");
    assert_eq!((files.valid, files.test), (None, Some(path.join("test.jsonl"))));
    let one = Files::find(&path.join("test.jsonl")).expect("a file");
    assert_eq!(one, Files { train: path.join("test.jsonl"), valid: None, test: None });
}

fn preferences(long: Long, max_rows: usize) -> DataOptions {
    DataOptions { preferences: true, long, max_rows, ..DataOptions::default() }
}

#[test]
fn a_preference_is_two_documents_whose_answers_are_learned() {
    let options = preferences(Long::Refuse, 100);
    let row = r#"{"prompt": "one", "chosen": "two", "rejected": "three"}"#;
    let found = all_shown(row, &options);
    let answered = |answer: &str| {
        let row = format!(r#"{{"prompt": "one", "completion": "{answer}"}}"#);
        all_shown(&row, &DataOptions::default()).remove(0)
    };
    assert_eq!(found, [answered("two"), answered("three")]);
    let user = r#"{"role": "user", "content": "one"}"#;
    let assistant = |text: &str| format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
    let (two, three) = (assistant("two"), assistant("three"));
    // Messages, with the prompt apart and in both answers.
    for row in [
        format!(r#"{{"prompt": [{user}], "chosen": [{two}], "rejected": [{three}]}}"#),
        format!(r#"{{"chosen": [{user}, {two}], "rejected": [{user}, {three}]}}"#),
    ] {
        assert_eq!(all_shown(&row, &options), found, "{row}");
    }
    let row = row.replace("one", "one\\n");
    let plain = read_with(&row, None, &options).expect("documents");
    let shown: Vec<String> = plain.documents.iter().map(shown).collect();
    assert!(shown[0].contains("one\n[two") && shown[1].contains("one\n[three"), "{shown:?}");
    assert_eq!((plain.report.rows, plain.report.documents), (1, 2));
}

#[test]
fn a_preference_fits_into_a_step_as_a_whole_or_is_cut_or_left_out_as_one() {
    let rows = r#"{"prompt": "one", "chosen": "two two two two two two two two", "rejected": "three"}"#;
    let whole = read_with(rows, None, &preferences(Long::Refuse, 100)).expect("documents");
    let [chosen, rejected] = &whole.documents[..] else { panic!("two documents") };
    let together = chosen.rows() + rejected.rows();
    assert!(read_with(rows, None, &preferences(Long::Refuse, together)).is_ok());
    let refused = read_with(rows, None, &preferences(Long::Refuse, together - 1)).expect_err("too long");
    let expected = format!(
        "train.jsonl:1: {} tokens, a step has at most {}\nhint: allow {together} ",
        together + 2,
        together + 1
    );
    assert!(refused.to_string().starts_with(&expected), "{refused}");
    let cut = read_with(rows, None, &preferences(Long::Cut, together - 1)).expect("documents");
    assert!(cut.documents.iter().map(Document::rows).sum::<usize>() < together);
    assert_eq!(
        (cut.documents.len(), cut.report.cut.documents, cut.documents[1].rows()),
        (2, 1, rejected.rows())
    );
    let rows = format!(r#"{rows}{}{{"prompt": "a", "chosen": "b", "rejected": "c"}}"#, "\n");
    let skipped = read_with(&rows, None, &preferences(Long::Skip, together - 1)).expect("documents");
    assert_eq!((skipped.documents.len(), skipped.report.skipped.documents), (2, 2));
}

#[test]
fn rows_that_are_no_preferences_are_refused() {
    let options = preferences(Long::Refuse, 100);
    let system = r#"{"role": "system", "content": "s"}"#;
    let answer = r#"{"role": "assistant", "content": "a"}"#;
    for (row, expected) in [
        (r#"{"text": "a"}"#.to_owned(), "no `chosen` and `rejected`\nhint: "),
        (r#"{"prompt": "a", "chosen": "b"}"#.into(), "rejected: nothing, expected a text or messages\n"),
        (r#"{"prompt": 1, "chosen": "b", "rejected": "c"}"#.into(), "prompt: a number, expected"),
        (r#"{"chosen": "b", "rejected": "c"}"#.into(), "chosen: no prompt before it\n"),
        (
            r#"{"prompt": "a", "chosen": [], "rejected": "c"}"#.into(),
            "chosen: its last turn is not the assistant's",
        ),
        (r#"{"prompt": "a", "chosen": "b", "rejected": "b"}"#.into(), "chosen and rejected are the same\n"),
        (
            format!(r#"{{"chosen": [{system}, {answer}], "rejected": [{answer}, {answer}]}}"#),
            "chosen and rejected answer different conversations\n",
        ),
    ] {
        let found = read(&row, &options).expect_err("refused").to_string();
        assert!(found.starts_with(&format!("train.jsonl:1: {expected}")), "{found}");
    }
    let found = read(r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#, &DataOptions::default());
    assert!(
        found.expect_err("refused").to_string().starts_with("train.jsonl:1: `chosen` and `rejected`\nhint: ")
    );
}
