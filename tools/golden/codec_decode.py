#!/usr/bin/env python3
"""Golden values of the block decoders: random stored blocks and what the public decoders make of them.

Needs `gguf` and `mlx`. Writes `codec_decode.json` (one entry per case) and `codec_decode.bin` (all arrays, one
after the other, in the order of the entries: stored bytes, then the decoded f32).

    python tools/golden/codec_decode.py crates/brasa-formats/tests/golden
"""
import json
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np

rng = np.random.default_rng(20261121)
out = Path(sys.argv[1])
cases, blob = [], bytearray()

# Where the halves of a block are: everything else may be any byte.
HALVES = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}


def halves(count):
    """Finite halves of either sign, from subnormals to large ones."""
    bits = rng.integers(0, 0x7C00, count, dtype=np.uint16) | (rng.integers(0, 2, count, dtype=np.uint16) << 15)
    return bits.view(np.float16)


def add(entry, *arrays):
    entry["bytes"] = [a.nbytes for a in arrays]
    cases.append(entry)
    for a in arrays:
        blob.extend(np.ascontiguousarray(a).tobytes())


for name in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]:
    kind = gguf.GGMLQuantizationType[name]
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = {1: 64, 32: 16, 256: 4}[block_len]
    raw = rng.integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
    if name in ("F32", "BF16"):
        values = (rng.standard_normal(blocks) * 10.0 ** rng.integers(-30, 30, blocks)).astype(np.float32)
        raw = values.view(np.uint8) if name == "F32" else values.view(np.uint16)[1::2].copy().view(np.uint8)
    for at in HALVES.get(name, []):
        raw[:, at : at + 2] = halves(blocks).view(np.uint8).reshape(-1, 2)
    raw = raw.reshape(1, -1)
    add({"format": name}, raw, gguf.quants.dequantize(raw, kind).astype(np.float32))

mx.set_default_device(mx.cpu)
for bits in [2, 3, 4, 5, 6, 8]:
    for group, scale_format in [(32, "F16"), (64, "BF16"), (128, "F32")]:
        dtype = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[scale_format]
        rows, width = 2, 128
        words = mx.array(rng.integers(0, 2**32, (rows, width * bits // 32), dtype=np.uint32))
        scales = mx.array(rng.standard_normal((rows, width // group)).astype(np.float32)).astype(dtype)
        biases = mx.array(rng.standard_normal((rows, width // group)).astype(np.float32)).astype(dtype)
        wide = lambda a: a.astype(mx.float32)
        decoded = mx.dequantize(words, wide(scales), wide(biases), group_size=group, bits=bits)
        raw = lambda a: np.array(a.view(mx.uint32 if a.dtype == mx.float32 else mx.uint16))
        add(
            {"format": "MLX", "bits": bits, "group_size": group, "scale_format": scale_format, "rows": rows},
            np.array(words), raw(scales), raw(biases), np.array(decoded),
        )

(out / "codec_decode.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
(out / "codec_decode.bin").write_bytes(blob)
print(len(cases), "cases,", len(blob), "bytes")
