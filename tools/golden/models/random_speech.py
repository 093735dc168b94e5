#!/usr/bin/env python3
"""A tiny random Whisper in each container that Brasa reads of one.

    python tools/golden/models/random_speech.py hugging-face
    python tools/golden/models/random_speech.py mlx MLX_WHISPER

The first writes `models/random-speech/hugging-face/{config.json, model.safetensors, golden.safetensors}` by transformers, stored as float16. The second
brings those weights into the form of MLX's examples, by the Whisper of the package `mlx-whisper`, whose sources are in MLX_WHISPER:
`mlx-npz` (weights.npz), `mlx` (weights.safetensors) and `mlx-4bit` (quantised by `mlx.nn.quantize` in groups of 32, as that package's converter does), each
with golden values of that Whisper in float32. Shapes are those of the large models in small: 128 mel bins, more layers in the encoder than in the decoder.

golden.safetensors (f32 unless said otherwise):

    mel       [2 P, 128]   features of a window
    encoder   [P, D]       the encoder's output
    ids       i32 [T]      tokens
    logits    [T, V]       logits of every row

Needs `torch`, `transformers` and `safetensors`; `mlx` and `safetensors`.
"""

import json
import pathlib
import sys
import types

import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[3] / "models" / "random-speech"
SIZES = {
    "d_model": 64, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "num_mel_bins": 128, "max_source_positions": 48, "max_target_positions": 40,
    "vocab_size": 512,
}
IDS = [500, 3, 77, 410, 9, 255, 256, 31, 8, 499, 120, 1]


def features() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 0.6, (2 * SIZES["max_source_positions"], 128)).astype(np.float32)


def hugging_face() -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    config = transformers.WhisperConfig(
        **SIZES, bos_token_id=1, eos_token_id=1, pad_token_id=1, decoder_start_token_id=500, begin_suppress_tokens=None, suppress_tokens=None,
        torch_dtype="float16")
    torch.manual_seed(5)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "encoder.embed_positions" in name:
                continue
            scale = 0.1 if tensor.dim() < 2 else 0.25
            tensor.copy_(torch.randn(tensor.shape) * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    folder = OUT / "hugging-face"
    model.half().save_pretrained(folder)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    mel = torch.from_numpy(features())
    with torch.no_grad():
        encoded = model.model.encoder(mel.T[None]).last_hidden_state
        logits = model(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([IDS])).logits
    save_file({"mel": mel, "encoder": encoded[0].contiguous(), "ids": torch.tensor(IDS, dtype=torch.int32),
               "logits": logits[0].contiguous()}, folder / "golden.safetensors")


# Hugging Face's parts of names, and those of MLX's examples.
PARTS = [
    ("model.", ""), ("layers", "blocks"), ("fc1", "mlp1"), ("fc2", "mlp2"), ("final_layer_norm", "mlp_ln"), ("encoder_attn.q_proj", "cross_attn.query"),
    ("encoder_attn.k_proj", "cross_attn.key"), ("encoder_attn.v_proj", "cross_attn.value"), ("encoder_attn.out_proj", "cross_attn.out"),
    ("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn.q_proj", "attn.query"), ("self_attn.k_proj", "attn.key"),
    ("self_attn.v_proj", "attn.value"), ("self_attn.out_proj", "attn.out"), ("self_attn_layer_norm", "attn_ln"),
    ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"), ("decoder.embed_tokens", "decoder.token_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
]


def mlx(package: str) -> None:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_map
    from safetensors.numpy import load_file, save_file

    # The model alone: decoding needs a tokenizer and more.
    root = types.ModuleType("mlx_whisper")
    root.__path__ = [f"{package}/mlx_whisper"]
    sys.modules["mlx_whisper"] = root
    decoding = types.ModuleType("mlx_whisper.decoding")
    decoding.decode = decoding.detect_language = None
    sys.modules["mlx_whisper.decoding"] = decoding
    from mlx_whisper import whisper

    weights = {}
    for name, array in load_file(OUT / "hugging-face" / "model.safetensors").items():
        for theirs, ours in PARTS:
            name = name.replace(theirs, ours)
        if name.startswith("proj_out") or "embed_positions" in name:
            continue
        weights[name] = mx.array(array.swapaxes(1, 2) if ".conv" in name and array.ndim == 3 else array)
    config = {
        "n_mels": 128, "n_audio_ctx": SIZES["max_source_positions"], "n_audio_state": 64, "n_audio_head": 4, "n_audio_layer": 3,
        "n_vocab": 512, "n_text_ctx": SIZES["max_target_positions"], "n_text_state": 64, "n_text_head": 4, "n_text_layer": 2,
    }
    for kind in ("mlx-npz", "mlx", "mlx-4bit"):
        folder = OUT / kind
        folder.mkdir(parents=True, exist_ok=True)
        model = whisper.Whisper(whisper.ModelDimensions(**config), mx.float32)
        model.load_weights(list(weights.items()) + [("alignment_heads", model.alignment_heads)])
        written = dict(config, model_type="whisper")
        if kind == "mlx-4bit":
            written["quantization"] = {"group_size": 32, "bits": 4}
            nn.quantize(model, group_size=32, bits=4)
        (folder / "config.json").write_text(json.dumps(written, indent=4))
        arrays = dict(tree_flatten(model.parameters()))
        if kind == "mlx-npz":
            mx.savez(str(folder / "weights.npz"), **arrays)
        else:
            mx.save_safetensors(str(folder / "weights.safetensors"), arrays)
        model.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype == mx.float16 else x, model.parameters()))
        mel = features()
        encoded = model.encoder(mx.array(mel)[None])
        logits = model.decoder(mx.array([IDS]), encoded)[0]
        save_file({"mel": mel, "encoder": np.array(encoded[0]), "ids": np.array(IDS, dtype=np.int32), "logits": np.array(logits[0])},
                  folder / "golden.safetensors")


if __name__ == "__main__":
    if sys.argv[1] == "mlx":
        mlx(sys.argv[2])
    else:
        hugging_face()
