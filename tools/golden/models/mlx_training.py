#!/usr/bin/env python3
"""Golden runs of MLX-LM's trainer: `mlx_lm.lora` as it is, on the CPU, with the model in f32.

usage: mlx_training.py OUT_DIR [NAME ...]     (needs mlx, mlx-lm)

For each of CASES, OUT_DIR/NAME.json:

    config           what is in the YAML file of the run
    train, valid     rows of the files of examples
    losses           of each iteration, before its update; an iteration is one batch
    tokens           tokens that the loss of each iteration counts
    rates            learning rate of each iteration that ends an update
    valid_losses     [iteration, loss] of each evaluation
    values           for each matrix of the adapter, or each parameter that is learned, behind the run: its norm and its sum weighted by cos(i)

`lora_a` [inputs, r] begins as the transpose of cos(0.7·i + k) / √inputs, i counting the elements of [r, inputs], and `lora_b` [r, outputs] as the
transpose of 0.1 · sin(1.3·i + k), those of experts as they are; k = 16 · layer + the module's place in MODULES. MLX-LM sorts rows by what it takes for their length, the number
of their fields: some rows have one more.
"""

import json
import math
import pathlib
import sys
import tempfile
import types

import mlx.core as mx
import mlx_lm.lora as lora
import numpy as np
import yaml
from mlx.utils import tree_flatten, tree_map, tree_unflatten

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTENTION = ["self_attn.q_proj", "self_attn.v_proj"]
EXPERTS = [f"mlp.switch_mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
WORDS = ["river", "cedar", "lamp", "a quiet stone", "the king of the north and his three sons", "bread", "an old red fox that sleeps"]


def chat(number: int) -> dict:
    word = WORDS[number % len(WORDS)]
    row = {"messages": [{"role": "user", "content": f"Say {word} {1 + number % 3} times."}, {"role": "assistant", "content": " ".join([word] * (1 + number % 3))}]}
    return row | ({"source": "made up"} if number % 4 == 1 else {})


def completion(number: int) -> dict:
    word = WORDS[(3 * number) % len(WORDS)]
    return {"prompt": f"What is number {number}?", "completion": f"It is {word}, {word} and {number}."}


def text(number: int) -> dict:
    return {"text": f"{number}: " + " and ".join(WORDS[: 1 + number % len(WORDS)])}


CASES = {
    "adam": {
        "row": chat, "rows": (14, 7),
        "config": {
            "model": "models/tiny-llama", "iters": 20, "batch_size": 3, "seed": 5, "num_layers": 2, "learning_rate": 1e-3, "val_batches": 1,
            "steps_per_eval": 6, "lora_parameters": {"keys": ATTENTION, "rank": 4, "scale": 2.0, "dropout": 0.0},
            "lr_schedule": {"name": "cosine_decay", "arguments": [1e-3, 14, 1e-5], "warmup": 4, "warmup_init": 1e-6},
        },
    },
    "adamw": {
        "row": completion, "rows": (11, 4),
        "config": {
            "model": "models/tiny-qwen2", "iters": 24, "batch_size": 2, "seed": 0, "num_layers": -1, "learning_rate": 2e-3, "mask_prompt": True,
            "optimizer": "adamw", "grad_accumulation_steps": 3, "steps_per_eval": 9, "val_batches": -1, "max_seq_length": 30,
            "optimizer_config": {"adamw": {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1, "bias_correction": True}},
            "lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0},
        },
    },
    "sgd": {
        "row": text, "rows": (12, 0),
        "config": {
            "model": "models/tiny-gemma3", "iters": 20, "batch_size": 4, "seed": 7, "num_layers": 8, "learning_rate": 3e-3, "optimizer": "sgd",
            "optimizer_config": {"sgd": {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}},
            "lora_parameters": {"keys": ATTENTION + ["mlp.down_proj"], "rank": 4, "scale": 2.0, "dropout": 0.0},
            "lr_schedule": {"name": "step_decay", "arguments": [3e-3, 0.5, 8]},
        },
    },
    "muon": {
        "row": text, "rows": (9, 0),
        "config": {
            "model": "models/tiny-llama", "iters": 20, "batch_size": 3, "seed": 1, "num_layers": 6, "learning_rate": 3e-3, "optimizer": "muon",
            "lora_parameters": {"keys": ATTENTION, "rank": 4, "scale": 2.0, "dropout": 0.0},
            "lr_schedule": {"name": "linear_schedule", "arguments": [3e-3, 1e-4, 15]},
        },
    },
    "full": {
        "row": text, "rows": (9, 3),
        "config": {
            "model": "models/tiny-gemma3", "iters": 20, "batch_size": 3, "seed": 6, "num_layers": 2, "learning_rate": 1e-4, "steps_per_eval": 10,
            "fine_tune_type": "full", "optimizer": "adamw",
        },
    },
    "experts": {
        "row": text, "rows": (9, 3),
        "config": {
            "model": "models/tiny-qwen3moe", "iters": 20, "batch_size": 3, "seed": 3, "num_layers": 2, "learning_rate": 1e-4, "steps_per_eval": 10,
            "lora_parameters": {"keys": EXPERTS + ["self_attn.q_proj"], "rank": 4, "scale": 2.0, "dropout": 0.0},
        },
    },
    "experts-muon": {
        "row": text, "rows": (9, 0),
        "config": {
            "model": "models/tiny-qwen3moe", "iters": 20, "batch_size": 3, "seed": 4, "num_layers": 2, "learning_rate": 1e-3, "optimizer": "muon",
            "lora_parameters": {"keys": EXPERTS[1:], "rank": 4, "scale": 2.0, "dropout": 0.0},
        },
    },
    "adafactor": {
        "row": text, "rows": (9, 0),
        "config": {
            "model": "models/tiny-llama", "iters": 20, "batch_size": 3, "seed": 1, "num_layers": 6, "learning_rate": 3e-3, "optimizer": "adafactor",
            "lora_parameters": {"keys": ATTENTION, "rank": 4, "scale": 2.0, "dropout": 0.0},
        },
    },
    "adafactor-rates": {
        "row": text, "rows": (9, 0),
        "config": {
            "model": "models/tiny-qwen2", "iters": 20, "batch_size": 3, "seed": 2, "num_layers": 4, "learning_rate": 3e-3, "optimizer": "adafactor",
            "optimizer_config": {"adafactor": {"relative_step": False, "scale_parameter": False, "beta_1": 0.9, "weight_decay": 0.1, "clip_threshold": 0.5}},
            "lora_parameters": {"keys": ATTENTION, "rank": 4, "scale": 2.0, "dropout": 0.0},
            "lr_schedule": {"name": "linear_schedule", "arguments": [3e-3, 1e-4, 15]},
        },
    },
}


def begun(name: str, values: mx.array) -> mx.array:
    """The first values of the matrix `name`, `model.layers.3.self_attn.q_proj.lora_a`."""
    parts = name.split(".")
    k = 16 * int(parts[parts.index("layers") + 1]) + MODULES.index(parts[-2])
    i = np.arange(values.size, dtype=np.float64)
    # Pairs of experts, [experts, r, inputs] and [experts, outputs, r], are not transposed.
    is_stack = values.ndim == 3
    if parts[-1] == "lora_a":
        own = np.cos(0.7 * i + k) / math.sqrt(values.shape[-1 if is_stack else 0])
    else:
        own = 0.1 * np.sin(1.3 * i + k)
    own = own.astype(np.float32)
    return mx.array(own.reshape(values.shape) if is_stack else own.reshape(values.shape[::-1]).T)


def run(case: dict) -> dict:
    found = {"losses": [], "tokens": [], "rates": [], "valid_losses": []}
    seen = {}

    class Recorder:
        def on_train_loss_report(self, info):
            found["losses"].append(info["train_loss"])
            found["tokens"].append(info["trained_tokens"] - sum(found["tokens"]))
            found["rates"].append(info["learning_rate"])

        def on_val_loss_report(self, info):
            found["valid_losses"].append([info["iteration"], info["val_loss"]])

    load, adapt = lora.load, lora.linear_to_lora_layers

    def load_f32(path, *arguments, **named):
        # transformers 5 has another name for it.
        own = json.loads((pathlib.Path(path) / "config.json").read_text())
        aliases = {"model_config": {"num_experts": own["num_local_experts"]}} if "num_local_experts" in own else {}
        model, tokenizer = load(path, *arguments, **aliases, **{key: value for key, value in named.items() if key != "trust_remote_code"})
        model.update(tree_map(lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x, model.parameters()))
        seen["model"] = model
        return model, tokenizer

    def adapt_begun(model, *arguments, **named):
        adapt(model, *arguments, **named)
        own = [(name, begun(name, values)) for name, values in tree_flatten(model.trainable_parameters())]
        model.update(tree_unflatten(own))

    lora.load, lora.linear_to_lora_layers = load_f32, adapt_begun
    lora.get_reporting_callbacks = lambda *_arguments, **_named: Recorder()
    train, valid = ([case["row"](number) for number in range(start, start + count)] for start, count in zip((0, 1), case["rows"]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, rows in [("train", train), ("valid", valid)]:
            if rows:
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = yaml.load(yaml.safe_dump(case["config"]), lora.yaml_loader)
        own = {"train": True, "data": str(folder), "adapter_path": str(folder / "adapters"), "steps_per_report": 1, "model": str(ROOT / config["model"])}
        lora.run(types.SimpleNamespace(**(lora.CONFIG_DEFAULTS | config | own)))
    lora.load, lora.linear_to_lora_layers = load, adapt
    values = {}
    for name, matrix in tree_flatten(seen["model"].trainable_parameters()):
        is_pair = name.endswith(("lora_a", "lora_b"))
        flat = np.array(matrix.T if is_pair and matrix.ndim == 2 else matrix, dtype=np.float64).flatten()
        values[name] = [float(np.linalg.norm(flat)), float((flat * np.cos(np.arange(flat.size))).sum())]
    return {"config": case["config"], "train": train, "valid": valid} | found | {"values": values}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mx.set_default_device(mx.cpu)
    for name, case in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        found = run(case)
        print(f"{name}: {len(found['values'])} matrices, loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}", flush=True)
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
