#!/usr/bin/env python3
"""Small hostile model files: cut off, contradictory, or made to deceive. Every one must be refused with a clear message.

    python tools/golden/hostile.py crates/brasa-formats/tests/hostile

The messages are in the snapshots of crates/brasa-formats/tests/suite/hostile.rs.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

out = Path(sys.argv[1])
shutil.rmtree(out, ignore_errors=True)
for kind in ["gguf", "safetensors", "directories", "foreign"]:
    (out / kind).mkdir(parents=True)

u32, u64 = lambda x: struct.pack("<I", x), lambda x: struct.pack("<Q", x)
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


# ---- GGUF, from its parts

def text(s):
    data = s if isinstance(s, bytes) else s.encode()
    return u64(len(data)) + data


def pair(key, kind, value):
    return text(key) + u32(kind) + value


def array(kind, count, data=b""):
    return u32(kind) + u64(count) + data


def info(name, dims, kind=0, offset=0):
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(pairs=(), infos=(), data=0, version=3, tensor_count=None, pair_count=None, align=32):
    tensor_count = len(infos) if tensor_count is None else tensor_count
    pair_count = len(pairs) if pair_count is None else pair_count
    header = b"GGUF" + u32(version) + u64(tensor_count) + u64(pair_count) + b"".join(pairs) + b"".join(infos)
    return header + bytes(-len(header) % align) + bytes(data)


def case(name, data):
    (out / "gguf" / f"{name}.gguf").write_bytes(data)


ARCH = pair("general.architecture", STRING, text("llama"))
whole = gguf([ARCH, pair("a", ARRAY, array(STRING, 2, text("x") + text("yy")))], [info("w", [8, 2])], 64)
# One cut inside every structure: where it is, and how many bytes stay.
CUTS = {
    "magic": 6, "tensor-count": 12, "pair-count": 20, "key-length": 28, "key": 40, "value-type": 54,
    "string-length": 60, "string": 66, "array-type": 88, "array-count": 94, "array-strings": 105,
    "name-length": 122, "dimensions": 140, "tensor-type": 150, "offset": 158, "data": len(whole) - 1,
}
for place, length in CUTS.items():
    case(f"cut-in-{place}", whole[:length])
case("cut-in-string-of-array", gguf([pair("a", ARRAY, array(STRING, 1, u64(100)))])[:60])
case("version-0", gguf(version=0))
case("version-1", gguf(version=1))
case("version-4", gguf(version=4))
case("big-endian", gguf(version=3 << 24))
case("tensor-count-huge", gguf(tensor_count=2**63))
case("tensor-count-too-high", gguf([ARCH], [info("w", [2])], 8, tensor_count=9))
case("pair-count-huge", gguf(pair_count=2**64 - 1))
case("pair-count-too-high", gguf([ARCH], pair_count=40))
case("key-too-long", gguf([pair("k" * 65536, BOOL, b"\1")]))
case("key-length-huge", gguf([u64(2**62) + b"key"]))
case("key-twice", gguf([ARCH, pair("a", BOOL, b"\1"), pair("a", BOOL, b"\0")]))
case("key-not-utf8", gguf([pair(b"a\xff\xfe", BOOL, b"\1")]))
case("key-with-control-characters", gguf([pair("a\x1b[2J\r\n", BOOL, b"\2")]))
case("string-not-utf8", gguf([pair("general.name", STRING, text(b"caf\xe9"))]))
case("string-length-huge", gguf([pair("a", STRING, u64(2**40))]))
case("bool-of-2", gguf([pair("a", BOOL, b"\2")]))
case("bool-of-2-in-array", gguf([pair("a", ARRAY, array(BOOL, 3, b"\0\1\2"))]))
case("value-type-unknown", gguf([pair("a", 13, u64(0))]))
case("array-type-unknown", gguf([pair("a", ARRAY, array(77, 1, u64(0)))]))
case("array-count-huge", gguf([pair("a", ARRAY, array(F32, 2**61))]))
case("array-of-strings-count-huge", gguf([pair("a", ARRAY, array(STRING, 2**32))]))
case("array-of-arrays-count-huge", gguf([pair("a", ARRAY, array(ARRAY, 2**60))]))
deep = array(F32, 0)
for _ in range(8):
    deep = array(ARRAY, 1, deep)
case("arrays-too-deep", gguf([pair("a", ARRAY, deep)]))
case("arrays-far-too-deep", gguf([pair("a", ARRAY, array(ARRAY, 1) * 3000 + array(F32, 0))]))
for name, kind, value in [
    ("0", U32, u32(0)), ("33", U32, u32(33)), ("4", U32, u32(4)), ("huge", 10, u64(2**63)), ("negative", 5, struct.pack("<i", -32)),
    ("a-string", STRING, text("32")),
]:
    case(f"alignment-{name}", gguf([pair("general.alignment", kind, value)], [info("w", [2])], 8))
case("tensor-twice", gguf([], [info("w", [2]), info("w", [2], offset=32)], 64))
case("tensor-name-not-utf8", gguf([], [info(b"\xc3\x28", [2])], 8))
case("tensor-name-too-long", gguf([], [info("w" * 70000, [2])], 8))
case("tensor-with-5-dimensions", gguf([], [info("w", [1] * 5)], 4))
case("tensor-with-huge-rank", gguf([], [text("w") + u32(2**32 - 1) + bytes(64)]))
case("tensor-misaligned", gguf([], [info("w", [2], offset=4)], 64))
case("tensor-beyond-the-end", gguf([], [info("w", [2], offset=1 << 20)], 64))
case("tensor-offset-overflows", gguf([], [info("w", [2], offset=2**64 - 32)], 64))
case("tensor-dimensions-overflow", gguf([], [info("w", [2**32, 2**32])], 64))
case("tensor-size-overflows", gguf([], [info("w", [2**62, 1])], 64))
case("tensor-empty-but-endless", gguf([], [info("w", [0, 2**40, 2**40])], 64))
case("tensor-larger-than-memory", gguf([], [info("w", [2**40])], 64))
case("tensors-overlap", gguf([], [info("v", [32]), info("w", [8], offset=96)], 160))
case("tensors-share-bytes", gguf([], [info("v", [8]), info("w", [8])], 32))
case("rows-ragged", gguf([], [info("w", [48, 2], 2)], 96))
for name, kind in [("q4_2", 4), ("q8_k", 15), ("iq2_xxs", 16), ("i8", 24), ("f64", 28), ("31", 31), ("mxfp4", 39), ("99", 99), ("max", 2**32 - 1)]:
    case(f"type-{name}", gguf([], [info("blk.0.attn_q.weight", [256], kind)], 2048))

# Alignments of every kind that is no power of two from 8 up.
I8, U8, U16, U64, F64 = 1, 0, 2, 10, 12
for name, kind, value in [
    ("3", U32, u32(3)), ("24", U16, struct.pack("<H", 24)), ("max", U64, u64(2**64 - 1)), ("2-to-the-31", U32, u32(2**31)),
    ("a-float", F32, struct.pack("<f", 32)), ("a-bool", BOOL, b"\1"), ("an-array", ARRAY, array(U32, 1, u32(32))),
]:
    case(f"alignment-{name}", gguf([pair("general.alignment", kind, value)], [info("w", [2])], 8))
case("alignment-twice", gguf([pair("general.alignment", U32, u32(32))] * 2, [info("w", [2])], 8))
case("alignment-64-offset-32", gguf([pair("general.alignment", U32, u32(64))], [info("v", [2]), info("w", [2], offset=32)], 64, align=64))
# Arrays: counts whose bytes overflow, and faults below the first level.
case("array-of-doubles-overflows", gguf([pair("a", ARRAY, array(F64, 2**61 + 1))]))
case("array-of-bools-huge", gguf([pair("a", ARRAY, array(BOOL, 2**40))]))
case("array-inner-count-huge", gguf([pair("a", ARRAY, array(ARRAY, 1, array(U32, 2**62)))]))
case("array-inner-type-unknown", gguf([pair("a", ARRAY, array(ARRAY, 1, array(99, 0)))]))
case("array-inner-bool-of-7", gguf([pair("a", ARRAY, array(ARRAY, 1, array(BOOL, 1, b"\7")))]))
case("array-inner-string-huge", gguf([pair("a", ARRAY, array(ARRAY, 1, array(STRING, 1, u64(2**63))))]))
case("array-string-over-cap", gguf([pair("a", ARRAY, array(STRING, 1, u64(2**30 + 1)))]))
case("array-second-inner-missing", gguf([pair("a", ARRAY, array(ARRAY, 2, array(U8, 9, bytes(9))))])[:80])
case("key-cut-in-utf8", gguf([pair("é".encode()[:1], BOOL, b"\1")]))
case("key-length-beyond-the-end", gguf([u64(60000) + b"key"]))
case("string-over-cap", gguf([pair("a", STRING, u64(2**30 + 1))]))
case("value-type-max", gguf([pair("a", 2**32 - 1, b"")]))
case("pair-count-one-too-low", gguf([ARCH, pair("b", STRING, text("c" * 40))], [info("w", [2])], 8, pair_count=1))
case("tensor-count-of-30-bits", gguf([ARCH], [info("w", [2])], 8, tensor_count=2**30 + 1))
case("tensor-count-minus-one", gguf([ARCH], [info("w", [2])], 8, tensor_count=2**64 - 1))
# Descriptions of tensors.
case("tensor-twice-far-apart", gguf([], [info(n, [2], offset=32 * i) for i, n in enumerate(["w", "x", "y", "w"])], 128))
case("tensor-name-length-huge", gguf([], [u64(2**50) + b"w"]))
case("tensor-name-with-control-characters", gguf([], [info("w\x1b[2J\x9b", [8], 99)], 32))
case("tensor-without-data", gguf([], [info("w", [2])]))
case("tensor-one-byte-short", gguf([], [info("w", [2])], 7))
case("tensor-scalar-of-q4_0", gguf([], [info("w", [], 2)], 32))
case("tensor-empty-rows-of-q4_k", gguf([], [info("w", [128, 0], 12)], 0))
case("tensor-negative-dimension", gguf([], [info("w", [2**64 - 2])], 64))
case("tensor-product-of-2-to-the-64", gguf([], [info("w", [2**16] * 4)], 64))
case("tensor-of-4-huge-dimensions", gguf([], [info("w", [2**64 - 32] * 4, 2)], 64))
case("tensor-offset-negative", gguf([], [info("w", [2], offset=2**64 - 4096)], 64))
case("tensor-offset-one-off", gguf([], [info("w", [2], offset=33)], 64))
case("tensor-offset-at-the-end", gguf([], [info("w", [2], offset=64)], 64))
case("tensors-overlap-by-one-block", gguf([], [info("v", [64], 2), info("w", [32], 2, 32)], 64))
case("tensors-nested", gguf([], [info("v", [64]), info("w", [8], offset=64)], 256))
for name, kind in [
    ("q8_1", 9), ("iq2_xs", 17), ("iq3_xxs", 18), ("iq1_s", 19), ("iq3_s", 21), ("iq2_s", 22), ("i32", 26), ("i64", 27), ("iq1_m", 29),
    ("tq1_0", 34), ("tq2_0", 35), ("q4_0_8_8", 33), ("iq4_nl_4_4", 36),
]:
    case(f"type-{name}", gguf([], [info("blk.0.attn_q.weight", [256], kind)], 2048))
# A file that was never split, and says otherwise.
for name, pairs in {
    "no-5": [("split.no", 5)], "no-negative": [("split.no", -1)], "count-negative": [("split.count", -2)],
    "total-7": [("split.no", 0), ("split.count", 1), ("split.tensors.count", 7)],
}.items():
    case(f"split-{name}", gguf([pair(key, 5, struct.pack("<i", value)) for key, value in pairs], [info("w", [2])], 8))
case("split-count-a-string", gguf([pair("split.count", STRING, text("1"))], [info("w", [2])], 8))


def split(name, parts):
    for number, (no, count, total, infos) in enumerate(parts, 1):
        pairs = [pair(k, 2, struct.pack("<H", v)) for k, v in [("split.no", no), ("split.count", count)] if v is not None]
        if total is not None:
            pairs.append(pair("split.tensors.count", 5, u32(total)))
        directory = out / "directories" / name
        directory.mkdir(exist_ok=True)
        (directory / f"m-{number:05}-of-00002.gguf").write_bytes(gguf(pairs, infos, 32))


v, w = [info("v", [8])], [info("w", [8])]
split("split-part-missing", [(0, 2, 2, v)])
split("split-parts-swapped", [(1, 2, 2, v), (0, 2, 2, w)])
split("split-count-differs", [(0, 2, 2, v), (1, 3, 2, w)])
split("split-without-keys", [(None, None, None, v), (None, None, None, w)])
split("split-total-differs", [(0, 2, 3, v), (1, 2, 2, w)])
split("split-total-wrong", [(0, 2, 5, v), (1, 2, 5, w)])
split("split-tensor-twice", [(0, 2, 2, v), (1, 2, 2, v)])
split("split-parts-in-unnumbered-file", [(0, 2, 2, v)])
(out / "directories/split-parts-in-unnumbered-file/m-00001-of-00002.gguf").rename(
    out / "directories/split-parts-in-unnumbered-file/model.gguf")

split("split-without-total", [(0, 2, None, v), (1, 2, None, w)])
split("split-second-not-gguf", [(0, 2, 2, v), (1, 2, 2, w)])
(out / "directories/split-second-not-gguf/m-00002-of-00002.gguf").write_bytes(b"<!DOCTYPE html>")
split("split-second-empty", [(0, 2, 2, v), (1, 2, 2, w)])
(out / "directories/split-second-empty/m-00002-of-00002.gguf").write_bytes(b"")
split("split-second-cut", [(0, 2, 2, v), (1, 2, 2, w)])
(out / "directories/split-second-cut/m-00002-of-00002.gguf").write_bytes(gguf([pair("split.no", 2, b"\1\0")])[:40])
split("split-parts-of-two-models", [(0, 2, 2, v), (1, 2, 2, w)])
for number, name, tensors in [(0, "one", v), (1, "another", w)]:
    keys = [pair(k, 2, struct.pack("<H", x)) for k, x in [("split.no", number), ("split.count", 2), ("split.tensors.count", 2)]]
    path = out / f"directories/split-parts-of-two-models/m-0000{number + 1}-of-00002.gguf"
    path.write_bytes(gguf(keys + [pair("general.name", STRING, text(name))], tensors, 32))

# ---- safetensors

(out / "safetensors/config.json").write_text('{"model_type": "llama"}\n')


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header, data=0, length=None):
    header = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return u64(len(header) if length is None else length) + header + bytes(data)


def st(name, *args, **kwargs):
    (out / "safetensors" / f"{name}.safetensors").write_bytes(safetensors(*args, **kwargs))


one = {"w": entry([2], 0, 8)}
(out / "safetensors/empty.safetensors").write_bytes(b"")
(out / "safetensors/cut-in-length.safetensors").write_bytes(b"\x40\0\0")
(out / "safetensors/cut-in-header.safetensors").write_bytes(safetensors(one)[:30])
st("cut-in-data", one, 7)
st("header-length-huge", one, 8, length=2**64 - 1)
st("header-length-over-cap", one, 8, length=100_000_001)
st("header-length-zero", "", 8)
st("header-not-an-object", "[1, 2]", 8)
st("header-with-leading-space", " {}")
st("header-not-json", "{hello}", 8)
st("header-not-closed", '{"w": {"dtype": "F32"', 8)
st("header-with-garbage-behind", json.dumps(one) + " x", 8)
st("header-not-utf8", b'{"\xff\xfe": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8)
st("header-far-too-deep", '{"w": {"dtype": "F32", "data_offsets": [0, 8], "shape": ' + "[" * 5000 + "]" * 5000 + "}}", 8)
st("tensor-twice", '{"w": %s, "w": %s}' % ((json.dumps(one["w"]),) * 2), 8)
st("field-twice", '{"w": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}', 8)
st("metadata-twice", '{"__metadata__": {}, "__metadata__": {}}')
st("metadata-key-twice", '{"__metadata__": {"a": "1", "a": "2"}}')
st("metadata-not-text", '{"__metadata__": {"a": 1}}')
st("dtype-missing", '{"w": {"shape": [2], "data_offsets": [0, 8]}}', 8)
st("dtype-a-number", '{"w": {"dtype": 4, "shape": [2], "data_offsets": [0, 8]}}', 8)
st("entry-null", '{"w": null}')
st("shape-negative", {"w": entry([-2], 0, 8)}, 8)
st("shape-fractional", {"w": entry([2.5], 0, 10)}, 10)
st("shape-of-9", {"w": entry([1] * 9, 0, 4)}, 4)
st("shape-of-many", {"w": entry([1] * 20000, 0, 4)}, 4)
st("shape-overflows", {"w": entry([2**40, 2**40], 0, 8)}, 8)
st("shape-empty-but-endless", {"w": entry([0, 2**40, 2**40], 0, 0)})
st("shape-with-2-to-the-64", {"w": {"dtype": "F32", "shape": [2**64], "data_offsets": [0, 8]}}, 8)
st("offsets-backwards", {"w": entry([2], 8, 0)}, 8)
st("offsets-of-3", {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 16]}}, 8)
st("offsets-beyond-the-end", {"w": entry([2], 2**63, 2**63 + 8)}, 8)
st("size-differs", {"w": entry([3], 0, 8)}, 8)
st("tensors-overlap", {"v": entry([2], 0, 8), "w": entry([2], 4, 12)}, 12)
st("tensors-share-bytes", {"v": entry([2], 0, 8), "w": entry([2], 0, 8)}, 8)
st("gap-between-tensors", {"v": entry([2], 0, 8), "w": entry([2], 12, 20)}, 20)
st("gap-at-the-start", {"w": entry([2], 8, 16)}, 16)
st("bytes-behind-the-last", one, 11)
st("f4-of-odd-length", {"w": entry([3], 0, 2, "F4")}, 2)
for dtype, size in [("F8_E4M3", 2), ("F8_E5M2", 2), ("F4", 1), ("F64", 16), ("C64", 16), ("F2_E1", 1)]:
    st(f"dtype-{dtype.lower()}", {"w": entry([2], 0, size, dtype)}, size)
st("name-with-control-characters", '{"a\\u001b[2J\\n": {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [0, 2]}}', 2)
st("bitsandbytes-weight", {"l.weight": entry([8, 1], 0, 8, "U8"), "l.weight.absmax": entry([1], 8, 12)}, 12)
st("gptq-weight", {"l.qweight": entry([2], 0, 8, "I32")}, 8)
st("gpt-oss-blocks", {"l.down_proj_blocks": entry([8], 0, 8, "U8")}, 8)
st("mlx-without-config", {"l.weight": entry([1, 4], 0, 16, "U32"), "l.scales": entry([1, 1], 16, 20), "l.biases": entry([1, 1], 20, 24)}, 24)
for name, part in [
    ("dtype-null", '"dtype": null, "shape": [2], "data_offsets": [0, 8]'),
    ("dtype-lower-case", '"dtype": "f32", "shape": [2], "data_offsets": [0, 8]'),
    ("dtype-empty", '"dtype": "", "shape": [2], "data_offsets": [0, 8]'),
    ("dtype-a-list", '"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]'),
    ("shape-null", '"dtype": "F32", "shape": null, "data_offsets": [0, 8]'),
    ("shape-a-number", '"dtype": "F32", "shape": 2, "data_offsets": [0, 8]'),
    ("shape-of-text", '"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]'),
    ("shape-nested", '"dtype": "F32", "shape": [[2]], "data_offsets": [0, 8]'),
    ("shape-nan", '"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]'),
    ("shape-infinite", '"dtype": "F32", "shape": [1e999], "data_offsets": [0, 8]'),
    ("shape-a-float", '"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]'),
    ("shape-missing", '"dtype": "F32", "data_offsets": [0, 8]'),
    ("offsets-missing", '"dtype": "F32", "shape": [2]'),
    ("offsets-null", '"dtype": "F32", "shape": [2], "data_offsets": null'),
    ("offsets-negative", '"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]'),
    ("offsets-of-1", '"dtype": "F32", "shape": [2], "data_offsets": [8]'),
    ("offsets-of-text", '"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]'),
    ("offsets-2-to-the-64", '"dtype": "F32", "shape": [2], "data_offsets": [0, 18446744073709551616]'),
    ("offsets-twice", '"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "data_offsets": [0, 4]'),
]:
    st(name, '{"w": {%s}}' % part, 8)
for name, value in [("a-list", "[1]"), ("a-number", "1"), ("text", '"F32"')]:
    st(f"entry-{name}", '{"w": %s}' % value, 8)
st("entry-far-too-deep", '{"w": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}", 8)
st("metadata-far-too-deep", '{"__metadata__": {"a": ' + "[" * 300 + "]" * 300 + "}}")
st("metadata-a-list", '{"__metadata__": ["a"]}')
st("header-with-a-comma-behind", '{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},}', 8)
st("header-with-comments", '{/* w */}')
st("header-with-a-byte-order-mark", b"\xef\xbb\xbf{}")
st("header-with-half-a-surrogate", '{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', 8)
st("header-with-a-raw-control-character", '{"a\x01": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', 8)
st("header-one-byte-short", one, 8, length=len(json.dumps(one)) - 1)
st("header-one-byte-long", one, 8, length=len(json.dumps(one)) + 1)
st("name-twice-by-escape", '{"w": %s, "\\u0077": %s}' % ((json.dumps(one["w"]),) * 2), 8)
st("f6-of-odd-length", {"w": entry([3], 0, 2, "F6_E2M3")}, 2)
st("one-tensor-inside-another", {"v": entry([8], 0, 32), "w": entry([2], 8, 16)}, 32)
st("empty-tensor-beyond-the-end", {"v": entry([2], 0, 8), "w": entry([0], 80, 80)}, 8)

# ---- directories


def directory(name, config='{"model_type": "llama"}', **files):
    path = out / "directories" / name
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for file, data in files.items():
        file = file.replace("__", ".").replace("_of_", "-of-").replace("_0", "-0")
        data = json.dumps(data).encode() if isinstance(data, (dict, list)) else data
        (path / file).write_bytes(data.encode() if isinstance(data, str) else data)


good = safetensors(one, 8)
other = safetensors({"v": entry([2], 0, 8)}, 8)


def index(**weight_map):
    return {"weight_map": weight_map}


INDEX = "model__safetensors__index__json"
directory("config-missing", None, model__safetensors=good)
directory("config-not-json", "{", model__safetensors=good)
directory("config-not-an-object", "[]", model__safetensors=good)
directory("config-far-too-deep", "[" * 5000, model__safetensors=good)
for name, value in [("nan", "NaN"), ("infinite", "-Infinity"), ("overflowing", "1e999"), ("octal", "010"), ("hexadecimal", "0x10")]:
    directory(f"config-number-{name}", '{"model_type": "llama", "rms_norm_eps": %s}' % value, model__safetensors=good)
directory("config-empty", "", model__safetensors=good)
directory("config-cut", '{"model_type": "lla', model__safetensors=good)
directory("config-key-twice", '{"model_type": "llama", "hidden_size": 8, "hidden_size": 16}', model__safetensors=good)
directory("config-key-twice-inside", '{"model_type": "llama", "rope_scaling": {"factor": 8, "factor": 2}}', model__safetensors=good)
directory("config-with-a-comma-behind", '{"model_type": "llama",}', model__safetensors=good)
directory("index-map-a-list", model__safetensors__index__json={"weight_map": ["w"]}, model__safetensors=good)
directory("index-map-nested", model__safetensors__index__json={"weight_map": {"w": {"file": "model.safetensors"}}}, model__safetensors=good)
directory("index-map-of-numbers", model__safetensors__index__json={"weight_map": {"w": 1}}, model__safetensors=good)
directory("index-far-too-deep", model__safetensors__index__json='{"weight_map": ' + "[" * 3000 + "]" * 3000 + "}", model__safetensors=good)
directory("index-with-control-characters", model__safetensors__index__json=index(w="a\x1b[2J.bin"), model__safetensors=good)
directory("index-shard-empty", model__safetensors__index__json=index(w="model.safetensors", v="x.safetensors"), model__safetensors=good, x__safetensors=b"")
directory("index-shard-not-safetensors", model__safetensors__index__json=index(w="x.safetensors"), x__safetensors=b"PK\3\4" + bytes(60))
directory("index-shard-cut", model__safetensors__index__json=index(w="model.safetensors"), model__safetensors=good[:-1])
directory("weights-empty", model__safetensors=b"")
directory("config-not-utf8", None, config__json=b'{"a": "\xff"}', model__safetensors=good)
directory("weights-missing")
directory("weights-of-pytorch", pytorch_model__bin=b"PK\3\4")
directory("weights-of-mlx-npz", weights__npz=b"PK\3\4")
directory("weights-of-another-name", consolidated__safetensors=good)
directory("several-gguf", None, a__gguf=gguf(), b__gguf=gguf())
directory("nothing-known", None, notes__txt="hello\n")
directory("index-not-json", model__safetensors__index__json="weight_map")
directory("index-without-map", model__safetensors__index__json={"metadata": {}})
directory("index-empty", model__safetensors__index__json=index())
directory("index-tensor-twice", model__safetensors__index__json='{"weight_map": {"w": "model.safetensors", "w": "model.safetensors"}}', model__safetensors=good)
for name, file in [
    ("upwards", "../model.safetensors"), ("absolute", "/etc/model.safetensors"), ("subdirectory", "a/model.safetensors"),
    ("backslash", "..\\model.safetensors"), ("dots", ".."), ("not-safetensors", "config.json"), ("empty", ""), ("null", "a\0.safetensors"),
]:
    directory(f"index-path-{name}", model__safetensors__index__json=index(w=file), model__safetensors=good)
directory("index-shard-missing", model__safetensors__index__json=index(w="model.safetensors", v="x.safetensors"), model__safetensors=good)
directory("tensor-in-two-shards", model__safetensors__index__json=index(w="a.safetensors", v="b.safetensors"), a__safetensors=good,
          b__safetensors=safetensors({"v": entry([2], 0, 8), "w": entry([2], 8, 16)}, 16))

for method in ["awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes", "mxfp4", "quanto"]:
    block = {"quant_method": method, "bits": 4, "group_size": 128}
    directory(f"quantised-{method}", {"quantization_config": block}, model__safetensors=good)
directory("quantised-in-text-config", {"text_config": {"quantization_config": {"quant_method": "awq"}}}, model__safetensors=good)

W, S = entry([1, 8], 0, 32, "U32"), entry([1, 1], 32, 34, "F16")
B = entry([1, 1], 34, 36, "F16")


def mlx(name, block, size=36, **entries):
    arrays = {"l.weight": W, "l.scales": S, "l.biases": B}
    for part, value in entries.items():
        arrays[f"l.{part}"] = value
        if value is None:
            del arrays[f"l.{part}"]
    directory(f"mlx-{name}", {"quantization": block}, model__safetensors=safetensors(arrays, size))


for mode in ["mxfp4", "mxfp8", "nvfp4"]:
    mlx(f"mode-{mode}", {"bits": 4, "group_size": 32, "mode": mode})
mlx("mode-in-override", {"bits": 4, "group_size": 64, "l": {"bits": 4, "group_size": 32, "mode": "mxfp4"}})
mlx("mode-with-control-characters", {"bits": 4, "group_size": 64, "mode": "\x1b[2J\x9b" + "a" * 5000})
mlx("block-of-control-characters", "\x7f\x9b" * 3000)
mlx("bits-7", {"bits": 7, "group_size": 64})
mlx("bits-a-string", {"bits": "four", "group_size": 64})
mlx("bits-do-not-fit", {"bits": 8, "group_size": 64})
mlx("group-63", {"bits": 4, "group_size": 63})
mlx("group-huge", {"bits": 4, "group_size": 2**40})
mlx("group-does-not-fit", {"bits": 4, "group_size": 32})
mlx("block-a-number", 4)
mlx("not-quantised-by-override", {"bits": 4, "group_size": 64, "l": False})
mlx("biases-missing", {"bits": 4, "group_size": 64}, 34, biases=None)
mlx("biases-differ", {"bits": 4, "group_size": 64}, 38, biases=entry([1, 2], 34, 38, "F16"))
mlx("scales-of-u8", {"bits": 4, "group_size": 64}, 35, scales=entry([1, 1], 32, 33, "U8"), biases=entry([1, 1], 33, 35, "F16"))
mlx("scales-missing", {"bits": 4, "group_size": 64}, 34, scales=None, biases=entry([1, 1], 32, 34, "F16"))
mlx("rows-differ", {"bits": 4, "group_size": 64}, 40, scales=entry([2, 1], 32, 36, "F16"), biases=entry([2, 1], 36, 40, "F16"))
mlx("scalar", {"bits": 4, "group_size": 64}, 8, weight=entry([], 0, 4, "U32"), scales=entry([], 4, 6, "F16"), biases=entry([], 6, 8, "F16"))

# ---- files that are something else

FOREIGN = {
    "empty.gguf": b"", "short.gguf": b"GG", "ggml.bin": b"lmgg" + bytes(60), "ggjt.bin": b"tjgg\3\0\0\0" + bytes(60),
    "big-endian-magic.gguf": b"FUGG" + bytes(60), "pytorch_model.bin": b"PK\3\4" + bytes(60), "weights.npz": b"PK\3\4" + bytes(60),
    "old.pt": b"\x80\x02\x8a\x0a" + bytes(60), "array.npy": b"\x93NUMPY\1\0", "keras.h5": b"\x89HDF\r\n\x1a\n" + bytes(60),
    "model.gguf.gz": b"\x1f\x8b\x08\0" + bytes(60), "page.gguf": b"<!DOCTYPE html><title>404</title>\n",
    "pointer.gguf": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "control.gguf": b"\x1b[2J",
}
for name, data in FOREIGN.items():
    (out / "foreign" / name).write_bytes(data)
