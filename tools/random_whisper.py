"""Writes a Hugging Face folder of a Whisper's shapes with random weights: large enough for memory and speed to matter.

    python tools/random_whisper.py FOLDER --shape base [--type f16]

Vocabulary, generation settings and preprocessor are those of models/tiny-whisper. `brasa quantize` makes GGUF and whisper.cpp's
files of the folder. Needs numpy.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np

TINY = pathlib.Path(__file__).parent.parent / "models/tiny-whisper"
# Width, heads, encoder layers, decoder layers, mel bins.
SHAPES = {
    "tiny": (384, 6, 4, 4, 80),
    "base": (512, 8, 6, 6, 80),
    "small": (768, 12, 12, 12, 80),
    "large-v3-turbo": (1280, 20, 32, 4, 128),
}


def tensors(width, encoder_layers, decoder_layers, bins, vocabulary):
    """Names and shapes in the file's order."""

    def attention(name):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"{name}.{part}.weight", (width, width)
            if part != "k_proj":
                yield f"{name}.{part}.bias", (width,)

    def norm(name):
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    def network(name):
        yield f"{name}.fc1.weight", (4 * width, width)
        yield f"{name}.fc1.bias", (4 * width,)
        yield f"{name}.fc2.weight", (width, 4 * width)
        yield f"{name}.fc2.bias", (width,)
        yield from norm(f"{name}.final_layer_norm")

    encoder, decoder = "model.encoder", "model.decoder"
    for number, inputs in ((1, bins), (2, width)):
        yield f"{encoder}.conv{number}.weight", (width, inputs, 3)
        yield f"{encoder}.conv{number}.bias", (width,)
    yield f"{encoder}.embed_positions.weight", (1500, width)
    for layer in range(encoder_layers):
        name = f"{encoder}.layers.{layer}"
        yield from attention(f"{name}.self_attn")
        yield from norm(f"{name}.self_attn_layer_norm")
        yield from network(name)
    yield from norm(f"{encoder}.layer_norm")
    yield f"{decoder}.embed_tokens.weight", (vocabulary, width)
    yield f"{decoder}.embed_positions.weight", (448, width)
    for layer in range(decoder_layers):
        name = f"{decoder}.layers.{layer}"
        yield from attention(f"{name}.self_attn")
        yield from norm(f"{name}.self_attn_layer_norm")
        yield from attention(f"{name}.encoder_attn")
        yield from norm(f"{name}.encoder_attn_layer_norm")
        yield from network(name)
    yield from norm(f"{decoder}.layer_norm")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--type", choices=("f16", "f32"), default="f16")
    options = parser.parse_args()
    width, heads, encoder_layers, decoder_layers, bins = SHAPES[options.shape]
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "d_model": width, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers, "num_mel_bins": bins,
        "encoder_attention_heads": heads, "decoder_attention_heads": heads, "classifier_proj_size": 256,
        "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
    }  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(config, indent=1))
    preprocessor = json.loads((TINY / "preprocessor_config.json").read_text())
    preprocessor["feature_size"] = bins
    preprocessor.pop("mel_filters", None)
    (options.folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    generation = json.loads((TINY / "generation_config.json").read_text())
    generation.pop("alignment_heads", None)
    (options.folder / "generation_config.json").write_text(json.dumps(generation))
    shutil.copy(TINY / "tokenizer.json", options.folder)

    rng = np.random.default_rng(0)
    dtype = {"f16": np.float16, "f32": np.float32}[options.type]
    header, offset, names = {}, 0, list(tensors(width, encoder_layers, decoder_layers, bins, config["vocab_size"]))
    for name, shape in names:
        size = int(np.prod(shape)) * dtype().itemsize
        header[name] = {"dtype": options.type.upper(), "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(options.folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in names:
            scale, mean = (0.02, 1.0) if "norm.weight" in name else (np.prod(shape[1:], dtype=float) ** -0.5, 0.0)
            values = rng.standard_normal(shape, dtype=np.float32) * (scale if len(shape) > 1 or mean else 0.02) + mean
            file.write(values.astype(dtype).tobytes())


main()
