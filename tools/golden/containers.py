#!/usr/bin/env python3
"""Golden files of the containers: small checkpoints written by the public libraries, and what is in them.

Needs `gguf`, `safetensors`, `torch` and `mlx`. Writes one directory or file per case, and `expected.json`: for each case
its tensors (name, shape outermost first, storage format, FNV-1a hash of the stored bytes) and its metadata.

    python tools/golden/containers.py crates/brasa-formats/tests/golden/containers
"""
import json
import shutil
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

out = Path(sys.argv[1])
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)
rng = np.random.default_rng(20261121)
expected = {}


def fnv(*arrays):
    h = 0xCBF29CE484222325
    for a in arrays:
        for b in a:
            h = ((h ^ b) * 0x100000001B3) & (2**64 - 1)
    return f"{h:016x}"


def raw(array):
    """The bytes of a numpy, torch or mlx array."""
    if isinstance(array, torch.Tensor):
        return array.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(array, mx.array):
        return np.array(array.reshape(-1).view(mx.uint8)).tobytes()
    return np.ascontiguousarray(array).tobytes()


# ---- GGUF

Q = gguf.GGMLQuantizationType
VALUES = [
    ("kind.u8", "add_uint8", 255), ("kind.i8", "add_int8", -128), ("kind.u16", "add_uint16", 65535),
    ("kind.i16", "add_int16", -32768), ("kind.u32", "add_uint32", 2**32 - 1), ("kind.i32", "add_int32", -(2**31)),
    ("kind.u64", "add_uint64", 2**64 - 1), ("kind.i64", "add_int64", -(2**63)), ("kind.f32", "add_float32", 0.1),
    ("kind.f64", "add_float64", 0.1), ("kind.bool", "add_bool", True), ("kind.string", "add_string", "naïve\n“text”"),
    ("array.ints", "add_array", [1, -2, 3]), ("array.floats", "add_array", [0.5, -1.25]),
    ("array.bools", "add_array", [True, False, True]), ("array.strings", "add_array", ["", "▁the", "<0x0A>"]),
    ("array.arrays", "add_array", [[1, 2], [3]]),
]
TENSORS = [
    ("token_embd.weight", (6, 256), Q.Q6_K), ("output_norm.weight", (7,), Q.F32), ("f16", (2, 3), Q.F16),
    ("bf16", (2, 2, 5), Q.BF16), ("q4_0", (3, 64), Q.Q4_0), ("q4_1", (1, 32), Q.Q4_1), ("q5_0", (1, 32), Q.Q5_0),
    ("q5_1", (1, 32), Q.Q5_1), ("q8_0", (2, 2, 32), Q.Q8_0), ("q2_k", (1, 256), Q.Q2_K), ("q3_k", (1, 256), Q.Q3_K),
    ("q4_k", (2, 256), Q.Q4_K), ("q5_k", (1, 256), Q.Q5_K), ("iq4_nl", (1, 64), Q.IQ4_NL),
    ("iq4_xs", (1, 1, 2, 256), Q.IQ4_XS),
]


def gguf_tensors():
    listed = []
    for name, shape, kind in TENSORS:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        stored = (*shape[:-1], shape[-1] // block * size)
        data = rng.integers(0, 256, stored, dtype=np.uint8)
        if kind == Q.F32:
            data = rng.standard_normal(shape).astype(np.float32)
        if kind == Q.F16:
            data = rng.standard_normal(shape).astype(np.float16)
        listed.append((name, shape, kind, data))
    return listed


def write_gguf(path, tensors, values=VALUES, **options):
    alignment = options.pop("alignment", None)
    writer = gguf.GGUFWriter(path, "llama", **options)
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, method, value in values:
        getattr(writer, method)(key, value)
    for name, _, kind, data in tensors:
        writer.add_tensor(name, data, raw_dtype=None if kind in (Q.F32, Q.F16) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def expect_gguf(case, tensors, metadata=None):
    expected[case] = {
        "tensors": [[n, list(s), k.name, fnv(raw(d))] for n, s, k, d in tensors],
        "metadata": metadata or {key: value for key, _, value in VALUES},
    }


tensors = gguf_tensors()
write_gguf(out / "every.gguf", tensors)
expect_gguf("every.gguf", tensors)

few = [t for t in tensors if t[0] in ("f16", "q4_0", "q8_0")]
write_gguf(out / "aligned.gguf", few, alignment=128)
expect_gguf("aligned.gguf", few)

# Version 2 is version 3 but for its number.
data = bytearray((out / "every.gguf").read_bytes())
data[4:8] = (2).to_bytes(4, "little")
(out / "version2.gguf").write_bytes(data)
expect_gguf("version2.gguf", tensors)

(out / "split").mkdir()
write_gguf(out / "split" / "model.gguf", tensors, split_max_tensors=6)
expect_gguf("split", tensors)

write_gguf(out / "big-endian.gguf", few, endianess=gguf.GGUFEndian.BIG)

# ---- safetensors


def expect(case, tensors):
    expected[case] = {"tensors": tensors, "metadata": {"model_type": case}}
    (out / case / "config.json").write_text(json.dumps({"model_type": case}) + "\n")


def floats(**shapes):
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    return {n: torch.from_numpy(rng.standard_normal(s).astype(np.float32)).to(kinds[n[: n.index("_")]]) for n, s in shapes.items()}


def listed(tensors):
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    return [[n, list(t.shape), names[t.dtype], fnv(raw(t))] for n, t in tensors.items() if t.dtype in names]


plain = floats(f32_matrix=(3, 4), f16_vector=(5,), bf16_cube=(2, 3, 2), f32_scalar=(), f32_empty=(0, 4))
integers = {"position_ids": torch.arange(6).reshape(1, 6), "mask": torch.ones(2, 2, dtype=torch.bool)}
(out / "plain").mkdir()
save_file({**plain, **integers}, out / "plain" / "model.safetensors", {"format": "pt"})
expect("plain", listed(plain))

first, second = floats(f32_a=(2, 2), bf16_b=(4,)), floats(f16_c=(3, 1), bf16_d=(2, 5))
for case, pattern in [("sharded", "model-0000{}-of-00002.safetensors"), ("globbed", "model{}.safetensors")]:
    (out / case).mkdir()
    weight_map = {}
    for number, shard in [(1, first), (2, second)]:
        file = pattern.format(number)
        save_file(shard, out / case / file, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if case == "sharded":
        index = {"metadata": {"total_size": 68}, "weight_map": weight_map}
        (out / case / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    expect(case, listed({**first, **second}))

# ---- MLX

FORMAT = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
MODULES = [  # name, shape, bits, group, dtype
    ("model.embed_tokens", (5, 128), 4, 64, mx.bfloat16), ("two", (3, 64), 2, 32, mx.float16),
    ("three", (3, 128), 3, 128, mx.float32), ("five", (2, 64), 5, 64, mx.bfloat16), ("six", (2, 96), 6, 32, mx.float16),
    ("eight", (1, 128), 8, 128, mx.bfloat16), ("experts.gate_proj", (2, 3, 64), 4, 64, mx.bfloat16),
]
(out / "mlx").mkdir()
arrays, entries = {}, []
block = {"group_size": 64, "bits": 4, "mode": "affine", "lm_head": False}
for name, shape, bits, group, dtype in MODULES:
    weight = mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)
    words, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
    arrays |= {f"{name}.weight": words, f"{name}.scales": scales, f"{name}.biases": biases}
    entries.append([f"{name}.weight", list(shape), f"MLX {bits}-bit/{group}", fnv(raw(words), raw(scales), raw(biases))])
    if (bits, group) != (4, 64):
        # As MLX writes it: what is absent or null has MLX's default.
        block[name] = {"bits": bits, "group_size": None if group == 64 else group, "mode": "affine"}
for name, shape in [("lm_head.weight", (4, 6)), ("norm.weight", (6,)), ("two.bias", (3,))]:
    arrays[name] = mx.array(rng.standard_normal(shape).astype(np.float32)).astype(mx.bfloat16)
    entries.append([name, list(shape), "BF16", fnv(raw(arrays[name]))])
mx.save_safetensors(str(out / "mlx" / "model.safetensors"), arrays, {"format": "mlx"})
config = {"model_type": "mlx", "quantization": block, "quantization_config": block}
expected["mlx"] = {"tensors": sorted(entries), "metadata": {"model_type": "mlx"}}
(out / "mlx" / "config.json").write_text(json.dumps(config, indent=1) + "\n")

(out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
