//! Options and commands of MLX-LM and Ollama, and Brasa's answer to each.

use super::row::Outcome::{Answered, Cases, Command, Noted, Ours, True};
use super::row::{Row, flag, value};

/// Options of `mlx_lm.generate` and `mlx_lm.chat` (MLX-LM 0.32) that llama.cpp does not have.
pub const MLX_LM: &[Row] = &[
    value("--max-tokens", "N", Ours("--predict")),
    value(
        "--min-tokens-to-keep",
        "N",
        Cases(
            &[(&["1"], True("the most probable token always stays"))],
            &Answered("the most probable token always stays; no more can be kept"),
        ),
    ),
    value(
        "--max-kv-size",
        "N",
        Answered("`-c N` limits the context, `--context-policy slide` drops older text"),
    ),
    value(
        "--kv-bits",
        "N",
        Cases(
            &[(&["8"], super::row::Outcome::Becomes(&["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]))],
            &Answered("keys and values are f32, f16, bf16 or q8_0: `-ctk q8_0 -ctv q8_0`"),
        ),
    ),
    value(
        "--kv-group-size --quantized-kv-start",
        "N",
        Noted("q8_0 has blocks of 32 and holds from the first token on"),
    ),
    value("--prefill-step-size", "N", Ours("--ubatch-size")),
    value("--repetition-penalty", "F", Ours("--repeat-penalty")),
    value("--repetition-context-size", "N", Ours("--repeat-last-n")),
    value("--adapter-path", "DIR", Ours("--lora")),
    value("--draft-model", "PATH", Ours("--model-draft")),
    value("--num-draft-tokens", "N", Ours("--draft-max")),
    value("--extra-eos-token", "TEXT", Ours("--stop")),
    value(
        "--prefill-response",
        "TEXT",
        Answered("answers cannot be begun for the model; `brasa generate` continues any text"),
    ),
    value("--prompt-cache-file", "FILE", Ours("--prompt-cache")),
    flag("--ignore-chat-template", Command("generate", "continues the text as it is, like `brasa generate`")),
    flag(
        "--use-default-chat-template",
        True("the model's template is the default, or the one that fits its family"),
    ),
    flag("--trust-remote-code", True("a checkpoint's code is never run")),
];

/// Options of `mlx_lm.server` that `brasa serve` has under another name or does not need.
pub const MLX_SERVER: &[Row] = &[
    value("--allowed-origins", "LIST", Ours("--cors-origin")),
    value("--chat-template-args", "JSON", Ours("--chat-template-kwargs")),
    value("--decode-concurrency --prompt-concurrency", "N", Ours("--parallel")),
    value(
        "--prompt-cache-size --prompt-cache-bytes",
        "N",
        Answered("`--cache-ram MIB` limits the keys and values that are kept"),
    ),
    value(
        "--log-level",
        "LEVEL",
        Noted("the log has a line of JSON for each request; `--quiet` leaves it out"),
    ),
    flag("--pipeline", Answered("one device runs the model")),
];

/// Commands of Ollama and other programs, and Brasa's replacement for each.
pub const COMMANDS: &[(&str, &str)] = &[
    ("list", "`brasa discover DIR` lists the models below a folder"),
    ("ls", "`brasa discover DIR` lists the models below a folder"),
    ("show", "`brasa inspect FILE` shows a model"),
    ("server", "`brasa serve` serves models"),
    ("lora", "`brasa train` learns adapters; its `--config` reads the YAML of mlx_lm.lora"),
    ("fuse", "`brasa quantize IN OUT TYPE --lora DIR` merges an adapter"),
    ("llama-server", "`brasa serve` serves models"),
    ("llama-cli", "`brasa run` chats or answers"),
    ("create", "`brasa quantize IN OUT TYPE` writes a GGUF file"),
    ("convert", "`brasa quantize IN OUT TYPE` writes a GGUF file"),
    ("ps", "`/v1/models` of `brasa serve` lists what is loaded"),
    ("stop", "Ctrl-C stops an answer, or a server"),
    ("rm", "models are files; delete the file or folder"),
    ("cp", "models are files; copy the file or folder"),
    ("push", "models are not uploaded; `hf upload` does that"),
    ("cli", "`brasa run` chats or answers"),
    ("completion", "`brasa generate` continues a text, `brasa completions SHELL` prints a script"),
];
