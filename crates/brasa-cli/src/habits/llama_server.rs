//! Options of `llama-server`, and what `brasa serve` does with each. [`llama_cpp`](super::llama_cpp) names the version that was
//! read.
//!
//! Options with the same spelling and meaning in Brasa are left out. So are options for which the table of the other programs has
//! an answer that applies to a server too.

use brasa::sampling::SamplingOrder;

use super::row::Outcome::{Answered, Becomes, Cases, Made, Noted, Ours, True};
use super::row::{Row, flag, maybe, value};

const NO_TOOLS: &str = "the server runs no tools itself: clients run them";
const NO_PAGE_FILES: &str = "the page is part of the program, and keeps its settings in the browser";
const CACHE: &str = "the longest common beginning of texts is found and kept, within `--cache-ram`";
const HEADERS: &str = "pages of the origins of `--cors-origin` may send what the server reads";
const LOG: &str = "the log has a line of JSON for each request, on standard error";

/// Options of llama-server.
pub const LLAMA_SERVER: &[Row] = &[
    // Requests at once, and their memory.
    value("-np --parallel", "N", Cases(&[(&["-1"], True("as many as memory holds"))], &Ours("--parallel"))),
    flag("-cb --cont-batching", True("requests are always batched")),
    flag(
        "-nocb --no-cont-batching",
        Noted("requests are always batched; `--parallel 1` serves one at a time"),
    ),
    value(
        "--kv-unified-per-slot",
        "N",
        Cases(&[(&["0"], True("the model's own context"))], &Ours("--ctx-size")),
    ),
    value(
        "-cram --cache-ram",
        "MIB",
        Cases(&[(&["-1"], Becomes(&["--cache-ram", "1073741824"]))], &Ours("--cache-ram")),
    ),
    flag("--cache-prompt", True(CACHE)),
    flag("--no-cache-prompt", Becomes(&["--cache-ram", "0"])),
    flag("--cache-idle-slots --no-cache-idle-slots", True(CACHE)),
    value(
        "--cache-reuse -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -sps --slot-prompt-similarity",
        "N",
        True(CACHE),
    ),
    flag(
        "--context-shift",
        Answered("an answer ends where the context is full; `-c` makes the context longer"),
    ),
    flag("--no-context-shift", True("an answer ends where the context is full")),
    value("--keep", "N", True("nothing is dropped from a text, so nothing has to be kept")),
    flag("--perf --no-perf", True("an answer's `timings` are there for those who read them")),
    flag("--warmup --no-warmup", True("nothing is run before the first request")),
    // Defaults of requests.
    value("-r --reverse-prompt", "TEXT", Made(stop, "`--stop`, with \\n, \\t and other escapes read")),
    flag("-e --escape", True("escapes in `-r` are read")),
    flag("--no-escape", Answered("`--stop` takes a text without escapes, and there are no other texts")),
    value("-l --logit-bias", "ID±BIAS", Ours("--logit-bias")),
    value("-j --json-schema", "SCHEMA", Ours("--json-schema")),
    value("-jf --json-schema-file", "FILE", Ours("--json-schema-file")),
    flag("-sp --special", Answered("the texts of control tokens are not shown; `return_tokens` shows ids")),
    flag("--spm-infill", True("a gap is asked for in the order of the model's own tokens")),
    // Templates and thoughts.
    flag("--jinja", True("templates are always rendered")),
    flag("--no-jinja", Noted("chat templates are always Jinja")),
    value(
        "-rea --reasoning",
        "on|off",
        Cases(&[(&["auto"], True("the template's own default"))], &Ours("--reasoning")),
    ),
    value(
        "--reasoning-effort",
        "LEVEL",
        Cases(&[(&["default"], True("the template's own default"))], &Ours("--reasoning-effort")),
    ),
    value(
        "--reasoning-budget",
        "N",
        Cases(
            &[
                (&["0"], Becomes(&["--reasoning", "off"])),
                (&["-1"], True("thoughts have no limit of their own")),
            ],
            &Answered(
                "thoughts have no limit of their own; `--reasoning off` leaves them out, `-n` limits answers",
            ),
        ),
    ),
    value(
        "--reasoning-format",
        "FORMAT",
        Cases(
            &[(&["auto", "deepseek"], True("thoughts are `reasoning_content`"))],
            &Answered("thoughts are `reasoning_content` and never part of the answer"),
        ),
    ),
    flag(
        "--skip-chat-parsing",
        Answered("/completion and /v1/completions give the text as the model writes it"),
    ),
    flag("--no-skip-chat-parsing", True("thoughts and calls are always told from the answer")),
    flag("--prefill-assistant", True("an answer goes on with the assistant's words that end a conversation")),
    flag(
        "--no-prefill-assistant",
        Answered("an answer goes on with the assistant's words that end a conversation; leave them out"),
    ),
    // Models.
    value("--lora", "FILE,…", Made(adapters, "`--lora` for each")),
    value(
        "--models-max",
        "N",
        Cases(&[(&["0"], Becomes(&["--models-max", "1000000"]))], &Ours("--models-max")),
    ),
    flag("--models-autoload", True("a model of the folder is loaded when a request names it")),
    value("--models-preset", "FILE", Answered("`--config` takes the options of a server from a TOML file")),
    value(
        "--sleep-idle-seconds",
        "S",
        Cases(&[(&["-1"], True("models stay loaded"))], &Ours("--sleep-idle-seconds")),
    ),
    flag("--embedding --embeddings --rerank --reranking", True("is always served")),
    value(
        "--pooling",
        "WAY",
        Cases(&[(&["rank"], True("documents are always ranked for those who ask"))], &Ours("--pooling")),
    ),
    value(
        "--embd-normalize",
        "N",
        Cases(
            &[(&["2"], True("vectors have length 1"))],
            &Answered("the field `embd_normalize` of /embedding says it, 2 or -1"),
        ),
    ),
    // Addresses.
    value("-to", "S", Ours("--client-timeout")),
    value("--threads-http", "N", Cases(&[(&["-1"], True("two threads"))], &Ours("--threads-http"))),
    value(
        "--cors-origins",
        "LIST",
        Cases(
            &[(&["localhost"], Answered("an origin is named whole: `--cors-origin http://localhost:3000`"))],
            &Ours("--cors-origin"),
        ),
    ),
    value("--cors-methods --cors-headers", "LIST", True(HEADERS)),
    flag("--cors-credentials --no-cors-credentials", True("a key is a header, and cookies are not read")),
    value(
        "--path",
        "DIR",
        Answered("the server serves its own page and no other files; a proxy may serve them"),
    ),
    value("--media-path", "DIR", Answered("files are sent with requests, and none is read for them")),
    // The page and tools.
    flag("--ui --webui", True("is always served")),
    flag("--no-webui", Becomes(&["--no-ui"])),
    value("--ui-config --webui-config", "JSON", Answered(NO_PAGE_FILES)),
    value("--ui-config-file --webui-config-file", "FILE", Answered(NO_PAGE_FILES)),
    flag("--ui-mcp-proxy --webui-mcp-proxy -ag --agent", Answered(NO_TOOLS)),
    flag("--no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent", True(NO_TOOLS)),
    value("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", "VALUE", Answered(NO_TOOLS)),
    flag("--metrics --slots", True("is always served")),
    flag("--props", Noted("/props shows properties; they cannot be changed while the server runs")),
    // The log.
    flag("-v --verbose --log-verbose", Noted(LOG)),
    value("-lv --verbosity --log-verbosity", "N", Cases(&[(&["0"], Becomes(&["--quiet"]))], &True(LOG))),
    flag("--log-disable", Becomes(&["--quiet"])),
    value("--log-file", "FILE", Answered("`2> FILE` keeps the log")),
    flag("--log-jsonl --no-log-jsonl", Noted(LOG)),
    maybe("--log-colors", &["on", "off", "auto"], True("the log is JSON, which has no colours")),
    flag("--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps", True(LOG)),
    value("--log-prompts-dir", "DIR", Answered("no words of prompts and answers are ever logged")),
    flag("--display-prompt --no-display-prompt --simple-io", True("an answer is told without its prompt")),
];

/// The words of `--stop`, with llama.cpp's escapes read.
#[expect(clippy::unnecessary_wraps, reason = "rows of the table read values that may be wrong")]
fn stop(text: &str) -> Result<Vec<String>, String> {
    let mut read = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            read.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => read.push('\n'),
            Some('t') => read.push('\t'),
            Some('r') => read.push('\r'),
            Some(same @ ('\'' | '"' | '\\')) => read.push(same),
            other => {
                read.push('\\');
                read.extend(other);
            }
        }
    }
    Ok(vec![format!("--stop={read}")])
}

/// The words of `--samplers` for llama.cpp's letters.
pub(super) fn samplers(letters: &str) -> Result<Vec<String>, String> {
    let name = |letter| {
        SamplingOrder::name_of_letter(letter)
            .ok_or_else(|| format!("`{letter}` is no sampler that there is; `--samplers` takes names"))
    };
    let names = letters.chars().map(name).collect::<Result<Vec<_>, _>>()?;
    Ok(vec!["--samplers".into(), names.join(";")])
}

/// The words of `--lora` for each file of a list. A file with a comma in its name is recognised.
#[expect(clippy::unnecessary_wraps, reason = "rows of the table read values that may be wrong")]
fn adapters(list: &str) -> Result<Vec<String>, String> {
    let files: Vec<&str> =
        if std::path::Path::new(list).exists() { vec![list] } else { list.split(',').collect() };
    Ok(files.into_iter().flat_map(|file| ["--lora".to_owned(), file.to_owned()]).collect())
}

/// The words of `--lora FILE=SCALE` for each `FILE:SCALE` of a list.
pub fn scaled_adapters(list: &str) -> Result<Vec<String>, String> {
    let one = |item: &str| match item.rsplit_once(':') {
        Some((file, scale)) if !file.is_empty() && scale.parse::<f32>().is_ok_and(f32::is_finite) => {
            Ok(["--lora".to_owned(), format!("{file}={scale}")])
        }
        _ => Err(format!("`{item}` is no FILE:SCALE; `--lora FILE=SCALE` scales an adapter too")),
    };
    Ok(list.split(',').map(one).collect::<Result<Vec<_>, _>>()?.concat())
}
