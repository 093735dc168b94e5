//! Options of llama.cpp, and the answer of Brasa to each.
//!
//! Taken in November 2026 from the help texts in llama.cpp's repository, which list every spelling: `llama-server`
//! (tools/server/README.md at commit 00dc8057), `llama-cli` (tools/cli at 07179550), `llama-completion` (tools/completion at
//! 0935e842) and `llama-bench` (tools/llama-bench at 08d0baac). A few spellings that later versions dropped are kept.

use super::llama_server::{samplers, scaled_adapters};
use super::row::Outcome::{Answered, Becomes, Cases, Command, Made, Noted, Ours, SingleTurn, True};
use super::row::{Outcome, Row, flag, maybe, two, value};

const DRAFT_MODEL: &str = "a draft model runs on the model's device with the model's settings";
const NO_DRAFT_KIND: &str = "`--model-draft` and `--lookup` guess ahead here";
const NO_SERVER: &str = "it is an option of a server; `brasa serve --help` lists those that there are";
const TEXT_ONLY: &str = "models read text only";
const NO_CONTROL_VECTORS: &str = "control vectors are not supported; merge them into the checkpoint first";
const FROM_THE_FILE: &str = "position encodings are taken from the model's file";
const PLACEMENT: &str =
    "threads run where the system puts them; `taskset` and `nice` set other places and priorities";
const IDLE: &str = "threads spin for a moment and then sleep; this cannot be set";
pub const ONE_DEVICE: &str = "all weights are on one device; `--device cpu` leaves a GPU alone";
const NO_LOG: &str = "there is no log; notes and errors go to standard error";
pub const NO_EMBEDDINGS: &str = "`brasa embed` makes vectors of texts, `brasa serve` at /v1/embeddings too";
const NO_SAMPLER: &str = "there is no such sampler; `--top-k`, `--top-p` and `--min-p` limit the choice";
const NO_MIROSTAT: &str = "mirostat is not supported; `--typical` and `--dynatemp-range` choose by entropy";
const SERVER_CACHE: &str =
    "a chat keeps the keys and values of its conversation; there are no other caches to set";
const CUDA_NAMES: &str = "devices are named auto, cpu, cuda and cuda:N; `brasa doctor` lists them";
const FILLED: &str = "a model is named by its file (`-m`) or its repository (`-hf`)";
const AFFECTS_ITS_SAMPLER: &str = "sets a sampler that is off";

/// llama.cpp's names of devices.
const DEVICES: &[(&[&str], Outcome)] = &[
    (&["none", "CPU"], Becomes(&["--device", "cpu"])),
    (&["auto", "cpu"], Ours("--device")),
    (&["CUDA0"], Becomes(&["--device", "cuda:0"])),
    (&["CUDA1"], Becomes(&["--device", "cuda:1"])),
    (&["CUDA2"], Becomes(&["--device", "cuda:2"])),
    (&["CUDA3"], Becomes(&["--device", "cuda:3"])),
    (&["CUDA4"], Becomes(&["--device", "cuda:4"])),
    (&["CUDA5"], Becomes(&["--device", "cuda:5"])),
    (&["CUDA6"], Becomes(&["--device", "cuda:6"])),
    (&["CUDA7"], Becomes(&["--device", "cuda:7"])),
    (&["CUDA0,CUDA1", "CUDA0/CUDA1", "Vulkan0", "Metal", "MTL0", "SYCL0", "ROCm0"], Answered(CUDA_NAMES)),
];

/// Template arguments that are switches in Brasa.
const TEMPLATE_ARGUMENTS: &[(&[&str], Outcome)] = &[
    (&["{\"enable_thinking\":false}"], Becomes(&["--reasoning", "off"])),
    (&["{\"enable_thinking\":true}"], Becomes(&["--reasoning", "on"])),
    (&["{}"], True("says nothing")),
];

/// Options of llama-cli, llama-completion and llama-server.
pub const LLAMA_CPP: &[Row] = &[
    // General.
    flag("-h", Ours("-h")),
    flag("--help --usage", Ours("--help")),
    flag("--version", Ours("--version")),
    flag("--license", Answered("the licences are in the files LICENSE-MIT and LICENSE-APACHE")),
    flag("-cl --cache-list", Answered("`brasa discover ~/.cache/huggingface/hub` lists downloaded models")),
    flag("--completion-bash", Answered("`brasa completions bash` prints the script")),
    flag("--verbose-prompt", Answered("`brasa tokenize` shows the tokens of a text")),
    flag("--list-devices", Answered("`brasa doctor` lists the devices")),
    // Threads.
    value(
        "-t --threads",
        "N",
        Cases(&[(&["-1", "0"], True("as many as this process may use"))], &Ours("--threads")),
    ),
    value(
        "-tb --threads-batch",
        "N",
        Noted("prompts and answers are computed by the same threads; `-t` sets their number"),
    ),
    value("-C --cpu-mask -Cb --cpu-mask-batch", "M", Answered(PLACEMENT)),
    value("-Cr --cpu-range -Crb --cpu-range-batch", "LO-HI", Answered(PLACEMENT)),
    value("--cpu-strict --cpu-strict-batch", "0|1", Cases(&[(&["0"], True(PLACEMENT))], &Noted(PLACEMENT))),
    value("--prio --prio-batch", "N", Cases(&[(&["0"], True(PLACEMENT))], &Noted(PLACEMENT))),
    value("--poll --poll-batch", "N", Noted(IDLE)),
    value(
        "--numa",
        "TYPE",
        Noted("memory lies where the system puts it; `numactl --interleave=all brasa …` spreads it"),
    ),
    // Context and steps.
    value("-c --ctx-size", "N", Cases(&[(&["0"], True("the model's own context"))], &Ours("--ctx-size"))),
    value("-n --predict --n-predict", "N", Ours("--predict")),
    value(
        "-b --batch-size",
        "N",
        True("results and limits do not depend on it; `-ub` sets the tokens of a step"),
    ),
    value("-ub --ubatch-size", "N", Ours("--ubatch-size")),
    value("--keep", "N", Cases(&[(&["-1"], Answered("a number of tokens must be given"))], &Ours("--keep"))),
    flag("--swa-full", True("windows keep what the model sees; results are the same")),
    flag("--context-shift", Becomes(&["--context-policy", "slide"])),
    flag("--no-context-shift", True("a full context is an error unless `--context-policy` says otherwise")),
    value(
        "-gan --grp-attn-n",
        "N",
        Cases(&[(&["1"], True("off"))], &Answered("there is no self-extension of the context")),
    ),
    value("-gaw --grp-attn-w", "N", True("sets a self-extension that is off")),
    maybe(
        "-fa --flash-attn",
        &["on", "off", "auto", "0", "1"],
        True("attention never stores the matrix of scores; there is nothing to turn on or off"),
    ),
    flag("--perf", Becomes(&["--verbose"])),
    flag("--no-perf", True("times are only reported with `-v`")),
    // Prompts.
    value("-p --prompt", "TEXT", Ours("--prompt")),
    value("-f --file", "FILE", Ours("--file")),
    value("-bf --binary-file", "FILE", Ours("--file")),
    flag("-e --escape", Ours("--escape")),
    flag(
        "--no-escape",
        True(
            "`\\n` in a prompt stays as it is unless `-e` is given; llama.cpp's default is the other way round",
        ),
    ),
    value("-sys --system-prompt", "TEXT", Ours("--system-prompt")),
    value("-sysf --system-prompt-file", "FILE", Ours("--system-prompt-file")),
    flag("--display-prompt", Noted("a prompt is not repeated before its answer")),
    flag("--no-display-prompt", True("a prompt is not repeated before its answer")),
    maybe(
        "-co --color",
        &["on", "off", "auto", "always", "never"],
        Cases(
            &[(&["on", ""], Becomes(&["--color", "always"])), (&["off"], Becomes(&["--color", "never"]))],
            &Ours("--color"),
        ),
    ),
    flag("--no-color", Becomes(&["--color", "never"])),
    flag(
        "-cnv --conversation -i --interactive -if --interactive-first",
        Command("chat", "chats; a prompt is the first message"),
    ),
    flag(
        "-no-cnv --no-conversation",
        Command("generate", "continues the text as it is, like `brasa generate`"),
    ),
    flag("-st --single-turn", SingleTurn("a chat goes on until Ctrl-D; `-p` asks for one answer")),
    flag(
        "-mli --multiline-input",
        Noted("a line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines"),
    ),
    flag("--simple-io", True("a pipe is read and written as plain text")),
    value("-r --reverse-prompt", "TEXT", Ours("--stop")),
    flag("-sp --special", Answered("special tokens are not printed; `--json` lists the ids of all tokens")),
    value("-ptc --print-token-count", "N", Noted("`-v` counts the tokens at the end")),
    value("--prompt-cache", "FILE", Ours("--prompt-cache")),
    flag("--prompt-cache-all", Ours("--prompt-cache-all")),
    flag("--prompt-cache-ro", Ours("--prompt-cache-ro")),
    flag(
        "--in-prefix-bos",
        Answered("the chat template writes what surrounds a message; `--chat-template-file` replaces it"),
    ),
    value(
        "--in-prefix --in-suffix",
        "TEXT",
        Answered("the chat template writes what surrounds a message; `--chat-template-file` replaces it"),
    ),
    flag("--warmup --no-warmup", True("nothing is run before the first token")),
    value("-o --output --output-file", "FILE", Answered("`> FILE` keeps the answer, `/save FILE` a chat")),
    flag("--show-timings", Becomes(&["--verbose"])),
    flag("--no-show-timings", True("times are only reported with `-v`")),
    value("--server-base", "URL", Answered("Brasa runs the model itself and connects to no server")),
    value("--log-prompts-dir", "DIR", Answered("`/save FILE` in the chat keeps the conversation")),
    // Templates and thinking.
    flag("--jinja", True("chat templates are always Jinja")),
    flag("--no-jinja", Noted("chat templates are always Jinja")),
    value("--chat-template", "TEMPLATE", Ours("--chat-template")),
    value("--chat-template-file", "FILE", Ours("--chat-template-file")),
    value(
        "--chat-template-kwargs",
        "JSON",
        Cases(
            TEMPLATE_ARGUMENTS,
            &Answered("`--reasoning on|off` is the only argument of templates that can be set"),
        ),
    ),
    value(
        "-rea --reasoning",
        "on|off",
        Cases(&[(&["auto"], True("the template's own default"))], &Ours("--reasoning")),
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
                "thoughts have no limit of their own; `--reasoning off` leaves them out, `-n` limits the answer",
            ),
        ),
    ),
    value("--reasoning-budget-message", "TEXT", True("sets the end of a budget that thoughts do not have")),
    value(
        "--reasoning-format",
        "FORMAT",
        Cases(
            &[(&["none", "auto"], True("thoughts are printed as the model writes them"))],
            &Noted("thoughts are printed as the model writes them"),
        ),
    ),
    value(
        "--reasoning-effort",
        "LEVEL",
        Cases(
            &[
                (&["default"], True("the template's own default")),
                (&["none"], Becomes(&["--reasoning", "off"])),
            ],
            &Answered("thinking is on or off: `--reasoning on|off`"),
        ),
    ),
    flag(
        "--reasoning-preserve --no-reasoning-preserve",
        Noted("the chat template decides which thoughts stay in the conversation"),
    ),
    flag("--skip-chat-parsing", True("answers are printed as the model writes them")),
    flag("--no-skip-chat-parsing", True("answers are printed as the model writes them")),
    flag("--prefill-assistant --no-prefill-assistant", True("a conversation ends with the user's message")),
    // Position encodings.
    value("--rope-scaling", "TYPE", Answered(FROM_THE_FILE)),
    value("--rope-scale --rope-freq-base --rope-freq-scale", "N", Answered(FROM_THE_FILE)),
    value("--yarn-orig-ctx", "N", Cases(&[(&["0"], True(FROM_THE_FILE))], &Answered(FROM_THE_FILE))),
    value(
        "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
        "N",
        Cases(&[(&["-1"], True(FROM_THE_FILE))], &Answered(FROM_THE_FILE)),
    ),
    // Memory and loading.
    flag("-kvo --kv-offload", True("keys and values are on the model's device")),
    flag(
        "-nkvo --no-kv-offload",
        Noted("keys and values are on the model's device; `-ctk q8_0 -ctv q8_0` halves them"),
    ),
    flag("--repack", True("weights are always put into the order that suits the device")),
    flag("-nr --no-repack", Noted("weights are always put into the order that suits the device")),
    flag("--no-host", True("concerns buffers that Brasa does not have")),
    value("-ctk --cache-type-k", "TYPE", Ours("--cache-type-k")),
    value("-ctv --cache-type-v", "TYPE", Ours("--cache-type-v")),
    value("-dt --defrag-thold", "N", True("keys and values lie in pages, which need no defragmentation")),
    flag("--mlock", Noted("memory is not locked; the system may swap it out")),
    flag("--mmap -mmp", True("files are mapped while they are read")),
    flag(
        "--no-mmap",
        True("weights are copied out of the file while it is loaded; nothing of it stays mapped"),
    ),
    flag("-dio --direct-io", Noted("files are read through the system's cache")),
    flag("-ndio --no-direct-io", True("files are read through the system's cache")),
    value(
        "-lm --load-mode",
        "MODE",
        Cases(
            &[(&["auto", "none", "mmap"], True("weights are copied out of the file while it is loaded"))],
            &Noted("memory is not locked, and files are read through the system's cache"),
        ),
    ),
    value(
        "-lzm --lazy-mode",
        "MODE",
        Cases(
            &[(&["auto", "off"], True("all weights stay in memory"))],
            &Noted("all weights stay in memory"),
        ),
    ),
    flag("--check-tensors", Noted("shapes and sizes of tensors are always checked, their values are not")),
    value(
        "--override-kv",
        "KEY=TYPE:VALUE",
        Answered("a model's metadata cannot be overridden; `--pre` names a pre-tokenizer"),
    ),
    flag("--op-offload --no-op-offload", True("every operation runs on the model's device")),
    // Devices.
    value("-dev --device", "NAME", Cases(DEVICES, &Ours("--device"))),
    value(
        "-ngl --gpu-layers --n-gpu-layers",
        "N",
        Cases(
            &[
                (&["0"], Becomes(&["--device", "cpu"])),
                (
                    &["-1", "auto", "all", "99", "100", "999", "1000", "9999"],
                    True("a GPU that is there runs all layers"),
                ),
            ],
            &Noted("one device runs all layers; `--device cpu` leaves a GPU alone"),
        ),
    ),
    value(
        "-sm --split-mode",
        "MODE",
        Cases(
            &[(&["none"], True("one device runs the model"))],
            &Noted("one device runs the model; it is not split"),
        ),
    ),
    value("-ts --tensor-split", "N0,N1", Answered("one device runs the model; it is not split")),
    value(
        "-mg --main-gpu",
        "N",
        Cases(&[(&["0"], True("the first GPU is the default"))], &Answered("`--device cuda:N` names a GPU")),
    ),
    value("-ot --override-tensor", "PATTERN=BUFFER", Answered(ONE_DEVICE)),
    flag("-cmoe --cpu-moe", Answered(ONE_DEVICE)),
    value(
        "-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn",
        "N",
        Cases(&[(&["0"], True(ONE_DEVICE))], &Answered(ONE_DEVICE)),
    ),
    value("--moe-cache-mib", "N", Cases(&[(&["0"], True(ONE_DEVICE))], &Answered(ONE_DEVICE))),
    maybe(
        "-fit --fit",
        &["on", "off"],
        Cases(
            &[(&["off"], True("nothing is adjusted to memory"))],
            &Noted("nothing is adjusted to memory; `brasa inspect --fit` says what fits and what would"),
        ),
    ),
    value(
        "-fitt --fit-target",
        "MIB",
        Noted("nothing is adjusted to memory; `brasa inspect --fit` says what fits and what would"),
    ),
    value(
        "-fitc --fit-ctx",
        "N",
        Noted("nothing is adjusted to memory; `brasa inspect --fit` says which `-c` fits"),
    ),
    value(
        "-np --parallel",
        "N",
        Cases(
            &[(&["1", "-1"], True("one text at a time"))],
            &Answered("the command answers one text at a time; `brasa bench --n-parallel` measures several"),
        ),
    ),
    value("-rpc --rpc", "SERVERS", Answered("models run on this machine alone")),
    // Adapters.
    value("--lora", "FILE", Ours("--lora")),
    value("--lora-scaled", "FILE:SCALE", Made(scaled_adapters, "`--lora FILE=SCALE` for each")),
    value("--control-vector", "FILE", Answered(NO_CONTROL_VECTORS)),
    value("--control-vector-scaled", "FILE:SCALE", Answered(NO_CONTROL_VECTORS)),
    two("--control-vector-layer-range", ["START", "END"], Answered(NO_CONTROL_VECTORS)),
    flag("--lora-init-without-apply", Answered("adapters are applied when a model is loaded")),
    // The model.
    value("-m --model", "PATH", Ours("--model")),
    value("-mu --model-url", "URL", Answered("`curl -LO URL` downloads the file, `-m` names it")),
    value(
        "-dr --docker-repo",
        "MODEL",
        Answered("models of Docker Hub are not supported; `-m` takes a file or a folder"),
    ),
    value("-hf -hfr --hf-repo", "USER/REPO[:QUANT]", Ours("--hf-repo")),
    value("-hff --hf-file", "FILE", Ours("--hf-file")),
    value("-hft --hf-token", "TOKEN", Ours("--hf-token")),
    value("-hfv -hfrv --hf-repo-v -hffv --hf-file-v", "NAME", Answered("there is no speech")),
    flag("--offline", Ours("--offline")),
    flag(
        "--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default \
         --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default \
         --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default",
        Answered(FILLED),
    ),
    // Messages.
    flag("-v --verbose --log-verbose", Ours("--verbose")),
    value(
        "-lv --verbosity --log-verbosity",
        "N",
        Cases(
            &[(&["4", "5"], Becomes(&["--verbose"]))],
            &True("notes, warnings and errors are always shown"),
        ),
    ),
    flag("--log-disable", Noted("notes and errors go to standard error; `2> /dev/null` drops them")),
    value("--log-file", "FILE", Answered("`2> FILE` keeps notes and errors")),
    flag("--log-jsonl", Answered("`--json` prints the answer and its figures as one object")),
    flag("--no-log-jsonl", True(NO_LOG)),
    maybe("--log-colors", &["on", "off", "auto"], True(NO_LOG)),
    flag("--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps", True(NO_LOG)),
    // Sampling.
    value("--samplers", "NAMES", Ours("--samplers")),
    value("--sampler-seq --sampling-seq", "LETTERS", Made(samplers, "`--samplers`, a name for each letter")),
    value("-s --seed", "N", Ours("--seed")),
    flag("--ignore-eos", Ours("--ignore-eos")),
    value("--temp --temperature", "T", Ours("--temp")),
    value("--top-k", "K", Ours("--top-k")),
    value("--top-p", "P", Ours("--top-p")),
    value("--min-p", "P", Ours("--min-p")),
    value("--top-nsigma --top-n-sigma", "N", Ours("--top-nsigma")),
    value("--xtc-probability", "P", Ours("--xtc-probability")),
    value("--xtc-threshold", "P", Ours("--xtc-threshold")),
    value("--typical --typical-p", "P", Ours("--typical")),
    value("--repeat-last-n", "N", Ours("--repeat-last-n")),
    value("--repeat-penalty", "F", Ours("--repeat-penalty")),
    value("--presence-penalty", "F", Ours("--presence-penalty")),
    value("--frequency-penalty", "F", Ours("--frequency-penalty")),
    value("--dry-multiplier", "F", Ours("--dry-multiplier")),
    value("--dry-base", "F", Ours("--dry-base")),
    value("--dry-allowed-length", "N", Ours("--dry-allowed-length")),
    value("--dry-penalty-last-n", "N", Ours("--dry-penalty-last-n")),
    value("--dry-sequence-breaker", "TEXT", Ours("--dry-sequence-breaker")),
    value("--adaptive-target", "P", Cases(&[(&["-1"], True("off"))], &Answered(NO_SAMPLER))),
    value("--adaptive-decay", "F", True(AFFECTS_ITS_SAMPLER)),
    value("--dynatemp-range", "F", Ours("--dynatemp-range")),
    value("--dynatemp-exp", "F", Ours("--dynatemp-exp")),
    value("--mirostat", "N", Cases(&[(&["0"], True("off"))], &Answered(NO_MIROSTAT))),
    value("--mirostat-lr --mirostat-ent", "F", True(AFFECTS_ITS_SAMPLER)),
    value("-l --logit-bias", "ID±BIAS", Ours("--logit-bias")),
    value("--grammar", "GRAMMAR", Ours("--grammar")),
    value("--grammar-file", "FILE", Ours("--grammar-file")),
    value("-j --json-schema", "SCHEMA", Ours("--json-schema")),
    value("-jf --json-schema-file", "FILE", Ours("--json-schema-file")),
    flag("-bs --backend-sampling", True("a device draws tokens itself if it can")),
    // Speculative decoding.
    value(
        "--spec-type",
        "TYPE",
        Cases(
            &[
                (&["none"], True("nothing is guessed ahead without `--lookup` or `--model-draft`")),
                (&["draft-simple"], True("`--model-draft` names the draft model")),
                (
                    &["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"],
                    Becomes(&["--lookup"]),
                ),
            ],
            &Answered(NO_DRAFT_KIND),
        ),
    ),
    value("--draft --draft-n --draft-max --spec-draft-n-max", "N", Ours("--draft-max")),
    value("--draft-min --draft-n-min --spec-draft-n-min", "N", Ours("--draft-min")),
    flag("--spec-default", Becomes(&["--lookup"])),
    value(
        "--spec-draft-p-min --draft-p-min --spec-draft-p-split --draft-p-split --spec-ngram-mod-n-min \
         --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m \
         --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m \
         --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m \
         --spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
        "N",
        Noted("it is learned which guesses are worth their time"),
    ),
    flag("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", Answered(DRAFT_MODEL)),
    flag("--spec-draft-backend-sampling --no-spec-draft-backend-sampling", True(DRAFT_MODEL)),
    value("--spec-draft-model -md --model-draft", "FILE", Ours("--model-draft")),
    value(
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
        "REPO",
        Answered("`brasa pull` gets the file, and `--model-draft` names it"),
    ),
    value(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "FILE",
        Answered("`--lookup` guesses ahead what the text itself repeats"),
    ),
    value(
        "--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd \
         --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict \
         --cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft \
         --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch \
         --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch \
         --poll-batch-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe \
         --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-draft-sampling --spec-synth-len \
         --spec-synth-rates --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft \
         --n-gpu-layers-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd \
         --cache-type-v-draft",
        "VALUE",
        Answered(DRAFT_MODEL),
    ),
    // Pictures, sounds, embeddings.
    value("-mm --mmproj", "FILE", Answered(TEXT_ONLY)),
    value("-mmu --mmproj-url", "URL", Answered(TEXT_ONLY)),
    flag("--mmproj-auto", Noted(TEXT_ONLY)),
    flag("--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload", True(TEXT_ONLY)),
    value(
        "-mmdev --mmproj-device --image --audio --video --image-min-tokens --image-max-tokens \
         --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir",
        "VALUE",
        Answered(TEXT_ONLY),
    ),
    flag("--embedding --embeddings --rerank --reranking", Answered(NO_EMBEDDINGS)),
    value("--pooling --embd-normalize", "VALUE", Answered(NO_EMBEDDINGS)),
    flag("--spm-infill", Answered("there is no infilling between two texts")),
    // The server.
    value(
        "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram --cache-reuse",
        "N",
        True(SERVER_CACHE),
    ),
    flag("--cache-prompt --no-cache-prompt --cache-idle-slots --no-cache-idle-slots", True(SERVER_CACHE)),
    flag("-kvu --kv-unified -no-kvu --no-kv-unified", True("keys and values lie in pages of one pool")),
    flag("-cb --cont-batching -nocb --no-cont-batching", True("the command answers one text at a time")),
    value(
        "--kv-unified-per-slot -a --alias --tags --host --port --path --api-prefix --cors-origins --cors-methods \
         --cors-headers --ui-config --webui-config --ui-config-file --webui-config-file --tools --tools-runtime \
         --mcp-servers-config --mcp-servers-json --api-key --api-key-file --ssl-key-file --ssl-cert-file -to \
         --timeout --sse-ping-interval --threads-http --slot-save-path --media-path --models-dir --models-preset \
         --models-max -sps --slot-prompt-similarity --sleep-idle-seconds",
        "VALUE",
        Answered(NO_SERVER),
    ),
    flag(
        "--reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy \
         --no-webui-mcp-proxy -ag --agent -no-ag --no-agent --ui --webui --no-ui --no-webui --metrics --props \
         --slots --no-slots --models-autoload --no-models-autoload",
        Answered(NO_SERVER),
    ),
];
