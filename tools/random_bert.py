"""Writes a Hugging Face folder of a BERT's shapes with random weights: large enough for speed to matter.

    python tools/random_bert.py FOLDER --shape small

The shapes are those of the BGE models v1.5 in English, whose vectors are the first row's. The vocabulary is made up, of as many words. `brasa quantize`
makes GGUF files of the folder. Needs numpy.
"""

import argparse
import json
import pathlib

import numpy as np

VOCABULARY, POSITIONS = 30522, 512
# Width, heads, layers, width of the network.
SHAPES = {"small": (384, 12, 12, 1536), "base": (768, 12, 12, 3072)}


def tensors(width, layers, inner):
    """Names and shapes in the file's order."""

    def linear(name, outputs, inputs):
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def norm(name):
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    for name, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        yield f"embeddings.{name}_embeddings.weight", (rows, width)
    yield from norm("embeddings.LayerNorm")
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from linear(f"{name}.attention.self.{part}", width, width)
        yield from linear(f"{name}.attention.output.dense", width, width)
        yield from norm(f"{name}.attention.output.LayerNorm")
        yield from linear(f"{name}.intermediate.dense", inner, width)
        yield from linear(f"{name}.output.dense", width, inner)
        yield from norm(f"{name}.output.LayerNorm")


def words():
    """As many different words as the vocabulary has, special ones first."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    made = [a + b + c + d for a in letters for b in letters for c in letters for d in letters]
    return [*special, *pieces, *made][:VOCABULARY]


def tokenizer():
    special = [{"id": id, "content": word, "special": True, "normalized": False, "single_word": False, "lstrip": False,
                "rstrip": False} for id, word in enumerate(words()[:5])]  # fmt: skip
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    cls, sep = ({"SpecialToken": {"id": word, "type_id": 0}} for word, _ in ends)
    a, b = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    end = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [cls, a, sep], "pair": [cls, a, sep, b, end],
                           "special_tokens": {word: {"id": word, "ids": [id], "tokens": [word]} for word, id in ends}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: id for id, word in enumerate(words())}},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    options = parser.parse_args()
    width, heads, layers, inner = SHAPES[options.shape]
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    }  # fmt: skip
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]",
                                  "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]",
                                  "do_lower_case": True, "model_max_length": POSITIONS},
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_cls_token": True,
                                  "pooling_mode_mean_tokens": False},
    }  # fmt: skip
    (options.folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (options.folder / name).write_text(json.dumps(value, indent=1))
    (options.folder / "vocab.txt").write_text("\n".join(words()) + "\n")

    rng = np.random.default_rng(0)
    header, offset, names = {}, 0, list(tensors(width, layers, inner))
    for name, shape in names:
        size = int(np.prod(shape)) * 4
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(options.folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in names:
            # Matrices keep the size of what they multiply; norms are near 1.
            scale, mean = (0.02, 1.0) if name.endswith("LayerNorm.weight") else (0.02, 0.0)
            if len(shape) > 1 and "embeddings" not in name:
                scale = shape[1] ** -0.5
            file.write((rng.standard_normal(shape, dtype=np.float32) * scale + mean).astype(np.float32).tobytes())


main()
