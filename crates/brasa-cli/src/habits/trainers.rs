//! Options of other trainers, and what `brasa train` does with each: TRL 1 and the arguments of Hugging Face's `Trainer`, PEFT,
//! Axolotl's keys and LLaMA-Factory's. Taken in November 2026 from their documentation. Options of `mlx_lm.lora` are options of
//! `brasa train` itself.

use super::row::Outcome::{Answered, Becomes, Cases, Made, Noted, Ours, True};
use super::row::{Outcome, Row, flag, many, maybe, value};

const SWITCH: &[&str] = &["true", "false", "True", "False"];
const PRECISION: &str = "weights are read as they are stored, and the device computes as it does best";
const METRICS: &str = "metrics.jsonl in the folder of the run has every update";
const BEST: &str = "the best adapter has the least loss on valid.jsonl";
const LOSSES: &str = "`--loss` names the losses that there are";
const ONE: &str = "one device trains a run";
const STORED: &str = "weights stay as they are stored: a GGUF file in Q4_K trains in 4 bits (`-m FILE`)";
const VALID: &str = "a file valid.jsonl beside train.jsonl is evaluated, and test.jsonl at the end";
const OFF: &[&str] = &["false"];
const MASTERS: &str = "`--adapter-dtype bf16` rounds what products read; what is learned stays f32";
const PACKED: &str = "examples are always packed, and none sees another";

/// Options of TRL, Hugging Face, PEFT, Axolotl and LLaMA-Factory.
pub const TRAINERS: &[Row] = &[
    // The model and the examples.
    value(
        "--model-name-or-path --base-model --model-id --model-name --pretrained-model-name-or-path",
        "MODEL",
        Ours("--model"),
    ),
    value("--adapter-name-or-path --lora-model-dir", "PATH", Ours("--from")),
    value("--train-file --data-path --dataset-path --train-dataset --train-data", "PATH", Ours("--data")),
    value(
        "--dataset-name --dataset --datasets --dataset-dir --dataset-config",
        "NAME",
        Answered(
            "`--data` takes a folder with train.jsonl, or a file; a data set of the hub is downloaded by `hf download`",
        ),
    ),
    value(
        "--eval-file --validation-file --eval-dataset --val-size --val-set-size --test-size",
        "VALUE",
        Answered(VALID),
    ),
    value("--output-dir --adapter-dir", "DIR", Ours("--out")),
    maybe(
        "--overwrite-output-dir",
        SWITCH,
        Cases(&[(OFF, True("an earlier run stays"))], &Answered("another `--out`; an earlier run stays")),
    ),
    maybe(
        "--resume-from-checkpoint --auto-resume-from-checkpoints",
        SWITCH,
        Cases(&[(OFF, True("a new run"))], &Becomes(&["--resume"])),
    ),
    value(
        "--cutoff-len --max-length --sequence-len --max-seq-len --model-max-length",
        "N",
        Ours("--max-seq-length"),
    ),
    maybe(
        "--packing --sample-packing --pad-to-sequence-len --eval-packing --group-by-length --neat-packing",
        SWITCH,
        True(PACKED),
    ),
    maybe(
        "--train-on-inputs",
        SWITCH,
        Cases(&[(OFF, True("answers alone are learned"))], &Becomes(&["--learn", "all"])),
    ),
    maybe(
        "--assistant-only-loss --completion-only-loss",
        SWITCH,
        Cases(&[(OFF, Becomes(&["--learn", "all"]))], &Becomes(&["--learn", "answers"])),
    ),
    maybe(
        "--train-on-prompt",
        SWITCH,
        Cases(&[(OFF, True("answers alone are learned"))], &Becomes(&["--learn", "all"])),
    ),
    maybe(
        "--mask-history",
        SWITCH,
        Cases(&[(OFF, True("every answer is learned"))], &Becomes(&["--learn", "last"])),
    ),
    value(
        "--template --chat-template --chat-template-path",
        "NAME",
        Answered("the model's own template is used; `--chat-template-file FILE` takes another one, in Jinja"),
    ),
    value(
        "--dataset-text-field --dataset-num-proc --preprocessing-num-workers --dataloader-num-workers",
        "VALUE",
        True("rows say by their keys what they are, and are read at once"),
    ),
    value(
        "--dataset-train-split --dataset-test-split --split",
        "NAME",
        Answered("`--data` takes a folder with train.jsonl, valid.jsonl and test.jsonl"),
    ),
    value(
        "--max-samples",
        "N",
        Answered("`--steps` limits the updates; `head -n N train.jsonl` makes a shorter file"),
    ),
    // The course.
    value("--num-train-epochs --num-epochs", "N", Made(epochs, "`--epochs`")),
    value("--max-steps", "N", Cases(&[(&["-1"], True("`--epochs` counts"))], &Ours("--steps"))),
    value(
        "--per-device-train-batch-size --micro-batch-size --train-batch-size",
        "N",
        Ours("--batch-examples"),
    ),
    value(
        "--per-device-eval-batch-size --eval-batch-size",
        "N",
        True("evaluations take as many examples as fit"),
    ),
    value("--gradient-accumulation-steps", "N", Ours("--accumulate")),
    maybe(
        "--auto-find-batch-size",
        SWITCH,
        Cases(&[(OFF, True("off"))], &Answered("`--batch-tokens` sets the tokens of a step")),
    ),
    maybe(
        "--gradient-checkpointing",
        SWITCH,
        Cases(&[(OFF, True("results are kept"))], &Becomes(&["--recompute"])),
    ),
    value("--eval-steps", "N", Ours("--evaluate-every")),
    value("--save-steps", "N", Ours("--save-every")),
    value("--logging-steps", "N", Ours("--report-every")),
    value(
        "--eval-strategy --evaluation-strategy --save-strategy --logging-strategy",
        "HOW",
        Noted("`--evaluate-every`, `--save-every` and `--report-every` count updates"),
    ),
    value("--save-total-limit", "N", Noted("the latest checkpoint and the best adapter stay")),
    value("--early-stopping-patience", "N", Ours("--patience")),
    maybe("--load-best-model-at-end", SWITCH, Noted("the best adapter is written beside the last one")),
    value(
        "--report-to --run-name --wandb-project --logging-dir",
        "VALUE",
        Cases(&[(&["none"], True(METRICS))], &Noted(METRICS)),
    ),
    value(
        "--metric-for-best-model",
        "NAME",
        Cases(&[(&["loss", "eval_loss"], True("is what tells the best adapter"))], &Answered(BEST)),
    ),
    maybe(
        "--greater-is-better",
        SWITCH,
        Cases(&[(OFF, True("a loss is better if it is less"))], &Answered(BEST)),
    ),
    maybe("--disable-tqdm", SWITCH, True("a bar is drawn on terminals alone")),
    maybe("--plot-loss", SWITCH, True("curves.svg is always drawn")),
    maybe("--do-train --remove-unused-columns --logging-first-step", SWITCH, True("is always so")),
    maybe("--do-eval", SWITCH, True(VALID)),
    maybe(
        "--do-predict --predict-with-generate",
        SWITCH,
        Answered("`brasa generate --lora DIR` answers with what was learned"),
    ),
    maybe(
        "--push-to-hub",
        SWITCH,
        Cases(&[(OFF, True("nothing is uploaded"))], &Answered("`hf upload` uploads the folder of the run")),
    ),
    value(
        "--hub-model-id --hub-token --hub-strategy --hub-repo",
        "VALUE",
        Answered("`hf upload` uploads the folder of the run"),
    ),
    value("--data-seed", "N", Noted("`--seed` orders examples too")),
    // The loss.
    value(
        "--stage --rl",
        "NAME",
        Cases(
            &[(&["sft"], True("answers are learned")), (&["dpo"], Becomes(&["--loss", "dpo"]))],
            &Answered("answers and preferences are learned: `--loss tokens` and `--loss dpo`"),
        ),
    ),
    value("--pref-beta --dpo-beta", "X", Ours("--beta")),
    value(
        "--pref-loss --loss-type",
        "NAME",
        Cases(&[(&["sigmoid", "nll"], True("is the loss"))], &Answered(LOSSES)),
    ),
    value("--neftune-noise-alpha", "X", Ours("--neftune")),
    value(
        "--label-smoothing-factor --label-smoothing",
        "X",
        Cases(
            &[(&["0"], True("off"))],
            &Answered("labels are not smoothed; a program may (docs/library.md)"),
        ),
    ),
    value(
        "--rpo-alpha --simpo-gamma --pref-ftx --orpo-alpha --cpo-alpha --kto-desirable-weight",
        "X",
        Answered(LOSSES),
    ),
    value(
        "--max-prompt-length --max-completion-length",
        "N",
        Answered("`--max-seq-length` limits whole examples; `--long cut` cuts their end"),
    ),
    value(
        "--ref-model --ref-model-name-or-path --model-adapter-name --ref-adapter-name",
        "NAME",
        Answered("answers are compared with those of the model without its adapter"),
    ),
    maybe("--precompute-ref-log-probs", SWITCH, True("is always so")),
    // The adapter.
    value("--lora-r --lora-rank --peft-r", "N", Ours("--rank")),
    value("--lora-alpha", "X", Ours("--alpha")),
    value("--lora-dropout", "X", Ours("--dropout")),
    many(
        "--lora-target-modules --lora-target --target-modules --lora-targets",
        "NAMES",
        Made(targets, "`--targets`, with commas between names"),
    ),
    maybe(
        "--lora-target-linear",
        SWITCH,
        Cases(&[(OFF, True("`--targets` names layers"))], &Becomes(&["--targets", "all"])),
    ),
    value(
        "--lora-modules-to-save --modules-to-save --additional-target",
        "NAMES",
        Answered("adapters are learned alone; `--method full --targets NAMES` learns parameters"),
    ),
    value(
        "--init-lora-weights --peft-init-lora-weights",
        "HOW",
        Cases(
            &[(&["true"], True("A begins random, B at zero"))],
            &Answered("A begins random and B at zero; `--from DIR` begins with another adapter"),
        ),
    ),
    value(
        "--layers-to-transform --lora-layers-to-transform --peft-layers-to-transform",
        "NUMBERS",
        Answered("`--last-blocks N`, or `--targets` with an /expression/ that names the layers"),
    ),
    value(
        "--rank-pattern --alpha-pattern",
        "JSON",
        Answered("`--rank-of NAME=N` and `--alpha-of NAME=X`, which may be repeated"),
    ),
    value(
        "--loraplus-lr-ratio --lora-plus-lr-ratio",
        "X",
        Answered("A and B have one learning rate, `--lr`"),
    ),
    value(
        "--lora-bias --bias",
        "NAME",
        Cases(&[(&["none"], True("biases stay"))], &Answered("an adapter has no biases")),
    ),
    value(
        "--lora-task-type --task-type",
        "NAME",
        Cases(
            &[(&["CAUSAL_LM", "causal-lm"], True("is what is trained"))],
            &Answered("language models alone are trained"),
        ),
    ),
    maybe(
        "--autocast-adapter-dtype --peft-autocast-adapter-dtype",
        SWITCH,
        Cases(&[(OFF, Answered(MASTERS))], &True("what is learned is f32")),
    ),
    maybe("--pure-bf16", SWITCH, Cases(&[(OFF, True("what is learned is f32"))], &Answered(MASTERS))),
    maybe(
        "--use-peft --use-lora",
        SWITCH,
        Cases(&[(OFF, Becomes(&["--method", "full"]))], &True("an adapter is learned")),
    ),
    maybe(
        "--use-dora --peft-use-dora",
        SWITCH,
        Cases(&[(OFF, True("off"))], &Becomes(&["--method", "dora"])),
    ),
    maybe(
        "--use-rslora --peft-use-rslora",
        SWITCH,
        Cases(&[(OFF, True("off"))], &Becomes(&["--method", "rslora"])),
    ),
    value(
        "--adapter",
        "NAME",
        Cases(
            &[(&["lora"], Becomes(&["--method", "lora"])), (&["qlora"], Becomes(&["--method", "lora"]))],
            &Answered("kinds of adapters are `--method lora`, `rslora` and `dora`"),
        ),
    ),
    value(
        "--finetuning-type",
        "NAME",
        Cases(
            &[(&["lora", "full"], Ours("--method"))],
            &Answered("`--method full --last-blocks N` learns the last blocks"),
        ),
    ),
    maybe("--load-in-4bit --load-in-8bit", SWITCH, Cases(&[(OFF, True(STORED))], &Answered(STORED))),
    value("--quantization-bit --bnb-4bit-quant-type --bnb-4bit-compute-dtype", "VALUE", Answered(STORED)),
    // The optimizer.
    value("--optim --optimizer-name", "NAME", OPTIMIZER),
    value(
        "--lr-scheduler-type --lr-scheduler",
        "SCHEDULE",
        Cases(&[(&["constant_with_warmup"], Becomes(&["--schedule", "constant"]))], &Ours("--schedule")),
    ),
    value(
        "--lr-scheduler-kwargs --cosine-min-lr-ratio",
        "VALUE",
        Answered("rates fall to 0; `--lr-schedule` takes MLX-LM's courses with their arguments"),
    ),
    value("--warmup-steps", "N", Ours("--warm-up")),
    value("--warmup-ratio", "X", Answered("`--warm-up N` counts updates; a twentieth of all is the default")),
    value("--max-grad-norm", "X", Ours("--clip")),
    value("--adam-beta1 --adam-beta2", "X", Answered("`--betas X,X` takes both")),
    value("--adam-epsilon", "X", Ours("--eps")),
    // The machine.
    maybe("--bf16 --fp16 --tf32", &["true", "false", "True", "False", "auto"], True(PRECISION)),
    value("--torch-dtype --dtype --model-dtype", "NAME", True(PRECISION)),
    value("--attn-implementation --flash-attn", "NAME", True("attention never stores the matrix of scores")),
    maybe(
        "--flash-attention --sdp-attention --use-cache --use-liger-kernel --torch-compile --use-unsloth",
        SWITCH,
        True("changes no result"),
    ),
    value("--deepspeed --fsdp --fsdp-config --ddp-timeout --nproc-per-node", "VALUE", Answered(ONE)),
    maybe("--trust-remote-code", SWITCH, True("a checkpoint's code is never run")),
    flag("--use-cpu --no-cuda", Becomes(&["--device", "cpu"])),
];

/// Optimizers, by their names in transformers.
const OPTIMIZER: Outcome = Cases(
    &[
        (&["adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf"], Becomes(&["--optimizer", "adamw"])),
        (&["adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"], Becomes(&["--optimizer", "adamw-8bit"])),
        (&["sgd", "adafactor", "muon", "adam"], Ours("--optimizer")),
    ],
    &Answered("`--optimizer` names those that there are: adamw, adamw-8bit, adam, sgd, muon and adafactor"),
);

/// The words of `--epochs` for a number that may have a fraction of zero.
fn epochs(number: &str) -> Result<Vec<String>, String> {
    match number.parse::<f64>() {
        Ok(epochs) if epochs.fract() == 0.0 && (1.0..1e9).contains(&epochs) => {
            Ok(vec!["--epochs".into(), format!("{epochs:.0}")])
        }
        _ => Err("passes are whole, at least 1; `--steps` counts updates".into()),
    }
}

/// The words of `--targets` for names separated by commas or spaces.
#[expect(clippy::unnecessary_wraps, reason = "rows of the table read values that may be wrong")]
fn targets(names: &str) -> Result<Vec<String>, String> {
    let names = names.trim_matches(['[', ']']);
    let names: Vec<&str> = names.split([',', ' ']).map(|name| name.trim_matches(['"', '\''])).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    let all = matches!(names.as_slice(), ["all-linear"]);
    Ok(vec!["--targets".into(), if all { "all".into() } else { names.join(",") }])
}
