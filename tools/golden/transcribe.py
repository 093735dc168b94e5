#!/usr/bin/env python3
"""What openai-whisper itself makes of the trained Whisper's sounds.

    python tools/golden/transcribe.py

loads `models/tiny-whisper` into openai-whisper 20250625 and writes `crates/brasa/tests/golden/transcribe.json`: segments of each
wav, and of all of them behind one another with pauses (`long`, longer than a window), greedily, with beams, with times of words, without
timestamps, and with an initial prompt.
"""

import json
import pathlib
import wave

import numpy as np
import torch
from safetensors.torch import load_file
from whisper.model import ModelDimensions, Whisper

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny-whisper"
NAMES = [f"held-{number}" for number in range(1, 7)]
GLOBAL = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.embed_tokens": "decoder.token_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.layer_norm": "decoder.ln",
}
BLOCK = {
    "self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln", "final_layer_norm": "mlp_ln",
    "self_attn.": "attn.", "encoder_attn.": "cross_attn.", "q_proj": "query", "k_proj": "key", "v_proj": "value",
    "out_proj": "out", "fc1": "mlp.0", "fc2": "mlp.2", ".layers.": ".blocks.",
}


def spelled(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, ours in (BLOCK if ".layers." in name else GLOBAL).items():
        name = name.replace(theirs, ours)
    return name


def load() -> Whisper:
    config = json.loads((MODEL / "config.json").read_text())
    dims = ModelDimensions(
        config["num_mel_bins"], config["max_source_positions"], config["d_model"], config["encoder_attention_heads"],
        config["encoder_layers"], config["vocab_size"], config["max_target_positions"], config["d_model"],
        config["decoder_attention_heads"], config["decoder_layers"],
    )
    model = Whisper(dims)
    weights = load_file(MODEL / "model.safetensors")
    model.load_state_dict({spelled(name): value.float() for name, value in weights.items()})
    heads = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
    for layer, head in json.loads((MODEL / "generation_config.json").read_text())["alignment_heads"]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def sound(name: str) -> np.ndarray:
    with wave.open(str(MODEL / f"{name}.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def main() -> None:
    model = load()
    sounds = {name: sound(name) for name in NAMES}
    pause = np.zeros(8000, np.float32)
    sounds["long"] = np.concatenate([part for name in NAMES[:5] + NAMES[:4] + NAMES[5:] for part in (sounds[name], pause)])
    recipes = {
        "greedy": {"temperature": 0.0, "beam_size": None},
        "beams": {"temperature": 0.0, "beam_size": 5},
        "words": {"temperature": 0.0, "word_timestamps": True},
        "untimed": {"temperature": 0.0, "without_timestamps": True},
        "prompted": {"temperature": 0.0, "initial_prompt": "Emma, Peter.", "language": "en"},
    }
    cases = []
    for name, samples in sounds.items():
        for recipe, options in recipes.items():
            found = model.transcribe(samples, fp16=False, verbose=None, **options)
            segments = []
            for segment in found["segments"]:
                if not segment["text"].strip():
                    continue
                keys = ["seek", "start", "end", "text", "tokens", "avg_logprob", "no_speech_prob", "compression_ratio"]
                segments.append({key: segment[key] for key in keys})
                if "words" in segment:
                    segments[-1]["words"] = [[w["word"], w["start"], w["end"], w["probability"]] for w in segment["words"]]
            cases.append({"sound": name, "recipe": recipe, "language": found["language"], "segments": segments})
            print(name, recipe, found["text"])
    target = ROOT / "crates/brasa/tests/golden/transcribe.json"
    target.write_text(json.dumps(cases, separators=(",", ":"), default=float) + "\n")
    print(target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
