//! llama.cpp's environment variables, for `brasa serve` and `run`. Each corresponds to an option, and is used only if neither the
//! command line nor a variable or file of Brasa sets that option.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, Command};

use super::row::Value;
use super::{Translated, Translation};
use crate::args::Arguments;
use crate::failure::Failure;
use crate::paint::When;

/// Variables by their names after `LLAMA_`, in the order of llama-server's help: the option of each, and the option for values
/// such as `off` if it is a different one.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("ARG_THREADS", "--threads", ""),
    ("ARG_CTX_SIZE", "--ctx-size", ""),
    ("ARG_N_PREDICT", "--predict", ""),
    ("ARG_BATCH", "--batch-size", ""),
    ("ARG_UBATCH", "--ubatch-size", ""),
    ("ARG_SWA_FULL", "--swa-full", ""),
    ("ARG_FLASH_ATTN", "--flash-attn", ""),
    ("ARG_PERF", "--perf", "--no-perf"),
    ("ARG_ROPE_SCALING_TYPE", "--rope-scaling", ""),
    ("ARG_ROPE_SCALE", "--rope-scale", ""),
    ("ARG_ROPE_FREQ_BASE", "--rope-freq-base", ""),
    ("ARG_ROPE_FREQ_SCALE", "--rope-freq-scale", ""),
    ("ARG_YARN_ORIG_CTX", "--yarn-orig-ctx", ""),
    ("ARG_YARN_EXT_FACTOR", "--yarn-ext-factor", ""),
    ("ARG_YARN_ATTN_FACTOR", "--yarn-attn-factor", ""),
    ("ARG_YARN_BETA_SLOW", "--yarn-beta-slow", ""),
    ("ARG_YARN_BETA_FAST", "--yarn-beta-fast", ""),
    ("ARG_KV_OFFLOAD", "--kv-offload", "--no-kv-offload"),
    ("ARG_REPACK", "--repack", "--no-repack"),
    ("ARG_NO_HOST", "--no-host", ""),
    ("ARG_CACHE_TYPE_K", "--cache-type-k", ""),
    ("ARG_CACHE_TYPE_V", "--cache-type-v", ""),
    ("ARG_DEFRAG_THOLD", "--defrag-thold", ""),
    ("ARG_RPC", "--rpc", ""),
    ("ARG_LOAD_MODE", "--load-mode", ""),
    ("ARG_LAZY_MODE", "--lazy-mode", ""),
    ("ARG_NUMA", "--numa", ""),
    ("ARG_DEVICE", "--device", ""),
    ("ARG_OVERRIDE_TENSOR", "--override-tensor", ""),
    ("ARG_CPU_MOE", "--cpu-moe", ""),
    ("ARG_N_CPU_MOE", "--n-cpu-moe", ""),
    ("ARG_N_CPU_FFN", "--n-cpu-ffn", ""),
    ("ARG_N_GPU_LAYERS", "--gpu-layers", ""),
    ("ARG_SPLIT_MODE", "--split-mode", ""),
    ("ARG_TENSOR_SPLIT", "--tensor-split", ""),
    ("ARG_MAIN_GPU", "--main-gpu", ""),
    ("ARG_FIT", "--fit", ""),
    ("ARG_FIT_TARGET", "--fit-target", ""),
    ("ARG_FIT_CTX", "--fit-ctx", ""),
    ("ARG_MODEL", "--model", ""),
    ("ARG_MODEL_URL", "--model-url", ""),
    ("ARG_DOCKER_REPO", "--docker-repo", ""),
    ("ARG_HF_REPO", "--hf-repo", ""),
    ("ARG_HF_FILE", "--hf-file", ""),
    ("ARG_LOG_FILE", "--log-file", ""),
    ("ARG_LOG_JSONL", "--log-jsonl", "--no-log-jsonl"),
    ("ARG_LOG_COLORS", "--log-colors", ""),
    ("ARG_OFFLINE", "--offline", ""),
    ("ARG_LOG_VERBOSITY", "--verbosity", ""),
    ("ARG_LOG_PREFIX", "--log-prefix", "--no-log-prefix"),
    ("ARG_LOG_TIMESTAMPS", "--log-timestamps", "--no-log-timestamps"),
    ("ARG_SPEC_DRAFT_CACHE_TYPE_K", "--spec-draft-type-k", ""),
    ("ARG_SPEC_DRAFT_CACHE_TYPE_V", "--spec-draft-type-v", ""),
    ("ARG_TEMPERATURE", "--temp", ""),
    ("ARG_TOP_K", "--top-k", ""),
    ("ARG_TOP_P", "--top-p", ""),
    ("ARG_MIN_P", "--min-p", ""),
    ("ARG_REPEAT_PENALTY", "--repeat-penalty", ""),
    ("ARG_PRESENCE_PENALTY", "--presence-penalty", ""),
    ("ARG_FREQUENCY_PENALTY", "--frequency-penalty", ""),
    ("ARG_BACKEND_SAMPLING", "--backend-sampling", ""),
    ("ARG_KV_UNIFIED_PER_SLOT", "--kv-unified-per-slot", ""),
    ("ARG_CTX_CHECKPOINTS", "--ctx-checkpoints", ""),
    ("ARG_CHECKPOINT_MIN_SPACING_NT", "--checkpoint-min-step", ""),
    ("ARG_CACHE_RAM", "--cache-ram", ""),
    ("ARG_KV_UNIFIED", "--kv-unified", "--no-kv-unified"),
    ("ARG_CACHE_IDLE_SLOTS", "--cache-idle-slots", "--no-cache-idle-slots"),
    ("ARG_CONTEXT_SHIFT", "--context-shift", "--no-context-shift"),
    ("ARG_POOLING", "--pooling", ""),
    ("ARG_N_PARALLEL", "--parallel", ""),
    ("ARG_CONT_BATCHING", "--cont-batching", "--no-cont-batching"),
    ("ARG_MMPROJ", "--mmproj", ""),
    ("ARG_MMPROJ_URL", "--mmproj-url", ""),
    ("ARG_MMPROJ_AUTO", "--mmproj-auto", "--no-mmproj-auto"),
    ("ARG_MMPROJ_OFFLOAD", "--mmproj-offload", "--no-mmproj-offload"),
    ("ARG_IMAGE_MIN_TOKENS", "--image-min-tokens", ""),
    ("ARG_IMAGE_MAX_TOKENS", "--image-max-tokens", ""),
    ("ARG_MTMD_BATCH_MAX_TOKENS", "--mtmd-batch-max-tokens", ""),
    ("ARG_VIDEO_FPS", "--video-fps", ""),
    ("ARG_VIDEO_TIMESTAMP_INTERVAL", "--video-timestamp-interval", ""),
    ("ARG_VIDEO_FFMPEG_DIR", "--video-ffmpeg-dir", ""),
    ("ARG_ALIAS", "--alias", ""),
    ("ARG_TAGS", "--tags", ""),
    ("ARG_HOST", "--host", ""),
    ("ARG_PORT", "--port", ""),
    ("ARG_REUSE_PORT", "--reuse-port", ""),
    ("ARG_STATIC_PATH", "--path", ""),
    ("ARG_CORS_ORIGINS", "--cors-origins", ""),
    ("ARG_CORS_METHODS", "--cors-methods", ""),
    ("ARG_CORS_HEADERS", "--cors-headers", ""),
    ("ARG_CORS_CREDENTIALS", "--cors-credentials", "--no-cors-credentials"),
    ("ARG_API_PREFIX", "--api-prefix", ""),
    ("ARG_UI_CONFIG", "--ui-config", ""),
    ("ARG_UI_CONFIG_FILE", "--ui-config-file", ""),
    ("ARG_UI_MCP_PROXY", "--ui-mcp-proxy", "--no-webui-mcp-proxy"),
    ("ARG_TOOLS", "--tools", ""),
    ("ARG_TOOLS_RUNTIME", "--tools-runtime", ""),
    ("ARG_MCP_SERVERS_CONFIG", "--mcp-servers-config", ""),
    ("ARG_MCP_SERVERS_JSON", "--mcp-servers-json", ""),
    ("ARG_AGENT", "--agent", "--no-agent"),
    ("ARG_UI", "--ui", "--no-webui"),
    ("ARG_EMBEDDINGS", "--embedding", ""),
    ("ARG_RERANKING", "--rerank", ""),
    ("API_KEY", "--api-key", ""),
    ("ARG_API_KEY_FILE", "--api-key-file", ""),
    ("ARG_SSL_KEY_FILE", "--ssl-key-file", ""),
    ("ARG_SSL_CERT_FILE", "--ssl-cert-file", ""),
    ("ARG_CHAT_TEMPLATE_KWARGS", "--chat-template-kwargs", ""),
    ("ARG_TIMEOUT", "--timeout", ""),
    ("ARG_SSE_PING_INTERVAL", "--sse-ping-interval", ""),
    ("ARG_THREADS_HTTP", "--threads-http", ""),
    ("ARG_CACHE_PROMPT", "--cache-prompt", "--no-cache-prompt"),
    ("ARG_CACHE_REUSE", "--cache-reuse", ""),
    ("ARG_ENDPOINT_METRICS", "--metrics", ""),
    ("ARG_ENDPOINT_PROPS", "--props", ""),
    ("ARG_ENDPOINT_SLOTS", "--slots", "--no-slots"),
    ("ARG_MODELS_DIR", "--models-dir", ""),
    ("ARG_MODELS_PRESET", "--models-preset", ""),
    ("ARG_MODELS_MAX", "--models-max", ""),
    ("ARG_MODELS_AUTOLOAD", "--models-autoload", "--no-models-autoload"),
    ("ARG_JINJA", "--jinja", "--no-jinja"),
    ("ARG_THINK", "--reasoning-format", ""),
    ("ARG_REASONING", "--reasoning", ""),
    ("ARG_REASONING_EFFORT", "--reasoning-effort", ""),
    ("ARG_THINK_BUDGET", "--reasoning-budget", ""),
    ("ARG_THINK_BUDGET_MESSAGE", "--reasoning-budget-message", ""),
    ("ARG_REASONING_PRESERVE", "--reasoning-preserve", "--no-reasoning-preserve"),
    ("ARG_CHAT_TEMPLATE", "--chat-template", ""),
    ("ARG_CHAT_TEMPLATE_FILE", "--chat-template-file", ""),
    ("ARG_SKIP_CHAT_PARSING", "--skip-chat-parsing", "--no-skip-chat-parsing"),
    ("ARG_PREFILL_ASSISTANT", "--prefill-assistant", "--no-prefill-assistant"),
    ("ARG_SPEC_DRAFT_HF_REPO", "--spec-draft-hf", ""),
    ("ARG_SPEC_DRAFT_CPU_MOE", "--spec-draft-cpu-moe", ""),
    ("ARG_SPEC_DRAFT_N_CPU_MOE", "--spec-draft-n-cpu-moe", ""),
    ("ARG_SPEC_DRAFT_N_MAX", "--spec-draft-n-max", ""),
    ("ARG_SPEC_DRAFT_N_MIN", "--spec-draft-n-min", ""),
    ("ARG_SPEC_SYNTH_LEN", "--spec-synth-len", ""),
    ("ARG_SPEC_SYNTH_RATES", "--spec-synth-rates", ""),
    ("ARG_SPEC_DRAFT_P_SPLIT", "--spec-draft-p-split", ""),
    ("ARG_SPEC_DRAFT_P_MIN", "--spec-draft-p-min", ""),
    ("ARG_SPEC_DRAFT_BACKEND_SAMPLING", "--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"),
    ("ARG_N_GPU_LAYERS_DRAFT", "--spec-draft-ngl", ""),
    ("ARG_SPEC_DRAFT_MODEL", "--spec-draft-model", ""),
    ("ARG_SPEC_TYPE", "--spec-type", ""),
    ("ARG_DRAFT_MAX", "--draft", ""),
    ("ARG_DRAFT_MIN", "--draft-min", ""),
];

/// Options that exclude each other: a variable for one is ignored if another is set.
const ALTERNATIVES: &[&[&str]] = &[&["model", "hf-repo"], &["chat-template", "chat-template-file"]];

/// Words for the options that the environment sets and `arguments` do not, with a note for each variable.
///
/// # Errors
///
/// [`Failure::Usage`] for a switch with a value that is neither on nor off, naming the variable.
pub fn extend(
    arguments: Vec<OsString>,
    variables: impl Iterator<Item = (OsString, OsString)>,
    color: When,
) -> Result<Translated, Failure> {
    let mut found: Vec<(String, String)> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("LLAMA_ARG_") || name == "LLAMA_API_KEY")
        .collect();
    found.sort();
    let mut extended = Translated { arguments, notes: Vec::new() };
    if found.is_empty() {
        return Ok(extended);
    }
    let parser = Arguments::parser(color);
    // Errors and requests for help are the parser's own.
    let Ok(matches) = parser.clone().try_get_matches_from(&extended.arguments) else { return Ok(extended) };
    let (command, matches) = match matches.subcommand() {
        Some((name @ ("serve" | "run" | "chat"), matches)) => (Some(name), matches),
        None => (None, &matches),
        Some(_) => return Ok(extended),
    };
    let of_command = command.and_then(|name| parser.find_subcommand(name)).unwrap_or(&parser);
    let is_set =
        |argument: &&Arg| matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
    let set = of_command.get_arguments().filter(is_set);
    let mut set: Vec<String> = set.filter_map(|argument| argument.get_long().map(str::to_owned)).collect();
    for (name, value) in found {
        let note = match stands_for(&parser, command, &name, &value)? {
            Err(note) => note,
            Ok((long, words)) => {
                let others = ALTERNATIVES.iter().find(|options| options.contains(&&*long));
                let is_other = |other: &String| others.is_some_and(|options| options.contains(&&**other));
                if let Some(other) = set.iter().find(|other| **other == long || is_other(other)) {
                    format!("--{other} is set otherwise, which wins")
                } else {
                    // A key is no word for the screen.
                    let is_secret = long.contains("key") || long.contains("token");
                    let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                    let shown = if is_secret { format!("--{long}") } else { shown.join(" ") };
                    set.push(long);
                    extended.arguments.extend(words);
                    format!("stands for {shown}")
                }
            }
        };
        extended.notes.push(format!("{name}: {note}"));
    }
    Ok(extended)
}

/// The long name of a variable's option, and the option's words; or a note why there is no option.
fn stands_for(
    parser: &Command,
    command: Option<&str>,
    name: &str,
    value: &str,
) -> Result<Result<(String, Vec<OsString>), String>, Failure> {
    let Some((option, is_on)) = option_of(name, value) else {
        return Ok(Err("llama.cpp has no such variable; it is left alone".into()));
    };
    let mut translation = Translation::new(parser, command);
    let takes_value = match translation.rows.get(option) {
        Some(row) => !matches!(row.value, Value::None),
        None => translation.own.takes_value(option),
    };
    match is_on.filter(|_| !takes_value) {
        Some(false) => return Ok(Err("is off, as it is without the variable".into())),
        None if !takes_value => {
            let message = format!("{name}={value}: expected on or off, true or false, 1 or 0");
            return Err(Failure::Usage(message));
        }
        _ => {}
    }
    let mut rest: Vec<OsString> = takes_value.then(|| value.into()).into_iter().collect();
    if let Err(failure) = translation.word(option.into(), &mut rest) {
        return Ok(Err(format!("is not followed: {failure}")));
    }
    let first = translation.out.first().and_then(|word| word.to_str()).map(str::to_owned);
    Ok(match first {
        Some(first) => {
            let long = first.split('=').next().unwrap_or_default().trim_start_matches('-');
            Ok((long.to_owned(), translation.out))
        }
        None => Err(translation.notes.first().map_or("makes no difference here", String::as_str).to_owned()),
    })
}

/// The option of a variable; for a switch, also whether the value turns it on.
fn option_of(name: &str, value: &str) -> Option<(&'static str, Option<bool>)> {
    let is_on = match value.to_ascii_lowercase().as_str() {
        "on" | "enabled" | "true" | "1" => Some(true),
        "off" | "disabled" | "false" | "0" => Some(false),
        _ => None,
    };
    let of = |name: &str| VARIABLES.iter().find(|(known, ..)| name.strip_prefix("LLAMA_") == Some(known));
    if let Some(&(_, option, negative)) = of(name) {
        let is_negative = !negative.is_empty() && is_on == Some(false);
        return Some(if is_negative { (negative, Some(true)) } else { (option, is_on) });
    }
    // llama.cpp's older form, which stands for the negative option whatever its value is.
    let positive = name.replacen("LLAMA_ARG_NO_", "LLAMA_ARG_", 1);
    let &(_, _, negative) =
        of(&positive).filter(|(.., negative)| positive != name && !negative.is_empty())?;
    Some((negative, Some(true)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::ffi::OsString;

    use clap::{CommandFactory, Parser};

    use super::*;

    /// The words that variables add, and the notes.
    fn extended(words: &[&str], variables: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let arguments: Vec<OsString> = ["brasa"].iter().chain(words).map(OsString::from).collect();
        let count = arguments.len();
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let found = extend(arguments, variables, When::Never).unwrap();
        Arguments::try_parse_from(&found.arguments).unwrap();
        let words = found.arguments[count..].iter().map(|word| word.to_str().unwrap().to_owned());
        (words.collect(), found.notes)
    }

    #[test]
    fn variables_stand_for_options_that_nothing_else_sets() {
        for (words, variable, expected, said) in [
            (
                &["serve"][..],
                ("LLAMA_ARG_CTX_SIZE", "4096"),
                &["--ctx-size", "4096"][..],
                "stands for --ctx-size 4096",
            ),
            (&["run"], ("LLAMA_ARG_CTX_SIZE", "4096"), &["--ctx-size", "4096"], "stands for"),
            (&[], ("LLAMA_ARG_TOP_K", "5"), &["--top-k", "5"], "stands for"),
            (&["serve", "-c", "512"], ("LLAMA_ARG_CTX_SIZE", "4096"), &[], "--ctx-size is set otherwise"),
            (&["serve", "-m", "x"], ("LLAMA_ARG_HF_REPO", "a/b"), &[], "--model is set otherwise"),
            (&["serve"], ("LLAMA_ARG_HOST", "0.0.0.0"), &["--host", "0.0.0.0"], "stands for"),
            (&["serve"], ("LLAMA_API_KEY", "secret"), &["--api-key", "secret"], "stands for --api-key"),
            (&["serve"], ("LLAMA_ARG_N_GPU_LAYERS", "99"), &[], "makes no difference"),
            (&["serve"], ("LLAMA_ARG_N_GPU_LAYERS", "0"), &["--device", "cpu"], "stands for"),
            (&["serve"], ("LLAMA_ARG_FLASH_ATTN", "on"), &[], "makes no difference"),
            (&["serve"], ("LLAMA_ARG_UI", "off"), &["--no-ui"], "stands for"),
            (&["serve"], ("LLAMA_ARG_NO_UI", "1"), &["--no-ui"], "stands for"),
            (&["serve"], ("LLAMA_ARG_OFFLINE", "0"), &[], "is off"),
            (&["serve"], ("LLAMA_ARG_MMPROJ", "x.gguf"), &[], "is not followed: --mmproj"),
            (&["serve"], ("LLAMA_ARG_TYPO", "1"), &[], "no such variable"),
            (&["doctor"], ("LLAMA_ARG_CTX_SIZE", "4096"), &[], ""),
        ] {
            let (found, notes) = extended(words, &[variable]);
            assert_eq!(found, expected, "{words:?} {variable:?}: {notes:?}");
            assert!(notes.concat().contains(said) && !notes.concat().contains("secret"), "{notes:?}");
        }
        let both = [("LLAMA_ARG_MODEL", "x"), ("LLAMA_ARG_HF_REPO", "a/b"), ("HOME", "/")];
        assert_eq!(extended(&["serve"], &both).0, ["--hf-repo", "a/b"]);
        let wrong = [(OsString::from("LLAMA_ARG_OFFLINE"), OsString::from("perhaps"))];
        let arguments = ["brasa", "serve"].map(OsString::from).to_vec();
        assert!(
            extend(arguments, wrong.into_iter(), When::Never).unwrap_err().to_string().contains("=perhaps")
        );
    }

    #[test]
    fn every_variable_has_an_option() {
        let root = Arguments::command();
        let translation = Translation::new(&root, Some("serve"));
        for (name, option, negative) in VARIABLES {
            for option in [option, negative].into_iter().filter(|option| !option.is_empty()) {
                let is_known = translation.rows.contains_key(option) || translation.own.has(option);
                assert!(is_known, "LLAMA_{name}: {option}");
            }
        }
    }
}
