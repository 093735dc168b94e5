"""Writes a GGUF file of Qwen3-0.6B's shapes with random weights: large enough for memory and speed to matter.

    python tools/random_gguf.py OUT.gguf [--type Q4_0] [--layers 28]

Types: F16, Q8_0, Q4_0, Q6_K, Q4_K. The tokenizer is the public Qwen2 vocabulary of models/tokenizers (151,936 ids, real
merges), so that it costs what a real one costs. Blocks are random bytes under small scales: nothing is quantised,
and a file takes seconds. Needs the `gguf` and `numpy` packages.
"""

import argparse
import lzma
import pathlib
import tempfile

import gguf
import numpy as np

VOCABULARY = pathlib.Path(__file__).parent.parent / "models/tokenizers/ggml-vocab-qwen2.gguf.xz"
HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 1024, 3072, 16, 8, 128, 40960

# Offsets of the f16 scales in a block, and what they are: a weight of such a model is about 0.02.
SCALES = {
    "Q4_0": {0: 0.004},
    "Q8_0": {0: 0.0003},
    "Q6_K": {208: 0.00002},
    "Q4_K": {0: 0.0001, 2: 0.0008},
}


def blocks(rng, rows, columns, name):
    """Random stored rows of a type."""
    if name == "F16":
        return rng.normal(0, 0.02, (rows, columns)).astype(np.float16)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for offset, scale in SCALES[name].items():
        data[:, :, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return data.reshape(rows, -1)


def copy_tokenizer(writer):
    """The vocabulary file's own tokenizer fields; returns the number of tokens."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(lzma.decompress(VOCABULARY.read_bytes()))
        file.flush()
        reader = gguf.GGUFReader(file.name)
        for name, field in reader.fields.items():
            if name.startswith("tokenizer."):
                kind, *inner = field.types
                writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
        return len(reader.fields["tokenizer.ggml.tokens"].data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", default="Q4_0", choices=["F16", *SCALES])
    parser.add_argument("--layers", type=int, default=28)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(arguments.out, "qwen3")
    writer.add_name("Random Qwen3")
    writer.add_block_count(arguments.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    vocabulary = copy_tokenizer(writer)

    def matrix(name, rows, columns):
        raw = None if arguments.type == "F16" else gguf.GGMLQuantizationType[arguments.type]
        writer.add_tensor(name, blocks(rng, rows, columns, arguments.type), raw_dtype=raw)

    def norm(name, width):
        writer.add_tensor(name, np.ones(width, np.float32))

    matrix("token_embd.weight", vocabulary, HIDDEN)
    norm("output_norm.weight", HIDDEN)
    for layer in range(arguments.layers):
        name = f"blk.{layer}."
        norm(name + "attn_norm.weight", HIDDEN)
        norm(name + "attn_q_norm.weight", HEAD_DIM)
        norm(name + "attn_k_norm.weight", HEAD_DIM)
        norm(name + "ffn_norm.weight", HIDDEN)
        matrix(name + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(name + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(name + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(name + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(name + "ffn_gate.weight", FEED_FORWARD, HIDDEN)
        matrix(name + "ffn_up.weight", FEED_FORWARD, HIDDEN)
        matrix(name + "ffn_down.weight", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
