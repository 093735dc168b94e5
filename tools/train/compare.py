"""How fast `brasa train` is beside PEFT with torch and beside mlx_lm.lora, in turn on one model and one file of texts.

    python tools/train/compare.py BRASA FOLDER [--mlx PYTHON] [--shape qwen3-0.6b] [--tokens 512] [--rank 8] [--threads 2]
                                  [--updates 4] [--rounds 2] [--only brasa,peft,mlx] [--types f32,bf16]

FOLDER gets a model with random weights in BF16 and in F32, in real shapes, with the tokenizer of lexicon-qwen3, and a file of texts that are cut
at TOKENS. Each program trains an adapter at all projections of all blocks by AdamW, a text an update, and prints one line of JSON: tokens a
second of the updates behind the first. Runs with torch, transformers and peft; PYTHON has mlx-lm (0.32).
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "models/lexicon-qwen3"
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPES = {
    "qwen3-0.6b": dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151936, tie_word_embeddings=True,
    ),
}


def make(folder: pathlib.Path, shape: str) -> None:
    """The model in both types, and its texts."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        if (folder / name / "config.json").exists():
            continue
        torch.manual_seed(0)
        config = transformers.Qwen3Config(max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id, **SHAPES[shape])
        model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).to(dtype)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    words = [w for w in json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"] if w.isascii() and w.isalpha()]
    draw = random.Random(7)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    rows = [json.dumps({"text": " ".join(draw.choices(words, k=1200))}) for _ in range(64)]
    (data / "train.jsonl").write_text("\n".join(rows) + "\n")


def brasa(options, model: pathlib.Path, data: pathlib.Path) -> float:
    out = model.parent / "adapter-brasa"
    for file in out.glob("*") if out.exists() else []:
        file.unlink()
    command = [options.brasa, "train", str(model), "--data", str(data), "--out", str(out), "--rank", str(options.rank)]
    command += ["--batch-tokens", str(options.tokens), "--long", "cut", "--steps", str(options.updates + 1)]
    command += ["--threads", str(options.threads)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line][1:]
    assert all(line["rows"] >= options.tokens - 1 for line in steps)
    return options.tokens * len(steps) / sum(line["seconds"] for line in steps)


def peft(options, model: pathlib.Path, data: pathlib.Path) -> float:
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    adapted = get_peft_model(base, LoraConfig(r=options.rank, lora_alpha=16, target_modules=PROJECTIONS, task_type="CAUSAL_LM"))
    adapted.train()
    learned = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4)
    texts = [json.loads(line)["text"] for line in (data / "train.jsonl").read_text().splitlines()]
    times = []
    for text in texts[: options.updates + 1]:
        ids = tokenizer(text, truncation=True, max_length=options.tokens, return_tensors="pt").input_ids
        assert ids.shape[1] == options.tokens
        start = time.perf_counter()
        optimizer.zero_grad()
        adapted(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return options.tokens * options.updates / sum(times[1:])


def mlx(options, model: pathlib.Path, data: pathlib.Path) -> float:
    file = model.parent / "mlx.yaml"
    keys = [f"self_attn.{p}" if p[0] in "qkvo" else f"mlp.{p}" for p in PROJECTIONS]
    file.write_text(json.dumps({  # JSON is YAML
        "model": str(model), "data": str(data), "train": True, "adapter_path": str(model.parent / "adapter-mlx"),
        "batch_size": 1, "iters": options.updates + 1, "num_layers": -1, "max_seq_length": options.tokens, "optimizer": "adamw",
        "learning_rate": 1e-4, "steps_per_report": 1, "steps_per_eval": 10**6, "val_batches": 0, "save_every": 10**6,
        "lora_parameters": {"keys": keys, "rank": options.rank, "scale": 2.0, "dropout": 0.0},
    }))
    script = ("import mlx.core as mx; mx.set_default_device(mx.cpu); import sys; from mlx_lm.lora import main; "
              "sys.argv = ['lora', '-c', sys.argv[1]]; main()")
    # What it shows of its speed is in whole tokens a second: a line of its table is taken for the end of its update.
    ends, said = [], []
    with subprocess.Popen(
        [options.mlx, "-u", "-c", script, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout:
            said.append(line)
            if re.match(r"\s*\d+\s+\d+\.\d+ ", re.sub(r"\x1b\[[\d;]*m", "", line)):
                ends.append(time.monotonic())
    assert running.returncode == 0 and len(ends) == options.updates + 1, "".join(said)
    return options.updates * options.tokens / (ends[-1] - ends[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mlx", help="a Python with mlx-lm")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="brasa,peft,mlx")
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    programs = {"brasa": brasa, "peft": peft, "mlx": mlx}
    data = options.folder / "data"
    if options.one:
        name, dtype = options.one.split(":")
        speed = programs[name](options, options.folder / dtype, data)
        most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(json.dumps({"program": name, "weights": dtype, "tokens_per_second": round(speed, 1), "peak_mib": most >> 10}), flush=True)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    make(options.folder, options.shape)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    for _ in range(options.rounds):
        for name in options.only.split(","):
            for dtype in options.types.split(","):
                if name != "mlx" or options.mlx:
                    subprocess.run([sys.executable, *sys.argv, "--one", f"{name}:{dtype}"], check=True)


main()
