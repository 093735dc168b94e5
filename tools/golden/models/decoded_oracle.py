#!/usr/bin/env python3
"""The oracle of a quantised file: its publicly decoded weights, run by transformers in float32.

    python decoded_oracle.py HF_DIR FILE.gguf|MLX_DIR OUT.safetensors [--prompts reference.json|golden.safetensors]

HF_DIR gives the configuration and the names and shapes of the tensors; every value comes from the quantised
file: GGUF blocks by gguf-py, MLX modules by mx.dequantize with scales and biases widened to float32 first.
What GGUF stores differently is undone: interleaved rows of Q and K (arch llama), 1 added to norms (Gemma 1–3),
stacked experts.

OUT holds, per prompt: NAME.ids i32 [n], NAME.last f32 [V], NAME.nll f32 [1], NAME.greedy_ids i32 [k],
NAME.greedy_margins f32 [k].
"""

import argparse
import json
import pathlib
import re
import shutil
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

EXPERT = re.compile(r"(model\.layers\.(\d+)\.(?:mlp|block_sparse_moe))\.experts\.(\d+)\.(\w+)\.weight")
KIND = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


class GgufWeights:
    def __init__(self, path: pathlib.Path, config: dict):
        import gguf

        reader = gguf.GGUFReader(path)
        self.config, self.dequantize = config, gguf.quants.dequantize
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = reader.get_field("general.architecture").contents()
        arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[self.arch]
        self.names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])

    def value(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        return self.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(tensor.shape)])

    def __call__(self, key: str) -> np.ndarray:
        if expert := EXPERT.fullmatch(key):
            return self.value(f"blk.{expert[2]}.ffn_{KIND[expert[4]]}_exps.weight")[int(expert[3])]
        block = re.match(r"model\.layers\.(\d+)\.(.*)", key)
        if block:
            prefix = f"blk.{block[1]}."
            special = {"experts.down_proj": "ffn_down_exps.weight", "router.scale": "ffn_gate_inp.scale",
                       "router.per_expert_scale": "ffn_down_exps.scale", "layer_scalar": "layer_output_scale.weight"}
            if block[2] in special:
                return self.value(prefix + special[block[2]])
            if block[2] == "experts.gate_up_proj":
                fused = prefix + "ffn_gate_up_exps.weight"
                return self.value(fused) if fused in self.tensors else np.concatenate(
                    [self.value(prefix + "ffn_gate_exps.weight"), self.value(prefix + "ffn_up_exps.weight")], 1)
        value = self.value(self.names.get_name(key, try_suffixes=(".weight", ".bias")))
        if self.arch == "llama" and (".q_proj." in key or ".k_proj." in key):
            heads = self.config["num_attention_heads" if ".q_proj." in key else "num_key_value_heads"]
            value = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        if self.arch in ("gemma", "gemma2", "gemma3") and key.endswith("norm.weight"):
            value = value - np.float32(1)
        return value


class MlxWeights:
    def __init__(self, folder: pathlib.Path):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.mx, self.tensors = mx, {}
        for file in sorted(folder.glob("model*.safetensors")):
            self.tensors.update(mx.load(str(file)))
        self.quantization = json.loads((folder / "config.json").read_text())["quantization"]

    def value(self, name: str) -> np.ndarray:
        mx, base = self.mx, name.removesuffix(".weight")
        value = self.tensors[name]
        if base + ".scales" in self.tensors:
            parameters = self.quantization.get(base, self.quantization)
            scales, biases = (self.tensors[f"{base}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            value = mx.dequantize(value, scales, biases, group_size=parameters["group_size"], bits=parameters["bits"])
        return np.array(value.astype(mx.float32))

    def __call__(self, key: str) -> np.ndarray:
        if expert := EXPERT.fullmatch(key):
            return self.value(f"{expert[1]}.switch_mlp.{KIND[expert[4]]}_proj.weight")[int(expert[3])]
        if key.endswith(".experts.down_proj"):
            return self.value(key.replace(".down_proj", ".switch_glu.down_proj.weight"))
        if key.endswith(".experts.gate_up_proj"):
            base = key.removesuffix("gate_up_proj") + "switch_glu."
            return np.concatenate([self.value(base + "gate_proj.weight"), self.value(base + "up_proj.weight")], 1)
        return self.value(key)


def decoded_model(hf: pathlib.Path, quantised: pathlib.Path):
    """The checkpoint's transformers model with every weight taken from the quantised file."""
    config = json.loads((hf / "config.json").read_text())
    weights = MlxWeights(quantised) if quantised.is_dir() else GgufWeights(quantised, config)
    values = {}
    with safe_open(hf / "model.safetensors", "np") as template:
        for key in template.keys():
            values[key] = np.ascontiguousarray(weights(key))
            shape = template.get_slice(key).get_shape()
            assert list(values[key].shape) == shape, f"{key}: {values[key].shape}, expected {shape}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(hf / "config.json", folder)
        save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def mean_nll(logits: torch.Tensor, ids: list) -> float:
    log_p = torch.log_softmax(logits[:-1].double(), -1)
    return -log_p[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean().item()


@torch.no_grad()
def evaluate(model, ids: list, steps: int) -> dict:
    out = model(torch.tensor([ids]), use_cache=True)
    logits = out.logits[0].float()
    row, cache, chosen, margins = logits[-1], out.past_key_values, [], []
    for _ in range(steps):
        best = row.topk(2)
        chosen.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        out = model(torch.tensor([chosen[-1:]]), past_key_values=cache, use_cache=True)
        row, cache = out.logits[0, -1].float(), out.past_key_values
    return {"ids": np.array(ids, np.int32), "last": logits[-1].numpy().copy(), "nll": np.array([mean_nll(logits, ids)], np.float32),
            "greedy_ids": np.array(chosen, np.int32), "greedy_margins": np.array(margins, np.float32)}


def prompts_of(path: pathlib.Path) -> tuple:
    if path.suffix == ".json":
        return {p["name"]: p["input_ids"] for p in json.loads(path.read_text())["prompts"]}, 48
    golden = load_file(path)
    return {key.removesuffix(".ids"): golden[key].tolist() for key in golden if key.endswith(".ids")}, 24


def oracle(hf: pathlib.Path, quantised: pathlib.Path, prompts: pathlib.Path) -> dict:
    model = decoded_model(hf, quantised)
    texts, steps = prompts_of(prompts)
    return {f"{name}.{part}": value for name, ids in texts.items() for part, value in evaluate(model, ids, steps).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hf", type=pathlib.Path)
    parser.add_argument("quantised", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--prompts", type=pathlib.Path)
    args = parser.parse_args()
    save_file(oracle(args.hf, args.quantised, args.prompts or args.hf / "reference.json"), args.out,
              metadata={"made_by": f"transformers {transformers.__version__}, float32, weights decoded from {args.quantised.name}"})
