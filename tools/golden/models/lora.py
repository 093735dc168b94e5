#!/usr/bin/env python3
"""Golden fine-tuning: adapters that PEFT and torch learn, in f32 on the CPU.

usage: lora.py OUT_DIR [NAME ...]     (needs torch, transformers, peft, safetensors)

For each checkpoint of `models/random` in CASES, OUT_DIR/NAME.safetensors. Two documents, `long.ids` and `short.ids` of the
checkpoint's `golden.safetensors`; of the first the tokens from place 20 on are learned, of the second all but the first. The loss is
the mean over learned tokens of both. `A` begins as cos(0.7·i + k) / √inputs and `B` as 0.1 · sin(1.3·i + k), i counting elements and k = 16 · layer +
the module's place in MODULES. Rank 4, α 8, every linear layer of MODULES that the model has. With `use_dora` magnitudes begin as the norms of the
rows of the stored weights, without A and B. With `rounded` forward and backward read A and B rounded to bfloat16; the optimizer changes f32 master values by the
gradients of what was read.

    loss.RULE                [50]   before each update
    norm.adamw               [50]   of the gradient before clipping to 1
    rate.sgd                 [1]    the rate of SGD
    gradient.MODULE.a|b|m    whole first gradient, computed in f64 (torch is off by up to 2e-5 in f32), or of checkpoints not in WHOLE its summary [norm, sum weighted by cos(i), elements]
    RULE.MODULE.a|b|m        the same of the values after 50 updates

RULE is `sgd` or `adamw` (peak rate 0.003 in a cosine behind a warm-up of 5, weight decay 0.01, clipped to 1).
"""

import math
import pathlib
import sys

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models" / "random"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"]
CASES = {
    "llama31": {},
    "qwen2": {"use_rslora": True, "rate": 0.003},
    "qwen3": {"rate": 0.003},
    "gemma2": {},
    "gemma3": {},
    "gemma4": {"rate": 0.003},
    "phi3": {"rate": 0.01},
    "mistral-window": {},
    "qwen3moe": {"modules": MODULES[:4]},
    "llama31-dora": {"use_dora": True},
    "qwen2-dora": {"use_dora": True, "rate": 0.003},
    "llama31-bf16": {"rounded": True},
    "qwen2-dora-bf16": {"use_dora": True, "rounded": True, "rate": 0.003},
}
WHOLE = ["llama31", "llama31-bf16", "phi3"]
UPDATES = 50

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def base(name: str) -> pathlib.Path:
    return MODELS / name.removesuffix("-bf16").removesuffix("-dora")


def build(name: str, dtype=torch.float32, modules=tuple(MODULES), use_rslora=False, use_dora=False):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base(name), dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(modules), use_rslora=use_rslora, use_dora=use_dora, lora_dropout=0.0)
    model = get_peft_model(model, config)
    matrices = {}
    for path, parameter in sorted(model.named_parameters()):
        if not parameter.requires_grad:
            continue
        inner = path.split("layers.")[1].split(".")
        k = 16 * int(inner[0]) + MODULES.index(inner[2])
        i = torch.arange(parameter.numel(), dtype=torch.float64)
        if "lora_magnitude" in path:
            matrices[f"layers.{inner[0]}.{inner[1]}.{inner[2]}.m"] = parameter
            continue
        if "lora_A" in path:
            values, part = (0.7 * i + k).cos() / math.sqrt(parameter.shape[1]), "a"
        else:
            values, part = 0.1 * (1.3 * i + k).sin(), "b"
        with torch.no_grad():
            parameter.copy_(values.float().reshape(parameter.shape))
            parameter.data = parameter.data.to(dtype)
        matrices[f"layers.{inner[0]}.{inner[1]}.{inner[2]}.{part}"] = parameter
    return model, matrices


def loss_of(model, documents) -> torch.Tensor:
    total, count = 0.0, 0
    for ids, first in documents:
        logits = model(ids[None], use_cache=False).logits[0]
        losses = torch.nn.functional.cross_entropy(logits[first - 1 : -1], ids[first:], reduction="sum")
        total, count = total + losses, count + len(ids) - first
    return total / count


class Masters:
    """The f32 values that a model's matrices are rounded from before each update; without rounding the matrices themselves."""

    def __init__(self, matrices: dict, rounded: bool):
        self.read = [p for label, p in matrices.items() if rounded and not label.endswith(".m")]
        self.masters = [torch.nn.Parameter(p.detach().clone()) for p in self.read]
        of = {id(p): master for p, master in zip(self.read, self.masters)}
        self.matrices = {label: of.get(id(p), p) for label, p in matrices.items()}

    def give(self) -> None:
        """Rounds the masters into the model, and forgets the gradients."""
        with torch.no_grad():
            for p, master in zip(self.read, self.masters):
                p.copy_(master.bfloat16().to(p.dtype))
                p.grad = None

    def take(self) -> None:
        """Gives the masters the gradients of what was read."""
        for p, master in zip(self.read, self.masters):
            master.grad = p.grad


def put(out: dict, name: str, label: str, values: torch.Tensor) -> None:
    if name in WHOLE:
        out[label] = values.detach().clone().contiguous()
        return
    flat = values.detach().double().flatten()
    along = (flat * torch.arange(len(flat), dtype=torch.float64).cos()).sum()
    out[label] = torch.tensor([flat.norm(), along, len(flat)], dtype=torch.float32)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for name, settings in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        golden = load_file(base(name) / "golden.safetensors")
        documents = [(golden["long.ids"].long(), 20), (golden["short.ids"].long(), 1)]
        settings, out = dict(settings), {}
        rounded = settings.pop("rounded", False)
        rate = settings.pop("rate", 0.03)
        out["rate.sgd"] = torch.tensor([rate])
        model, matrices = build(name, dtype=torch.float64, **settings)
        Masters(matrices, rounded).give()
        loss_of(model, documents).backward()
        for label, parameter in matrices.items():
            put(out, name, f"gradient.{label}", parameter.grad.float())
        for rule in ["sgd", "adamw"]:
            model, matrices = build(name, **settings)
            masters = Masters(matrices, rounded)
            matrices = masters.matrices
            parameters = list(matrices.values())
            if rule == "sgd":
                optimizer = torch.optim.SGD(parameters, lr=rate)
            else:
                optimizer = torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.01)
            losses, norms = [], []
            for update in range(UPDATES):
                optimizer.zero_grad()
                masters.give()
                loss = loss_of(model, documents)
                loss.backward()
                masters.take()
                losses.append(loss.item())
                if rule == "adamw":
                    norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
                    share = max(update - 5, 0) / (UPDATES - 5)
                    now = 0.003 * (update + 1) / 5 if update < 5 else 0.003 * 0.5 * (1 + math.cos(math.pi * share))
                    optimizer.param_groups[0]["lr"] = now
                optimizer.step()
            out[f"loss.{rule}"] = torch.tensor(losses)
            if norms:
                out[f"norm.{rule}"] = torch.tensor(norms)
            for label, parameter in matrices.items():
                put(out, name, f"{rule}.{label}", parameter)
            print(f"{name}, {rule}: {len(parameters)} matrices, loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        save_file(out, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
