"""Writes a GGUF file of a public model's shapes with random weights: large enough for memory and speed to matter.

    python tools/random_gguf.py OUT.gguf [--shape qwen3-0.6b] [--type Q4_0] [--layers 28]

The tokenizer is the model's public vocabulary of models/tokenizers (151,936 ids, real merges), so that it costs what a real
one costs. Blocks are random bytes under small scales: nothing is quantised, and a file takes seconds. Q4_K_M mixes
Q4_K and Q6_K as llama.cpp does. Needs the `gguf` and `numpy` packages.
"""

import argparse
import lzma
import pathlib
import tempfile

import gguf
import numpy as np

VOCABULARIES = pathlib.Path(__file__).parent.parent / "models/tokenizers"

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

# Offsets of the f16 scales in a block, and what they are: a weight of such a model is about 0.02.
SCALES = {
    "Q8_0": {0: 0.0003},
    "Q4_0": {0: 0.004},
    "Q4_1": {0: 0.004, 2: -0.03},
    "Q5_0": {0: 0.002},
    "Q5_1": {0: 0.002, 2: -0.03},
    "Q2_K": {80: 0.001, 82: 0.0015},
    "Q3_K": {108: 0.0004},
    "Q4_K": {0: 0.0001, 2: 0.0008},
    "Q5_K": {0: 0.00005, 2: 0.0008},
    "Q6_K": {208: 0.00002},
    "IQ4_NL": {0: 0.0004},
    "IQ4_XS": {0: 0.00002},
}
TYPES = ["F32", "F16", "BF16", *SCALES, "Q4_K_M"]


class Source:
    """Random values of a type. They repeat after a prime number of them, so that large files are made as fast as they are written."""

    PERIOD = 16_777_213

    def __init__(self, name):
        rng = np.random.default_rng(0)
        if name in ("F32", "F16", "BF16"):
            values = rng.standard_normal(self.PERIOD, np.float32) * np.float32(0.02)
            if name == "BF16":
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
            self.values = values.astype(np.float16) if name == "F16" else values
        else:
            self.values = rng.integers(0, 256, self.PERIOD, dtype=np.uint8)
        self.next = 0

    def take(self, *shape):
        count = int(np.prod(shape))
        taken = np.resize(np.roll(self.values, -self.next), count)
        self.next = (self.next + count) % self.PERIOD
        return taken.reshape(shape)


def blocks(source, rows, columns, name):
    """Random stored rows of a type."""
    if name in ("F32", "F16", "BF16"):
        values = source.take(rows, columns)
        return values.view(np.uint8) if name == "BF16" else values
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = source.take(rows, columns // elements, size)
    for offset, scale in SCALES[name].items():
        data[:, :, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return data.reshape(rows, -1)


def stored_type(kind, name, layer, layers, head):
    """The type of one matrix; llama.cpp's Q4_K_M spends two more bits where they matter most."""
    if kind != "Q4_K_M":
        return kind
    more_bits = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    generous = name == head or (name in ("attn_v", "ffn_down", "ffn_down_exps") and more_bits)
    return "Q6_K" if generous else "Q4_K"


def tokenizer_fields(vocabulary):
    """The vocabulary file's own tokenizer fields, by name."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(lzma.decompress((VOCABULARIES / f"ggml-vocab-{vocabulary}.gguf.xz").read_bytes()))
        file.flush()
        fields = gguf.GGUFReader(file.name).fields
    return {name: field for name, field in fields.items() if name.startswith("tokenizer.")}


def copy_tokenizer(writer, vocabulary):
    """Writes the vocabulary file's own tokenizer fields; returns the number of tokens."""
    fields = tokenizer_fields(vocabulary)
    for name, field in fields.items():
        kind, *inner = field.types
        writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    return len(fields["tokenizer.ggml.tokens"].data)


def write(path, shape_name, kind, layers=None):
    shape = SHAPES[shape_name]
    layers = layers or shape["layers"]
    hidden, feed_forward, head_dim = shape["hidden"], shape["feed_forward"], shape["head_dim"]
    sources = {}
    head = "output" if shape.get("has_head") else "token_embd"
    writer = gguf.GGUFWriter(path, shape["architecture"])
    writer.add_name(f"Random {shape_name}")
    writer.add_block_count(layers)
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(shape["eps"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_rope_dimension_count(head_dim)
    experts = shape.get("experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(shape["experts_used"])
        writer.add_expert_feed_forward_length(shape["expert_width"])
    vocabulary = copy_tokenizer(writer, shape["vocabulary"])
    if shape["architecture"] == "llama":
        writer.add_vocab_size(vocabulary)

    def matrix(name, rows, columns, layer=0, of_experts=None):
        """A matrix, or one of each expert."""
        kind_here = stored_type(kind, name.split(".")[-2], layer, layers, head)
        if kind_here not in sources:
            sources[kind_here] = Source(kind_here)
        plain = kind_here in ("F32", "F16")
        raw = None if plain else gguf.GGMLQuantizationType[kind_here]
        data = blocks(sources[kind_here], (of_experts or 1) * rows, columns, kind_here)
        writer.add_tensor(name, data.reshape(of_experts, rows, -1) if of_experts else data, raw_dtype=raw)

    def norm(name, width):
        writer.add_tensor(name, np.ones(width, np.float32))

    matrix("token_embd.weight", vocabulary, hidden)
    if head == "output":
        matrix("output.weight", vocabulary, hidden)
    norm("output_norm.weight", hidden)
    for layer in range(layers):
        name = f"blk.{layer}."
        norm(name + "attn_norm.weight", hidden)
        if shape["architecture"] in ("qwen3", "qwen3moe"):
            norm(name + "attn_q_norm.weight", head_dim)
            norm(name + "attn_k_norm.weight", head_dim)
        norm(name + "ffn_norm.weight", hidden)
        matrix(name + "attn_q.weight", shape["heads"] * head_dim, hidden, layer)
        matrix(name + "attn_k.weight", shape["kv_heads"] * head_dim, hidden, layer)
        matrix(name + "attn_v.weight", shape["kv_heads"] * head_dim, hidden, layer)
        matrix(name + "attn_output.weight", hidden, shape["heads"] * head_dim, layer)
        if experts:
            router = np.random.default_rng(layer).standard_normal((experts, hidden), np.float32) * np.float32(0.02)
            writer.add_tensor(name + "ffn_gate_inp.weight", router)
            matrix(name + "ffn_gate_exps.weight", shape["expert_width"], hidden, layer, experts)
            matrix(name + "ffn_up_exps.weight", shape["expert_width"], hidden, layer, experts)
            matrix(name + "ffn_down_exps.weight", hidden, shape["expert_width"], layer, experts)
            continue
        matrix(name + "ffn_gate.weight", feed_forward, hidden, layer)
        matrix(name + "ffn_up.weight", feed_forward, hidden, layer)
        matrix(name + "ffn_down.weight", hidden, feed_forward, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--type", default="Q4_0", choices=TYPES)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    arguments = parser.parse_args()
    write(arguments.out, arguments.shape, arguments.type, arguments.layers)


if __name__ == "__main__":
    main()
