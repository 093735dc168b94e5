//! Options of llama-server and llama-embedding that mean something else than in [`LLAMA_CPP`](super::llama_cpp::LLAMA_CPP), or are not there.

use super::row::Outcome::{Answered, Becomes, Cases, Ours, True};
use super::row::{Row, flag, value};

/// Options of llama-server that `brasa serve` has under another spelling, or does without.
pub const LLAMA_SERVER: &[Row] = &[
    value("-np", "N", Ours("--parallel")),
    value("-to", "N", Ours("--timeout")),
    value("-cram", "N", Ours("--cache-ram")),
    value("--cors-origins", "LIST", Ours("--cors-origin")),
    flag("--no-webui", Becomes(&["--no-ui"])),
    flag("--metrics --props --slots --ui --webui --models-autoload", True("is always served")),
    flag("-cb --cont-batching", True("requests are always batched")),
    flag("--cache-prompt --cache-idle-slots", True("prompts are always kept, within `--cache-ram`")),
    flag("--jinja", True("templates are always rendered")),
    flag("--embedding --embeddings --rerank --reranking", True("is always served")),
    value("--embd-normalize", "N", Answered("the field `embd_normalize` of /embedding says it, 2 or -1")),
];

/// Options of llama-embedding that `brasa embed` has in another way.
pub const LLAMA_EMBEDDING: &[Row] = &[
    flag("--embedding --embeddings", True("is what the command does")),
    value(
        "--pooling",
        "WAY",
        Cases(
            &[(&["none", "rank"], Answered("states are pooled as `last`, `mean` or `cls`"))],
            &Ours("--pooling"),
        ),
    ),
    value(
        "--embd-normalize",
        "N",
        Cases(
            &[(&["2"], True("vectors have length 1")), (&["-1"], Becomes(&["--raw"]))],
            &Answered("vectors have length 1 (2) or stay as they are (-1)"),
        ),
    ),
    value(
        "--embd-output-format",
        "FORMAT",
        Cases(
            &[(&["json", "json+"], Becomes(&["--json"]))],
            &Answered("`--json` prints one object, else a line a vector"),
        ),
    ),
    value("--embd-separator", "TEXT", Answered("`--lines` takes each line as a text")),
];
