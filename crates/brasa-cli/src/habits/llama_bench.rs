//! Options of `llama-bench`, and what Brasa does with each. [`llama_cpp`](super::llama_cpp) names the version that was read.

use super::llama_cpp::{NO_EMBEDDINGS, ONE_DEVICE};
use super::row::Outcome::{Answered, Cases, Noted, Ours, True};
use super::row::{Row, flag, maybe, value};

/// Options of llama-bench that differ from those in [`LLAMA_CPP`](super::llama_cpp::LLAMA_CPP).
pub const LLAMA_BENCH: &[Row] = &[
    value("-p --n-prompt", "N", Ours("--n-prompt")),
    value("-n --n-gen", "N", Ours("--n-gen")),
    value("-d --n-depth", "N", Ours("--n-depth")),
    value(
        "-pg",
        "PP,TG",
        Answered("prompts and answers are measured apart; `-d` measures answers behind a prompt"),
    ),
    value("-npl --n-parallel", "N", Ours("--n-parallel")),
    value("-r --repetitions", "N", Ours("--repetitions")),
    value(
        "-o --output",
        "FORMAT",
        Cases(&[(&["jsonl", "sql"], Answered("tables are md, json or csv"))], &Ours("--output")),
    ),
    value(
        "-oe --output-err",
        "FORMAT",
        Cases(
            &[(&["none"], True("tables go to standard output"))],
            &Answered("tables go to standard output"),
        ),
    ),
    value("--delay", "N", Cases(&[(&["0"], True("off"))], &Noted("there is no delay between measurements"))),
    flag("--progress", True("a terminal shows the progress")),
    flag("--no-warmup", Noted("every measurement follows a warm-up")),
    value("--n-gen-warmup", "N", Noted("every measurement follows a warm-up")),
    value(
        "-nkvo --no-kv-offload",
        "0|1",
        Cases(
            &[(&["0"], True("keys and values are on the model's device"))],
            &Noted("keys and values are on the model's device"),
        ),
    ),
    value("-mmp --mmap", "0|1", True("weights are copied out of the file while it is loaded")),
    value(
        "-dio --direct-io",
        "0|1",
        Cases(
            &[(&["0"], True("files are read through the system's cache"))],
            &Noted("files are read through the system's cache"),
        ),
    ),
    value("-embd --embeddings", "0|1", Cases(&[(&["0"], True("off"))], &Answered(NO_EMBEDDINGS))),
    value("-nopo --no-op-offload", "0|1", True("every operation runs on the model's device")),
    value("--no-host", "0|1", True("concerns buffers that Brasa does not have")),
    maybe(
        "--repack",
        &["0", "1", "auto", "on", "off"],
        Cases(
            &[(&["0", "off"], Noted("weights are always put into the order that suits the device"))],
            &True("weights are always put into the order that suits the device"),
        ),
    ),
    value("--moe-cache", "MODE", Cases(&[(&["auto", "off", "0"], True(ONE_DEVICE))], &Answered(ONE_DEVICE))),
];
