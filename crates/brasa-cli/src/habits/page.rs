//! Makes the page `docs/coming-from-llama.cpp.md` from the tables.
//!
//! `INSTA_UPDATE=always cargo test -p brasa-cli habits` writes the page.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;

use super::llama_bench::LLAMA_BENCH;
use super::llama_cpp::LLAMA_CPP;
use super::llama_others::{LLAMA_EMBEDDING, LLAMA_PERPLEXITY};
use super::llama_server::LLAMA_SERVER;
use super::mlx_convert::MLX_CONVERT;
use super::others::{COMMANDS, MLX_LM, MLX_SERVER};
use super::row::{Outcome, Row, Value};
use super::trainers::TRAINERS;
use super::whisper_cpp::WHISPER_CPP;

const START: &str = "\
# Coming from llama.cpp

<!-- Made from the tables in crates/brasa-cli/src/habits by `INSTA_UPDATE=always cargo test -p brasa-cli habits`. -->

Every option of llama.cpp is known to `brasa`: it does the same here, or it is accepted because it makes no difference, or an error
with exit code 2 says what serves instead. None is misread, and none that would change an answer is ignored in silence. Options
are spelled as there: `-ngl 99` is one option, `-ngl=99` works too, and so does `--top_k`.

What is different:

- The first word is the command: `brasa run` (or nothing) chats and answers, `brasa generate` continues a raw text as
  `llama-completion -no-cnv` does, `brasa serve` stands for `llama-server`, `brasa bench` and
  `brasa perplexity` for `llama-bench` and `llama-perplexity`, `brasa quantize` for `llama-quantize` and `convert_hf_to_gguf.py`.
- A prompt is taken as it is; `-e` reads `\\n` in it as a line end, which is llama.cpp's default.
- Samplers run in another order unless `--samplers` gives one, or `--sampling-order llama-cpp` asks for llama.cpp's. Values that a checkpoint recommends come before the
  defaults, which are llama.cpp's.
- A context that is full is an error unless `--context-policy` says otherwise.
- Variables such as `LLAMA_ARG_CTX_SIZE` are read for `brasa serve` and `brasa run`, and stand for the options that llama.cpp's help names beside them. Our
  options, variables (`BRASA_…`) and files win. A note tells what each stands for, or why it is not followed.
- `--timeout` of `brasa serve` limits the time of a request; llama-server's limit of a client's silence is `--client-timeout`, for which `-to` stands.

In the tables, *the same* means that the option is ours too; a name is our name for it. *Accepted* makes no difference, *note* goes on and
says so, *error* ends with the text.

The list is that of llama.cpp's own help texts of November 2026: `llama-server` at commit 00dc8057 (and that of llama-cpp-python 0.3.36), `llama-cli` at 07179550,
`llama-completion` at 0935e842 and `llama-bench` at 08d0baac.
";

#[test]
fn the_page_is_made_from_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coming-from-llama.cpp.md");
    let page = page();
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "INSTA_UPDATE=always cargo test -p brasa-cli habits writes {}", path.display());
}

fn page() -> String {
    let mut page = START.to_owned();
    table(&mut page, "llama-cli, llama-completion and llama-server", LLAMA_CPP);
    table(&mut page, "llama-server, where it differs (`brasa serve`)", LLAMA_SERVER);
    table(&mut page, "llama-embedding, where it differs (`brasa embed`)", LLAMA_EMBEDDING);
    table(&mut page, "llama-perplexity, where it differs (`brasa perplexity`)", LLAMA_PERPLEXITY);
    table(&mut page, "llama-bench, where it differs", LLAMA_BENCH);
    table(&mut page, "whisper-cli, for `brasa transcribe`", WHISPER_CPP);
    table(&mut page, "MLX-LM", MLX_LM);
    table(&mut page, "mlx_lm.server, where it differs (`brasa serve`)", MLX_SERVER);
    table(&mut page, "mlx_lm.convert, for `brasa quantize`", MLX_CONVERT);
    table(&mut page, "TRL, PEFT, Axolotl and LLaMA-Factory, for `brasa train`", TRAINERS);
    page.push_str("\n## Commands of Ollama and others\n\n| command | here |\n|---|---|\n");
    for (command, answer) in COMMANDS {
        writeln!(page, "| `{command}` | {} |", cell(answer)).unwrap();
    }
    page
}

fn table(page: &mut String, title: &str, rows: &[Row]) {
    write!(page, "\n## {title}\n\n| option | here |\n|---|---|\n").unwrap();
    for row in rows {
        let value = match row.value {
            Value::None => String::new(),
            Value::One(name) => format!(" {name}"),
            Value::Many(name) => format!(" {name} …"),
            Value::Maybe(words) => format!(" [{}]", words.join("|")),
            Value::Two(first, second) => format!(" {first} {second}"),
        };
        let last = row.spellings().count() - 1;
        let spellings = row.spellings().enumerate().map(|(at, spelling)| {
            format!("`{}{}`", spelling, if at == last { cell(&value) } else { String::new() })
        });
        let spellings: Vec<_> = spellings.collect();
        writeln!(page, "| {} | {} |", spellings.join(", "), outcome(row, &row.outcome)).unwrap();
    }
}

fn outcome(row: &Row, outcome_of_row: &Outcome) -> String {
    match outcome_of_row {
        Outcome::Ours(long) if row.spellings().any(|spelling| spelling == *long) => "the same".into(),
        Outcome::Ours(long) => format!("`{long}`"),
        Outcome::Becomes(words) => format!("`{}`", words.join(" ")),
        Outcome::Made(_, text) => cell(text),
        Outcome::True(text) => format!("accepted: {}", cell(text)),
        Outcome::Noted(text) => format!("note: {}", cell(text)),
        Outcome::SingleTurn(text) => format!("one answer; without a prompt a note: {}", cell(text)),
        Outcome::Command(command, text) => format!("`brasa {command}`: {}", cell(text)),
        Outcome::Answered(text) => format!("error: {}", cell(text)),
        Outcome::Cases(cases, other) => {
            let cases = cases.iter().map(|(values, case)| {
                let values: Vec<_> = values
                    .iter()
                    .filter(|value| !value.is_empty())
                    .map(|value| format!("`{value}`"))
                    .collect();
                format!("{}: {}", values.join(" "), outcome(row, case))
            });
            let cases: Vec<_> = cases.collect();
            format!("{}; else {}", cases.join("; "), outcome(row, other))
        }
    }
}

/// `text` escaped for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
