"""Writes an MLX folder of a public model's shapes with random weights: large enough for memory and speed to matter.

    python tools/random_mlx.py OUT [--bits 4] [--group-size 64] [--layers 28]

The shapes are Qwen3-0.6B's, the tokenizer is the public vocabulary of models/tokenizers; what mlx_lm.load reads. Codes are random
bits under small scales, in f16: nothing is quantised. Needs the `gguf` and `numpy` packages.
"""

import argparse
import json
import lzma
import pathlib
import struct
import tempfile

import gguf
import numpy as np

from random_gguf import SHAPES, VOCABULARIES

SHAPE = SHAPES["qwen3-0.6b"]
# How Qwen cuts a text into words.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_fields(vocabulary):
    """The vocabulary file's own tokenizer fields, by name."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(lzma.decompress((VOCABULARIES / f"ggml-vocab-{vocabulary}.gguf.xz").read_bytes()))
        file.flush()
        fields = gguf.GGUFReader(file.name).fields
    return {name: field for name, field in fields.items() if name.startswith("tokenizer.")}


def config(vocabulary, layers, bits, group_size):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": SHAPE["hidden"],
        "intermediate_size": SHAPE["feed_forward"],
        "num_hidden_layers": layers,
        "num_attention_heads": SHAPE["heads"],
        "num_key_value_heads": SHAPE["kv_heads"],
        "head_dim": SHAPE["head_dim"],
        "max_position_embeddings": SHAPE["context"],
        "rope_theta": SHAPE["rope_base"],
        "rms_norm_eps": SHAPE["eps"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "vocab_size": vocabulary,
        "eos_token_id": vocabulary - 1,
        "torch_dtype": "float16",
        "quantization": {"bits": bits, "group_size": group_size},
    }


def tokenizer(fields):
    """A tokenizer.json: byte-level BPE over the vocabulary, whose control tokens are never cut."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    special = [
        {"id": id, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for id, (token, kind) in enumerate(zip(tokens, kinds))
        if kind == 3
    ]
    special_ids = {token["id"] for token in special}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens) if id not in special_ids},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def tensors(vocabulary, layers, bits, group_size):
    """Names, types and arrays, one after the other."""
    rng = np.random.default_rng(0)
    # A weight is about 0.02, its codes lie around the middle.
    scale = np.float16(0.07 / (1 << bits))
    bias = np.float16(-0.035)

    def matrix(name, rows, columns):
        yield f"{name}.weight", "U32", rng.integers(0, 1 << 32, (rows, columns * bits // 32), dtype=np.uint32)
        groups = (rows, columns // group_size)
        yield f"{name}.scales", "F16", np.full(groups, scale)
        yield f"{name}.biases", "F16", np.full(groups, bias)

    def norm(name, width):
        yield f"{name}.weight", "F16", np.ones(width, np.float16)

    hidden, feed_forward, head_dim = SHAPE["hidden"], SHAPE["feed_forward"], SHAPE["head_dim"]
    yield from matrix("model.embed_tokens", vocabulary, hidden)
    yield from norm("model.norm", hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield from norm(name + "input_layernorm", hidden)
        yield from norm(name + "post_attention_layernorm", hidden)
        yield from norm(name + "self_attn.q_norm", head_dim)
        yield from norm(name + "self_attn.k_norm", head_dim)
        yield from matrix(name + "self_attn.q_proj", SHAPE["heads"] * head_dim, hidden)
        yield from matrix(name + "self_attn.k_proj", SHAPE["kv_heads"] * head_dim, hidden)
        yield from matrix(name + "self_attn.v_proj", SHAPE["kv_heads"] * head_dim, hidden)
        yield from matrix(name + "self_attn.o_proj", hidden, SHAPE["heads"] * head_dim)
        yield from matrix(name + "mlp.gate_proj", feed_forward, hidden)
        yield from matrix(name + "mlp.up_proj", feed_forward, hidden)
        yield from matrix(name + "mlp.down_proj", hidden, feed_forward)


def write_safetensors(path, entries):
    """The file whole or not at all."""
    entries = list(entries)
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, array in entries:
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, array in entries:
            file.write(array.tobytes())
    part.replace(path)


def write(folder, bits, group_size, layers):
    folder.mkdir(parents=True, exist_ok=True)
    fields = {name: field.contents() for name, field in tokenizer_fields(SHAPE["vocabulary"]).items()}
    vocabulary = len(fields["tokenizer.ggml.tokens"])
    (folder / "config.json").write_text(json.dumps(config(vocabulary, layers, bits, group_size), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(fields), ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    write_safetensors(folder / "model.safetensors", tensors(vocabulary, layers, bits, group_size))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bits", type=int, default=4, choices=(2, 3, 4, 5, 6, 8))
    parser.add_argument("--group-size", type=int, default=64, choices=(32, 64, 128))
    parser.add_argument("--layers", type=int, default=SHAPE["layers"], help="fewer layers than the shape has")
    options = parser.parse_args()
    write(options.out, options.bits, options.group_size, options.layers)


if __name__ == "__main__":
    main()
