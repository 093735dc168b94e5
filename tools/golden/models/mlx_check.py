#!/usr/bin/env python3
"""How far mlx_lm itself is from the decoded-weights oracle (golden.safetensors in an MLX directory).

    python mlx_check.py MLX_DIR ...

Twice: as mlx_lm runs the directory (16-bit activations and scales), and with scales, biases and activations
widened to float32, which leaves nothing but the order of sums and so checks the oracle itself.
"""

import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from safetensors.numpy import load_file

mx.set_default_device(mx.cpu)


def distances(model, golden: dict) -> list:
    out = []
    for name in sorted(key.removesuffix(".last") for key in golden if key.endswith(".last")):
        last = np.array(model(mx.array(golden[f"{name}.ids"].astype(np.int32))[None])[0, -1].astype(mx.float32))
        expected = golden[f"{name}.last"].astype(np.float64)
        out.append(float(np.linalg.norm(last - expected) / np.linalg.norm(expected)))
    return out


for folder in map(pathlib.Path, sys.argv[1:]):
    golden = load_file(folder / "golden.safetensors")
    model, _ = load_model(folder)
    stored = distances(model, golden)
    model.set_dtype(mx.float32)
    widened = distances(model, golden)
    print(f"| {folder.name} | {np.mean(stored):.1e} / {max(stored):.1e} | {np.mean(widened):.1e} / {max(widened):.1e} |", flush=True)
