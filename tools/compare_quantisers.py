#!/usr/bin/env python3
"""Error of our encoders beside llama.cpp's plain quantisers (no importances), on the same tensors.

Needs `gguf`, `llama_cpp` (for its libggml-base) and a checkpoint directory with a bf16 `model.safetensors`.

    cargo build --release -p brasa-formats --example encode
    python tools/compare_quantisers.py MODEL_DIR target/release/examples/encode

Prints a Markdown table: relative RMSE, ours / theirs per format, on Gaussian noise, on heavy tails and on the
checkpoint's matrices, and the time per element of both.
"""
import ctypes
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

model, encoder = Path(sys.argv[1]), sys.argv[2]
formats = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
if len(sys.argv) > 3:
    formats = sys.argv[3].split(",")
lib = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
lib.ggml_quantize_chunk.restype = ctypes.c_size_t
lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]


def matrices():
    """The checkpoint's matrices with rows of a multiple of 256."""
    raw = (model / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__" and len(t["shape"]) == 2 and t["shape"][1] % 256 == 0:
            a, b = t["data_offsets"]
            bits = np.frombuffer(raw[8 + n + a : 8 + n + b], np.uint16).astype(np.uint32) << 16
            yield bits.view(np.float32).reshape(t["shape"])


rng = np.random.default_rng(7)
whole = np.concatenate([m.reshape(-1, 256) for m in matrices()])
sets = {
    "gaussian": rng.standard_normal((4096, 256)).astype(np.float32) * 0.02,
    "heavy tails": rng.standard_t(3, (4096, 256)).astype(np.float32) * 0.02,
    model.name: whole[: 16384],
}


def theirs(kind, x):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty((x.shape[0], x.shape[1] // block * size), np.uint8)
    start = time.perf_counter()
    lib.ggml_quantize_chunk(kind.value, x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    return out, (time.perf_counter() - start) * 1e9 / x.size


def ours(name, x, folder):
    a, b = Path(folder) / "in", Path(folder) / "out"
    x.tofile(a)
    ns = float(subprocess.run([encoder, name, str(x.shape[1]), a, b], check=True, capture_output=True, text=True).stdout)
    return np.fromfile(b, np.uint8).reshape(x.shape[0], -1), ns


def relative(kind, stored, x):
    back = gguf.quants.dequantize(stored, kind).astype(np.float64)
    return np.sqrt(np.mean((back - x) ** 2) / np.mean(x.astype(np.float64) ** 2))


print("|format|" + "|".join(sets) + "|ns per element|")
print("|---|" + "---|" * (len(sets) + 1))
worse = False
for name in formats:
    kind = gguf.GGMLQuantizationType[name]
    cells, times = [], []
    for x in sets.values():
        with tempfile.TemporaryDirectory() as folder:
            a, ta = ours(name, x, folder)
        b, tb = theirs(kind, x)
        ea, eb = relative(kind, a, x), relative(kind, b, x)
        worse |= ea > eb * (1 + 1e-6)
        cells.append(f"{ea:.3e} / {eb:.3e} ({100 * (ea / eb - 1):+.1f} %)" if eb else f"{ea:.3e} / {eb:.3e}")
        times.append((ta, tb))
    ta, tb = np.mean(times, axis=0)
    print(f"|{name}|" + "|".join(cells) + f"|{ta:.1f} / {tb:.1f}|", flush=True)
sys.exit("worse somewhere" if worse else 0)
