#!/usr/bin/env python3
"""lexicon-qwen3 in every type of llama.cpp's quantiser: sizes, perplexities, distances from the oracle.

    python lexicon_types.py [--build NAME] HF_DIR FILE-f32.gguf WORK_DIR [TYPE ...]

Writes WORK_DIR/lexicon-TYPE.gguf (llama_model_quantize, default parameters, no importance matrix) where there is none, and
WORK_DIR/lexicon-TYPE.safetensors (decoded_oracle.py). llama.cpp refuses to make Q2_K_S without an importance matrix, though not to run it: make
that file with `brasa quantize` first. Then
updates tools/golden/models/lexicon_types.json: per type

    bytes, tensors           of the file; how many tensors have which format
    perplexity               of models/lexicon-qwen3/perplexity.txt at n_ctx 512 (perplexity.py), by llama.cpp with
                             float32 KV, by llama.cpp with its default float16 KV, and by the oracle
    prompts                  per reference prompt, llama.cpp against the oracle: relative L2 and worst element of the
                             last logits, NLL difference, greedy agreement; for float32 and for float16 KV

`--build NAME` only adds to a record the perplexity with float16 KV by the llama.cpp at hand, another build, as "llama.cpp NAME".
Built with GGML_BLAS it multiplies many rows in float32.
"""

import argparse
import collections
import ctypes
import json
import pathlib

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors.numpy import save_file

import decoded_oracle
from llama_cpp_check import check, tensors
from llama_engine import Engine
from perplexity import perplexity

HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parents[2] / "models" / "lexicon-qwen3" / "perplexity.txt"
TYPES = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11,
         "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30}


def quantize(source: pathlib.Path, out: pathlib.Path, ftype: int) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = ftype, 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) != 0:
        raise RuntimeError(f"llama_model_quantize failed for {out.name}")


def by_llama(path: pathlib.Path, oracle: pathlib.Path, reference: pathlib.Path, kv: str, ids: list) -> tuple:
    engine = Engine(path, 1024, kv, 1)
    found = perplexity(engine.logits, ids)
    prompts = [check(engine, case) for case in tensors(oracle, reference)]
    engine.close()
    return found, prompts


def of_build(path: pathlib.Path, ids: list) -> dict:
    engine = Engine(path, 1024, "f16", 1)
    found = perplexity(engine.logits, ids)
    engine.close()
    return found


@torch.no_grad()
def by_oracle(model, ids: list) -> dict:
    return perplexity(lambda window: model(torch.tensor([window]), use_cache=False).logits[0].numpy(), ids)


def measure(name: str, hf: pathlib.Path, source: pathlib.Path, work: pathlib.Path, ids: list) -> dict:
    path, golden, reference = work / f"lexicon-{name}.gguf", work / f"lexicon-{name}.safetensors", hf / "reference.json"
    if not path.exists():
        quantize(source, path, TYPES[name])
    formats = collections.Counter(t.tensor_type.name for t in gguf.GGUFReader(path).tensors)
    model = decoded_oracle.decoded_model(hf, path)
    texts, steps = decoded_oracle.prompts_of(reference)
    save_file({f"{p}.{part}": v for p, i in texts.items() for part, v in decoded_oracle.evaluate(model, i, steps).items()}, golden)
    result = {"bytes": path.stat().st_size, "tensors": dict(formats), "perplexity": {"oracle": by_oracle(model, ids)}, "prompts": {}}
    for kv in ("f32", "f16"):
        result["perplexity"][f"llama.cpp {kv} kv"], result["prompts"][f"{kv} kv"] = by_llama(path, golden, reference, kv, ids)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", metavar="NAME")
    parser.add_argument("hf", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("types", nargs="*", default=list(TYPES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine(args.source, 256, "f32", 1)
    ids = engine.tokenize(TEXT.read_text().removesuffix("\n"), True, False)
    engine.close()
    out = HERE / "lexicon_types.json"
    results = json.loads(out.read_text()) if out.exists() else {}
    for name in args.types or TYPES:
        if args.build:
            results[name]["perplexity"][f"llama.cpp {args.build}"] = of_build(args.work / f"lexicon-{name}.gguf", ids)
        else:
            results[name] = measure(name, args.hf, args.source, args.work, ids)
        out.write_text(json.dumps({key: results[key] for key in TYPES if key in results}, indent=1) + "\n")
        if args.build:
            print(name, results[name]["perplexity"], flush=True)
            continue
        worst = max(results[name]["prompts"]["f32 kv"], key=lambda p: p["relative_l2"])
        print(f"{name:7} {results[name]['bytes'] / 1e6:6.2f} MB  perplexity oracle {results[name]['perplexity']['oracle']['perplexity']:.4f}"
              f"  llama.cpp {results[name]['perplexity']['llama.cpp f32 kv']['perplexity']:.4f}  f16 KV {results[name]['perplexity']['llama.cpp f16 kv']['perplexity']:.4f}"
              f"  rel L2 mean {np.mean([p['relative_l2'] for p in results[name]['prompts']['f32 kv']]):.4f} max {worst['relative_l2']:.4f} ({worst['name']})", flush=True)
