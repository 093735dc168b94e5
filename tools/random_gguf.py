"""Writes a GGUF file of a public model's shapes with random weights: large enough for memory and speed to matter.

    python tools/random_gguf.py OUT.gguf [--shape qwen3-0.6b] [--type Q4_0] [--layers 28]

The tokenizer is the model's public vocabulary of models/tokenizers (151,936 ids, real merges), so that it costs what a real
one costs. Blocks are random bytes under small scales and repeat after 16 MB: nothing is quantised, and a file takes as long
as it takes to write. Q4_K_M mixes Q4_K and Q6_K as llama.cpp does. Needs the `numpy` package.
"""

import argparse
import lzma
import math
import pathlib
import struct

import numpy as np

VOCABULARIES = pathlib.Path(__file__).parent.parent / "models/tokenizers"
ALIGNMENT = 32

SHAPES = {
    "qwen3-0.6b": dict(
        architecture="qwen3", vocabulary="qwen2", layers=28, hidden=1024, feed_forward=3072, heads=16, kv_heads=8,
        head_dim=128, context=40960, rope_base=1e6, eps=1e-6,
    ),
    "llama-3.2-1b": dict(
        architecture="llama", vocabulary="llama-bpe", layers=16, hidden=2048, feed_forward=8192, heads=32, kv_heads=8,
        head_dim=64, context=131072, rope_base=5e5, eps=1e-5,
    ),
    "qwen3-30b-a3b": dict(
        architecture="qwen3moe", vocabulary="qwen2", layers=48, hidden=2048, feed_forward=6144, heads=32, kv_heads=4,
        head_dim=128, context=40960, rope_base=1e6, eps=1e-6, has_head=True, experts=128, experts_used=8, expert_width=768,
    ),
    "llama-3.1-8b": dict(
        architecture="llama", vocabulary="llama-bpe", layers=32, hidden=4096, feed_forward=14336, heads=32, kv_heads=8,
        head_dim=128, context=131072, rope_base=5e5, eps=1e-5, has_head=True,
    ),
}  # fmt: skip

# By type: its number in a file, elements of a block, bytes of a block, and the block's f16 scales by their offset. A weight of such a
# model is about 0.02.
TYPES = {
    "F32": (0, 1, 4, {}),
    "F16": (1, 1, 2, {}),
    "BF16": (30, 1, 2, {}),
    "Q8_0": (8, 32, 34, {0: 0.0003}),
    "Q4_0": (2, 32, 18, {0: 0.004}),
    "Q4_1": (3, 32, 20, {0: 0.004, 2: -0.03}),
    "Q5_0": (6, 32, 22, {0: 0.002}),
    "Q5_1": (7, 32, 24, {0: 0.002, 2: -0.03}),
    "Q2_K": (10, 256, 84, {80: 0.001, 82: 0.0015}),
    "Q3_K": (11, 256, 110, {108: 0.0004}),
    "Q4_K": (12, 256, 144, {0: 0.0001, 2: 0.0008}),
    "Q5_K": (13, 256, 176, {0: 0.00005, 2: 0.0008}),
    "Q6_K": (14, 256, 210, {208: 0.00002}),
    "IQ4_NL": (20, 32, 18, {0: 0.0004}),
    "IQ4_XS": (23, 256, 136, {0: 0.00002}),
}


class Blocks:
    """Random blocks of a type. They repeat after a prime number of blocks, so that no two rows of a matrix are alike."""

    PERIODS = {1: 8_388_593, 2: 8_388_593, 4: 4_194_301}

    def __init__(self, name):
        rng = np.random.default_rng(0)
        _, elements, size, scales = TYPES[name]
        if elements == 1:
            values = rng.standard_normal(self.PERIODS[size], np.float32) * np.float32(0.02)
            if name == "BF16":
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
            blocks = values.astype(np.float16) if name == "F16" else values
        else:
            blocks = rng.integers(0, 256, (prime_below(16_777_216 // size), size), dtype=np.uint8)
            for offset, scale in scales.items():
                blocks[:, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        self.data = memoryview(blocks).cast("B")
        self.next = 0

    def write(self, file, size_bytes):
        """Writes so many bytes, from where the tensor before ended."""
        while size_bytes > 0:
            piece = self.data[self.next : self.next + size_bytes]
            file.write(piece)
            size_bytes -= len(piece)
            self.next = (self.next + len(piece)) % len(self.data)


def prime_below(number):
    """The largest prime of at most `number`."""
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number -= 1
    return number


def stored_type(kind, name, layer, layers, head):
    """The type of one matrix; llama.cpp's Q4_K_M spends two more bits where they matter most."""
    if kind != "Q4_K_M":
        return kind
    more_bits = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    generous = name == head or (name in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits)
    return "Q6_K" if generous else "Q4_K"


def text(value):
    """A string as GGUF stores it."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(name, value):
    """A field of the header: a string, a whole number of 32 bits, or an f32."""
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    kind, code = (6, "<If") if isinstance(value, float) else (4, "<II")
    return text(name) + struct.pack(code, kind, value)


def tokenizer_fields(vocabulary):
    """The vocabulary file's own tokenizer fields as they are stored, and the number of tokens."""
    data = lzma.decompress((VOCABULARIES / f"ggml-vocab-{vocabulary}.gguf.xz").read_bytes())
    widths = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    number = struct.Struct("<Q")
    count, at, fields, tokens = number.unpack_from(data, 16)[0], 24, [], 0

    def skip(kind, at):
        if kind == 8:
            return at + 8 + number.unpack_from(data, at)[0]
        if kind != 9:
            return at + widths[kind]
        inner, elements = struct.unpack_from("<IQ", data, at)
        at += 12
        if inner in widths:
            return at + elements * widths[inner]
        for _ in range(elements):
            at = skip(inner, at)
        return at

    for _ in range(count):
        begin = at
        at = skip(8, at)
        name = data[begin + 8 : at]
        (kind,) = struct.unpack_from("<I", data, at)
        if name == b"tokenizer.ggml.tokens":
            (tokens,) = number.unpack_from(data, at + 8)
        at = skip(kind, at + 4)
        if name.startswith(b"tokenizer."):
            fields.append(data[begin:at])
    return fields, tokens


def header_fields(shape_name, layers):
    """All fields of the header as they are stored, and the number of tokens."""
    shape = SHAPES[shape_name]
    architecture = shape["architecture"]
    tokenizer, vocabulary = tokenizer_fields(shape["vocabulary"])
    described = {
        "block_count": layers,
        "context_length": shape["context"],
        "embedding_length": shape["hidden"],
        "feed_forward_length": shape["feed_forward"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
        "attention.layer_norm_rms_epsilon": shape["eps"],
        "rope.freq_base": shape["rope_base"],
        "rope.dimension_count": shape["head_dim"],
    }
    if "experts" in shape:
        described["expert_count"] = shape["experts"]
        described["expert_used_count"] = shape["experts_used"]
        described["expert_feed_forward_length"] = shape["expert_width"]
    if architecture == "llama":
        described["vocab_size"] = vocabulary
    fields = [field("general.architecture", architecture), field("general.name", f"Random {shape_name}")]
    fields += [field(f"{architecture}.{name}", value) for name, value in described.items()]
    return fields + tokenizer, vocabulary


def tensors(shape_name, kind, layers, vocabulary):
    """Name, dimensions (the innermost first), type and values of each tensor; without values they are random."""
    shape = SHAPES[shape_name]
    hidden, feed_forward, head_dim = shape["hidden"], shape["feed_forward"], shape["head_dim"]
    queries, keys = shape["heads"] * head_dim, shape["kv_heads"] * head_dim
    head = "output" if shape.get("has_head") else "token_embd"
    experts, expert_width = shape.get("experts"), shape.get("expert_width")

    def matrix(name, rows, columns, layer=0, of_experts=()):
        return name, (columns, rows, *of_experts), stored_type(kind, name.split(".")[-2], layer, layers, head), None

    def norm(name, width):
        return name, (width,), "F32", np.ones(width, np.float32)

    yield matrix("token_embd.weight", vocabulary, hidden)
    if head == "output":
        yield matrix("output.weight", vocabulary, hidden)
    yield norm("output_norm.weight", hidden)
    for layer in range(layers):
        name = f"blk.{layer}."
        yield norm(name + "attn_norm.weight", hidden)
        if shape["architecture"] in ("qwen3", "qwen3moe"):
            yield norm(name + "attn_q_norm.weight", head_dim)
            yield norm(name + "attn_k_norm.weight", head_dim)
        yield norm(name + "ffn_norm.weight", hidden)
        yield matrix(name + "attn_q.weight", queries, hidden, layer)
        yield matrix(name + "attn_k.weight", keys, hidden, layer)
        yield matrix(name + "attn_v.weight", keys, hidden, layer)
        yield matrix(name + "attn_output.weight", hidden, queries, layer)
        if experts:
            router = np.random.default_rng(layer).standard_normal((experts, hidden), np.float32) * np.float32(0.02)
            yield name + "ffn_gate_inp.weight", (hidden, experts), "F32", router
            yield matrix(name + "ffn_gate_exps.weight", expert_width, hidden, layer, (experts,))
            yield matrix(name + "ffn_up_exps.weight", expert_width, hidden, layer, (experts,))
            yield matrix(name + "ffn_down_exps.weight", hidden, expert_width, layer, (experts,))
            continue
        yield matrix(name + "ffn_gate.weight", feed_forward, hidden, layer)
        yield matrix(name + "ffn_up.weight", feed_forward, hidden, layer)
        yield matrix(name + "ffn_down.weight", hidden, feed_forward, layer)


def write(path, shape_name, kind, layers=None):
    layers = layers or SHAPES[shape_name]["layers"]
    fields, vocabulary = header_fields(shape_name, layers)
    all_tensors = list(tensors(shape_name, kind, layers, vocabulary))
    sources, infos, sizes, offset = {}, [], [], 0
    for name, dimensions, stored, _ in all_tensors:
        number, elements, size, _ = TYPES[stored]
        infos.append(text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, number, offset))
        sizes.append(math.prod(dimensions) // elements * size)
        offset += sizes[-1] + -sizes[-1] % ALIGNMENT
    with open(path, "wb", buffering=0) as file:
        header = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(fields)) + b"".join(fields + infos)
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for (_, _, stored, values), size in zip(all_tensors, sizes, strict=True):
            if values is not None:
                file.write(values.tobytes())
            else:
                if stored not in sources:
                    sources[stored] = Blocks(stored)
                sources[stored].write(file, size)
            file.write(bytes(-size % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--type", default="Q4_0", choices=[*TYPES, "Q4_K_M"])
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    arguments = parser.parse_args()
    write(arguments.out, arguments.shape, arguments.type, arguments.layers)


if __name__ == "__main__":
    main()
