#!/usr/bin/env python3
"""Quantises a checkpoint with mlx_lm.convert, on the CPU.

    python mlx_convert.py HF_DIR OUT_DIR --bits 4|8 [--group-size 64] [--mixed]

Without --mixed mlx_lm decides: routers take 8 bits, modules whose width the group size does not divide stay as they are.
Checkpoints of transformers 5 call Qwen3-MoE's expert count `num_local_experts`; mlx_lm wants `num_experts` and
gets both.

--mixed gives single modules their own parameters (written by mlx_lm as overrides beside the defaults in
config.json's "quantization"): the first layer's down projection 8 bits in groups of 32, the last layer's
query projection not quantised at all.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

import mlx.core as mx
from mlx_lm import convert

mx.set_default_device(mx.cpu)
parser = argparse.ArgumentParser()
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--bits", type=int, default=4)
parser.add_argument("--group-size", type=int, default=64)
parser.add_argument("--mixed", action="store_true")
args = parser.parse_args()

config = json.loads((args.model / "config.json").read_text())
last = config["num_hidden_layers"] - 1
model = args.model
if "num_local_experts" in config and "num_experts" not in config:
    model = pathlib.Path(tempfile.mkdtemp())
    for file in args.model.iterdir():
        (model / file.name).symlink_to(file.resolve())
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps({**config, "num_experts": config["num_local_experts"]}))


def predicate(path, module):
    """What to do with a module: False leaves it alone, True takes the defaults."""
    if path.endswith("layers.0.mlp.down_proj"):
        return {"bits": 8, "group_size": 32, "mode": "affine"}
    if path.endswith(f"layers.{last}.self_attn.q_proj"):
        return False
    return hasattr(module, "to_quantized")


shutil.rmtree(args.out, ignore_errors=True)
convert(str(model), str(args.out), quantize=True, q_bits=args.bits, q_group_size=args.group_size, quant_predicate=predicate if args.mixed else None)
