#!/usr/bin/env python3
"""Prints the table of lexicon-qwen3's types for docs/dev/verification.md from lexicon_types.json."""

import json
import pathlib

import numpy as np

types = json.loads(pathlib.Path(__file__).with_name("lexicon_types.json").read_text())
full = types["F32"]["perplexity"]["oracle"]["perplexity"]
print("| type | MB | bits per weight | perplexity, decoded weights | llama.cpp, f32 KV | f16 KV | last logits: mean / worst | greedy texts equal, or differing below the margin |")
print("|---|---|---|---|---|---|---|---|")
for name, result in types.items():
    oracle, f32, f16 = (result["perplexity"][key]["perplexity"] for key in ("oracle", "llama.cpp f32 kv", "llama.cpp f16 kv"))
    prompts = result["prompts"]["f32 kv"]
    distance = [p["relative_l2"] for p in prompts]
    whole = sum(p["greedy"]["steps"] == p["greedy"]["of"] for p in prompts)
    allowed = sum(p["greedy"]["permitted"] for p in prompts)
    print(f"| {name} | {result['bytes'] / 1e6:.2f} | {32 * result['bytes'] / types['F32']['bytes']:.2f} | {oracle:.4f} ({100 * (oracle / full - 1):+.2f} %)"
          f" | {f32:.4f} ({100 * (f32 / oracle - 1):+.2f} %) | {f16:.4f} | {np.mean(distance):.1e} / {max(distance):.1e} | {whole} equal, {allowed - whole} below, {len(prompts) - allowed} above |")
