#!/usr/bin/env python3
"""Checks our conversion to GGUF against llama.cpp.

For every checkpoint directory given: converts it to F32 with our code, loads it in llama.cpp, and compares token ids,
greedy continuations (up to the first step whose margin is below 0.02) and the mean NLL with `reference.json`
(transformers). With `--script convert_hf_to_gguf.py`, also compares a BF16 conversion with that script's, key by
key and byte by byte. A GGUF file is loaded and run as it is. With `--mixes`, also
quantises it to every type with both and compares types, order and metadata. With `--mlx`, also converts the
checkpoint to 8-bit MLX and that to GGUF.

    cargo build --release -p brasa-convert --example quantize
    python tools/verify_convert.py target/release/examples/quantize [--script PATH] [--mixes] [--mlx] MODEL_DIR...

Needs `llama_cpp`, `gguf`, `numpy`; `torch` and `transformers` for the script; `mlx_lm` for MLX.
"""
import argparse
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MARGIN = 0.02

# The script recognises published tokenizers only; for others it is told what ours found.
SCRIPT = """
import runpy, sys
from pathlib import Path
root = Path(sys.argv[1]).parent
pre = sys.argv[2]
sys.path[:0] = [str(root), str(root / "gguf-py")]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
sys.argv = [sys.argv[1]] + sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fields(path):
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {k: ([t.name for t in f.types], f.contents()) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    return keys, {t.name: t for t in reader.tensors}


def compare_files(ours, theirs, accepted):
    """Prints every difference; returns how many were not expected."""
    (a, ta), (b, tb) = fields(ours), fields(theirs)
    wrong = 0
    for key in sorted(set(a) | set(b)):
        if a.get(key) != b.get(key):
            known = key in accepted
            wrong += not known
            print(f"    {key}: {str(a.get(key))[:70]} | {str(b.get(key))[:70]}{' (known)' if known else ''}")
    for name in sorted(set(ta) | set(tb)):
        x, y = ta.get(name), tb.get(name)
        same = x is not None and y is not None and x.tensor_type == y.tensor_type
        if not same or list(x.shape) != list(y.shape) or x.data.tobytes() != y.data.tobytes():
            wrong += 1
            print(f"    {name} differs")
    print(f"    {len(a)} keys, {len(ta)} tensors: {'equal' if not wrong else f'{wrong} differences'}")
    return wrong


def compare_mixes(convert, full, folder):
    """Every type that llama.cpp makes of the BF16 file `full` without importances, beside ours."""
    import ctypes
    import llama_cpp

    types = {
        "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
        "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
    }
    llama_cpp.llama_log_set(ctypes.cast(0, llama_cpp.llama_log_callback), None)
    ours, theirs, wrong = folder / "ours.gguf", folder / "theirs.gguf", 0
    for name, code in types.items():
        convert(full, ours, name)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = code
        if llama_cpp.llama_model_quantize(str(full).encode(), str(theirs).encode(), ctypes.byref(params)):
            print(f"    {name}: llama.cpp refused")
            continue
        (a, ta), (b, tb) = fields(ours), fields(theirs)
        kinds = [(t.name, t.tensor_type.name) for t in ta.values()], [(t.name, t.tensor_type.name) for t in tb.values()]
        if kinds[0] != kinds[1] or a != b:
            wrong += 1
            print(f"    {name}: other types or metadata than llama.cpp")
    print(f"    {len(types)} types: {'tensor types, order and metadata equal' if not wrong else f'{wrong} differ'}")
    return wrong


def run(path, reference, nll_bound, margin_bound=MARGIN):
    """Ids, greedy text and NLL in llama.cpp; returns the number of failures."""
    import llama_cpp

    llm = llama_cpp.Llama(
        str(path), n_ctx=1024, n_batch=1024, verbose=False, logits_all=True, type_k=0, type_v=0, n_threads=2, flash_attn=False
    )
    wrong = steps = 0
    worst = 0.0
    for prompt in reference["prompts"]:
        ids = prompt["input_ids"]
        bos = llm.token_bos()
        text = prompt["text"]
        plain = prompt["kind"] == "plain"
        found = llm.tokenize(text.encode(), add_bos=plain, special=not plain)
        if found != ids:
            wrong += 1
            print(f"    {prompt['name']}: ids {found[:12]}, expected {ids[:12]} (bos {bos})")
        llm.reset()
        llm.eval(ids)
        logits = np.array(llm.scores[: len(ids)], dtype=np.float64)
        logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        nll = -np.mean([logp[i, ids[i + 1]] for i in range(len(ids) - 1)])
        worst = max(worst, abs(nll - prompt["mean_nll"]))
        for expected, margin in zip(prompt["greedy_ids"], prompt["greedy_margins"]):
            token = int(np.argmax(llm.scores[llm.n_tokens - 1]))
            if token != expected:
                if margin >= margin_bound:
                    wrong += 1
                    print(f"    {prompt['name']}: {token}, expected {expected}, margin {margin:.3f}")
                break
            steps += 1
            llm.eval([token])
    wrong += worst > nll_bound
    print(f"    llama.cpp: {len(reference['prompts'])} prompts, {steps} greedy tokens equal, NLL within {worst:.1e}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("quantize")
    parser.add_argument("models", nargs="+", type=Path, help="directories, or GGUF files beside a reference.json")
    parser.add_argument("--script", type=Path)
    parser.add_argument("--mixes", action="store_true")
    parser.add_argument("--mlx", action="store_true")
    args = parser.parse_args()
    convert = lambda source, to, kind: subprocess.run([args.quantize, source, to, kind], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wrong = 0
    for model in args.models:
        print(model.name)
        if model.suffix == ".gguf":
            # Its own rounding shows: where the model is sure, it has to say the same.
            wrong += run(model, json.loads((model.parent / "reference.json").read_text()), 0.5, 0.5)
            continue
        reference = json.loads((model / "reference.json").read_text()) if (model / "reference.json").exists() else None
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            ours = folder / f"{model.name}.gguf"
            convert(model, ours, "F32")
            if reference:
                # llama.cpp looks GELU up in a table of halves: that shows in Gemma, most where it flips an expert.
                wrong += run(ours, reference, 5e-2 if "moe" in model.name else 2e-3)
            if args.script:
                convert(model, ours, "BF16")
                theirs = folder / "theirs.gguf"
                pre = fields(ours)[0].get("tokenizer.ggml.pre", (None, "gemma4"))[1]
                done = subprocess.run(
                    [sys.executable, "-c", SCRIPT, args.script, pre, model, "--outtype", "bf16", "--outfile", theirs],
                    capture_output=True, text=True,
                )
                if done.returncode:
                    print("    the script failed:", done.stderr.strip().splitlines()[-1])
                    wrong += 1
                else:
                    # Gemma without tokenizer.model: the script writes a byte-level vocabulary that cannot work, and
                    # leaves turn markers as ordinary text.
                    keys = ["model", "pre", "scores", "token_type", "add_space_prefix", "merges"]
                    accepted = {f"tokenizer.ggml.{key}" for key in keys} if pre == "gemma4" else set()
                    # `do_sample: false` and `repetition_penalty`, which the script passes over.
                    accepted |= {"general.sampling.temp", "general.sampling.penalty_repeat"}
                    wrong += compare_files(ours, theirs, accepted)
            if args.mixes:
                convert(model, ours, "BF16")
                wrong += compare_mixes(convert, ours, folder)
            if args.mlx and reference:
                from mlx_lm import convert as mlx_convert

                mlx_convert(str(model), str(folder / "mlx"), quantize=True, q_bits=8, q_group_size=32)
                convert(folder / "mlx", ours, "F32")
                print("    from MLX 8-bit (its own rounding shows in the NLL):")
                wrong += run(ours, reference, 0.1, 0.5)
    print("all equal" if not wrong else f"{wrong} failures")
    sys.exit(bool(wrong))


main()
