#!/usr/bin/env python3
"""Golden values of the encoders.

Q8_0, F16, BF16 and MLX must equal the public encoders byte for byte; for every other format the relative RMSE of
llama.cpp's plain quantiser on the same elements is what ours must not exceed.
Needs `gguf`, `mlx` and `llama_cpp` (for its libggml-base).

    python tools/golden/codec_encode.py crates/brasa-formats/tests/golden
"""
import ctypes
import json
import sys
from pathlib import Path

import gguf
import llama_cpp
import mlx.core as mx
import numpy as np

lib = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
lib.ggml_quantize_chunk.restype = ctypes.c_size_t
lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]

rng = np.random.default_rng(20261121)
out = Path(sys.argv[1])
blob, cases = bytearray(), []
rows, width = 12, 512
x = np.concatenate([
    rng.standard_normal((4, width)) * 0.02, rng.standard_t(3, (4, width)) * 0.02,
    np.abs(rng.standard_normal((2, width))) * 3, rng.uniform(-1, 1, (2, width)) ** 5,
]).astype(np.float32)
x[3, :64] = 0
x[7, 32:64] *= 1e-4


def add(entry, *arrays):
    entry["bytes"] = [a.nbytes for a in arrays]
    cases.append(entry)
    for a in arrays:
        blob.extend(np.ascontiguousarray(a).tobytes())


add({"format": "input", "rows": rows}, x)
for name in ["Q8_0", "F16", "BF16"]:
    kind = gguf.GGMLQuantizationType[name]
    add({"format": name}, gguf.quants.quantize(x, kind).view(np.uint8))

for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]:
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    stored = np.empty((rows, width // block * size), np.uint8)
    lib.ggml_quantize_chunk(kind.value, x.ctypes.data, stored.ctypes.data, 0, rows, width, None)
    error = gguf.quants.dequantize(stored, kind).astype(np.float64) - x
    rmse = [float(np.sqrt((error[r : r + 2] ** 2).sum() / (x[r : r + 2].astype(np.float64) ** 2).sum())) for r in range(0, rows, 2)]
    add({"format": name, "rmse_of_row_pairs": rmse})

mx.set_default_device(mx.cpu)
for bits in [2, 3, 4, 5, 6, 8]:
    for group, scale_format in [(32, "F16"), (64, "BF16"), (128, "F32")]:
        dtype = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[scale_format]
        typed = mx.array(x).astype(dtype)
        words, scales, biases = mx.quantize(typed, group_size=group, bits=bits)
        raw = lambda a: np.array(a.view(mx.uint32 if a.dtype == mx.float32 else mx.uint16))
        add(
            {"format": "MLX", "bits": bits, "group_size": group, "scale_format": scale_format},
            np.array(words), raw(scales), raw(biases),
        )

(out / "codec_encode.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
(out / "codec_encode.bin").write_bytes(blob)
print(len(cases), "cases,", len(blob), "bytes")
