#!/usr/bin/env python3
"""How often llama.cpp chooses other experts once activations are rounded to 8 bits.

    python llama_experts.py FILE-f32.gguf REFERENCE.json WORK_DIR [TYPE ...]

Quantises the mixture of experts FILE with llama.cpp's quantiser, decodes the result back to float32 (again by llama.cpp), and runs
both files: the weights are the same numbers, only the second keeps its activations in float32. Counted are the rows of the
prompts in REFERENCE whose set of experts differs in some layer, and the pairs of a row and a layer that do.
"""

import argparse
import ctypes
import json
import pathlib

import llama_cpp
import numpy as np

from llama_engine import Engine

TYPES = {"Q8_0": 7, "Q4_K_M": 15}
ggml = llama_cpp.llama_cpp._lib  # ggml's symbols come with libllama's


def declare() -> None:
    for name, result in (("get_name", ctypes.c_char_p), ("nbytes", ctypes.c_size_t), ("nrows", ctypes.c_int64), ("nelements", ctypes.c_int64)):
        function = getattr(ggml, f"ggml_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], result
    ggml.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]


def quantize(source: pathlib.Path, out: pathlib.Path, ftype: int) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, 1, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) != 0:
        raise RuntimeError(f"llama_model_quantize failed for {out.name}")


def experts(path: pathlib.Path, texts: dict, kv: str) -> dict:
    """Per prompt `[layers][rows]` sets of experts."""
    found = {}

    def see(tensor, ask, _):
        # A view of the sorted experts: the chosen ones lead rows that are as long as there are experts.
        name = ggml.ggml_get_name(tensor)
        if not name.startswith(b"ffn_moe_topk-"):
            return not ask
        if not ask:
            rows, size = ggml.ggml_nrows(tensor), ggml.ggml_nbytes(tensor)
            chosen = ggml.ggml_nelements(tensor) // rows
            data = np.empty(size // 4, np.int32)
            ggml.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, size)
            stride = (data.size - chosen) // (rows - 1) if rows > 1 else chosen
            layer = found.setdefault(name, [])
            layer += [frozenset(data[r * stride : r * stride + chosen].tolist()) for r in range(rows)]
        return True

    observe = llama_cpp.ggml_backend_sched_eval_callback(see)
    engine = Engine(path, 1024, kv, 1, observe)
    result = {}
    for name, ids in texts.items():
        found.clear()
        engine.logits(ids)
        result[name] = list(found.values())
    engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("types", nargs="*", default=list(TYPES))
    args = parser.parse_args()
    declare()
    texts = {p["name"]: p["input_ids"] for p in json.loads(args.reference.read_text())["prompts"]}
    for name in args.types or TYPES:
        quantised, decoded = (args.work / f"{args.source.stem}-{name}{part}.gguf" for part in ("", "-decoded"))
        quantize(args.source, quantised, TYPES[name])
        quantize(quantised, decoded, 0)
        expected, rounded = experts(decoded, texts, "f32"), experts(quantised, texts, "f16")
        rows = other_rows = pairs = other_pairs = 0
        for prompt in texts:
            differ = np.array([[a != b for a, b in zip(*layers)] for layers in zip(rounded[prompt], expected[prompt])])
            rows, other_rows = rows + differ.shape[1], other_rows + int(differ.any(0).sum())
            pairs, other_pairs = pairs + differ.size, other_pairs + int(differ.sum())
        print(f"{args.source.stem} {name}: other experts in {other_rows} of {rows} rows ({other_rows / rows:.1%}), "
              f"in {other_pairs} of {pairs} pairs of a row and a layer ({other_pairs / pairs:.2%})", flush=True)


if __name__ == "__main__":
    main()
