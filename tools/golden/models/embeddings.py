#!/usr/bin/env python3
"""Embeddings of the small trained models, by transformers in f32: the golden file of brasa's tests of embeddings.

    python embeddings.py MODELS_DIR OUT.json

MODELS_DIR holds tiny-llama and the others; the environment is ../../requirements/transformers.txt. For each model and text (token ids), the
last hidden state behind the final norm, of the last token and as the mean of all tokens; six digits each.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

models, out = map(pathlib.Path, sys.argv[1:])
# One short text, and one of several chunks of 16 rows.
TEXTS = [[5, 17, 101, 9, 64], [(7 * i * i + 3 * i + 11) % 500 + 4 for i in range(40)]]
NAMES = ["tiny-llama", "tiny-qwen2", "tiny-qwen3moe", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4moe"]


def short(vector):
    return [float(f"{x:.6g}") for x in vector.tolist()]


golden = []
for name in NAMES:
    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32, attn_implementation="eager").eval()
    for ids in TEXTS:
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].double()
        golden.append({"model": name, "ids": ids, "last": short(states[-1]), "mean": short(states.mean(0))})
lines = ",\n".join(json.dumps(case) for case in golden)
out.write_text(f"[\n{lines}\n]\n")
