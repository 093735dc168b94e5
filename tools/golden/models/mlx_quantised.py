#!/usr/bin/env python3
"""Random checkpoints quantised by MLX-LM, with golden values of their decoded weights by transformers.

    python tools/golden/models/mlx_quantised.py

writes `models/random-mlx/NAME/{config.json, model.safetensors, golden.safetensors}`. The weights are what MLX-LM's
quantize_model makes of `models/random/NAME`; layers whose rows are no whole number of groups stay as they are, and a
mixture's experts become one stack. The golden values are transformers' in float32 on the weights as MLX decodes them:

    ids      i32 [40]     prompt
    logits   f32 [40, V]
    rounded  f32 [40, V]   dense models: the same where every quantised layer reads its activations rounded to 8 bits,
                           in blocks of 32 with the scale max |x| / 127, ties to even; some add what that leaves,
                           rounded alike (`adds_rest`): what an int8 path may do at best
"""

import json
import pathlib
import shutil
import tempfile

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import torch
from mlx_lm.utils import load_model, quantize_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models"
BITS = {"k-ragged": 4, "llama-biased-tied": 3, "gemma2": 6, "mixtral": 8, "gemma4-keys-are-values": 4}
GROUP = 32


def decoded(arrays: dict, settings: dict) -> dict:
    """Every weight in float32, under MLX's names."""
    out = {}
    for name, array in arrays.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{module}.scales" in arrays:
            own = settings.get(module)
            bits, group = (own["bits"], own["group_size"]) if isinstance(own, dict) else (settings["bits"], settings["group_size"])
            scales, biases = (arrays[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            array = mx.dequantize(array, scales, biases, group, bits)
        out[name] = torch.from_numpy(np.array(array.astype(mx.float32)))
    return out


def as_hugging_face(tensors: dict) -> dict:
    """Undoes MLX's stacking of experts."""
    out = dict(tensors)
    for name in tensors:
        if ".block_sparse_moe.switch_mlp." in name:
            base, which = name.split(".switch_mlp.")
            spelled = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[which.removesuffix(".weight")]
            for expert, weight in enumerate(out.pop(name)):
                out[f"{base}.experts.{expert}.{spelled}.weight"] = weight.clone()
    return out


def round_activations(model, arrays: dict) -> None:
    """Rounds what the layers read whose weights are quantised in `arrays`; the head's may be the embedding's."""

    def codes(x):
        blocks = x.unflatten(-1, (-1, 32))
        largest = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        return ((blocks * (127 / largest)).round() * (largest / 127)).flatten(-2)

    def rounded(module, inputs):
        return codes(inputs[0]),

    def rounded_with_rest(module, inputs):
        whole = codes(inputs[0])
        return whole + codes(inputs[0] - whole),

    products = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in ("down_proj", "per_layer_projection")]
    early = products[:(len(products) + 1) // 2]

    def adds_rest(name):
        """Layers that read a product of two values, the first half of them, and queries, keys and values of attention without 1/√d."""
        layer, _, which = name.rpartition(".")
        if which in ("q_proj", "k_proj", "v_proj"):
            attention = model.get_submodule(layer)
            return attention.scaling * attention.head_dim**0.5 >= 1.5
        return name in early

    quantised = {name.removesuffix(".scales") for name in arrays if name.endswith(".scales")}
    if "model.embed_tokens" in quantised and model.config.tie_word_embeddings:
        quantised.add("lm_head")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name in quantised:
            module.register_forward_pre_hook(rounded_with_rest if adds_rest(name) else rounded)


@torch.no_grad()
def main() -> None:
    for name, bits in BITS.items():
        source, target = MODELS / "random" / name, MODELS / "random-mlx" / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        model, config = load_model(source, lazy=True)
        model, config = quantize_model(model, config, GROUP, bits)
        mlx_lm.utils.save_model(target, model)
        mlx_lm.utils.save_config(config, config_path=target / "config.json")
        (target / "model.safetensors.index.json").unlink()

        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            arrays = mx.load(str(target / "model.safetensors"))
            tensors = as_hugging_face(decoded(arrays, config["quantization"]))
            save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
            shutil.copy(source / "config.json", folder)
            reference, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            assert not report["missing_keys"] - {"lm_head.weight"} and not report["unexpected_keys"], report
            generator = torch.Generator().manual_seed(7)
            ids = torch.randint(3, config["vocab_size"], (40,), generator=generator)
            golden = {"ids": ids.to(torch.int32), "logits": reference(ids[None], use_cache=False).logits[0].contiguous()}
            # Rounding changes which experts are chosen: there is no one answer to compare with.
            if name != "mixtral":
                round_activations(reference, arrays)
                golden["rounded"] = reference(ids[None], use_cache=False).logits[0].contiguous()
        save_file(golden, target / "golden.safetensors")
        print(name, json.dumps(config["quantization"])[:100])


if __name__ == "__main__":
    main()
