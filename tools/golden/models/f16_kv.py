#!/usr/bin/env python3
"""What rounding keys and values to float16 does to transformers, everything else in float32.

    python f16_kv.py MODEL_DIR ...

Per trained checkpoint, the relative L2 between the last logits of its reference prompts and those of reference_logits.npz, mean
and largest, with keys and values as they are and rounded to float16 before attention.
"""

import importlib
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from llama_engine import relative_l2

transformers.logging.set_verbosity_error()
ROUND = False


def attention(module, query, key, value, mask, **options):
    eager = importlib.import_module(type(module).__module__).eager_attention_forward
    if ROUND:
        key, value = key.half().float(), value.half().float()
    return eager(module, query, key, value, mask, **options)


@torch.no_grad()
def errors(model, folder: pathlib.Path) -> list:
    expected = np.load(folder / "reference_logits.npz")
    prompts = json.loads((folder / "reference.json").read_text())["prompts"]
    last = lambda ids: model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
    return [relative_l2(last(p["input_ids"]), expected[f"{p['name']}:last"]) for p in prompts]


if __name__ == "__main__":
    ALL_ATTENTION_FUNCTIONS.register("rounded", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("rounded", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    for folder in map(pathlib.Path, sys.argv[1:]):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="rounded").eval()
        cells = []
        for ROUND in (False, True):
            found = errors(model, folder)
            cells.append(f"{np.mean(found):.1e} / {max(found):.1e}")
        print(f"| {folder.name} | {cells[0]} | {cells[1]} |", flush=True)
