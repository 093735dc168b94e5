#!/usr/bin/env python3
"""Attention weights and states inside the small trained models, by transformers in f32: the golden file of brasa's tests of inspection.

    python attention.py MODELS_DIR OUT.json

MODELS_DIR holds tiny-llama and the others; the environment is ../../requirements/transformers.txt. For each model: the last rows of the weights of
head 0 of the first layer and of the last head of the last layer, [4, tokens], and the first layer's output of the same tokens; five digits each.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

models, out = map(pathlib.Path, sys.argv[1:])
# Longer than the windows of 64 positions.
IDS = [(5 * i * i + 3 * i + 11) % 500 + 4 for i in range(80)]
NAMES = ["tiny-llama", "tiny-gemma3", "tiny-gemma4"]
ROWS = 4


def short(tensor):
    return [float(f"{x:.5g}") for x in tensor.flatten().tolist()]


golden = []
for name in NAMES:
    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        seen = model(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
    golden.append({
        "model": name,
        "ids": IDS,
        "first": short(seen.attentions[0][0, 0, -ROWS:]),
        "last": short(seen.attentions[-1][0, -1, -ROWS:]),
        "states": short(seen.hidden_states[1][0, -ROWS:]),
    })
lines = ",\n".join(json.dumps(case) for case in golden)
out.write_text(f"[\n{lines}\n]\n")
