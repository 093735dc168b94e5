//! Options of llama-embedding and llama-perplexity that differ from those in [`LLAMA_CPP`](super::llama_cpp::LLAMA_CPP).

use super::row::Outcome::{Answered, Becomes, Cases, Ours, True};
use super::row::{Row, flag, value};

/// Options of llama-embedding that `brasa embed` has in another form.
pub const LLAMA_EMBEDDING: &[Row] = &[
    flag("--embedding --embeddings", True("is what the command does")),
    value(
        "--pooling",
        "WAY",
        Cases(&[(&["rank"], Answered("`brasa rerank` judges documents"))], &Ours("--pooling")),
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
    value("--cls-separator", "TEXT", Answered("`brasa rerank` judges pairs of texts")),
    value("--attention", "KIND", Answered("the kind of attention is the model's own")),
];

/// Options of llama-perplexity that `brasa perplexity` has in another form or not at all.
pub const LLAMA_PERPLEXITY: &[Row] = &[
    value(
        "--chunks",
        "N",
        Cases(
            &[(&["-1"], True("the whole text"))],
            &Answered("the whole text is measured; `head -c N` makes a shorter file"),
        ),
    ),
    value(
        "--ppl-stride",
        "N",
        Cases(&[(&["0"], True("off"))], &Answered("windows of the text do not overlap")),
    ),
    value(
        "--ppl-output-type",
        "N",
        Cases(&[(&["0"], True("one number"))], &Answered("`--json` prints the figures")),
    ),
    flag(
        "--hellaswag --winogrande --multiple-choice",
        Answered("tasks are measured by lm-eval, which asks `brasa serve` for log-probabilities"),
    ),
    value(
        "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks",
        "N",
        Answered("tasks are measured by lm-eval, which asks `brasa serve` for log-probabilities"),
    ),
    flag(
        "--kl-divergence",
        Answered("`brasa logits` saves the logits of a text, which tell how two models differ"),
    ),
    value(
        "--save-all-logits --kl-divergence-base",
        "FILE",
        Answered("`brasa logits` saves the logits of a text, in NumPy's format"),
    ),
];
