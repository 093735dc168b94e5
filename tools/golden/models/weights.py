#!/usr/bin/env python3
"""Golden training of weights: every parameter of a tiny model is learned by torch, in f32 on the CPU.

usage: weights.py OUT_DIR [NAME ...]     (needs torch, transformers, safetensors)

For each of RATES, checkpoints of `models/random`, OUT_DIR/NAME.safetensors. The documents and their loss are those of lora.py. All parameters are learned:
projections, experts, routers, embeddings, the head, norms and biases. Experts that torch stacks, each gate above its up, go by the names of the stacks.

    loss.RULE          [50]   before each update
    gradient.TENSOR    first gradient, computed in f64: [norm, sum weighted by cos(i), elements]
    RULE.TENSOR        the same of the change that 50 updates made

RULE is `sgd` (rate RATES[NAME]) or `adamw` (rate 0.001, weight decay 0.01, clipped to 1).
"""

import pathlib
import sys

import torch
from lora import MODELS, UPDATES, loss_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

RATES = {"llama31": 0.01, "qwen2": 0.01, "qwen3": 0.003, "gemma3": 0.003, "qwen3moe": 0.003}


def build(name: str, dtype: torch.dtype):
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    return model, dict(model.named_parameters())


def summary(values: torch.Tensor) -> torch.Tensor:
    flat = values.detach().double().flatten()
    along = (flat * torch.arange(len(flat), dtype=torch.float64).cos()).sum()
    return torch.tensor([flat.norm(), along, len(flat)], dtype=torch.float32)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, rate in RATES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        golden = load_file(MODELS / name / "golden.safetensors")
        documents = [(golden["long.ids"].long(), 20), (golden["short.ids"].long(), 1)]
        model, learned = build(name, torch.float64)
        loss_of(model, documents).backward()
        out = {f"gradient.{path}": summary(parameter.grad) for path, parameter in learned.items()}
        out["rate.sgd"] = torch.tensor([rate])
        for rule in ["sgd", "adamw"]:
            model, learned = build(name, torch.float32)
            begin = {path: parameter.detach().clone() for path, parameter in learned.items()}
            parameters = list(learned.values())
            if rule == "sgd":
                optimizer = torch.optim.SGD(parameters, lr=rate)
            else:
                optimizer = torch.optim.AdamW(parameters, lr=0.001, weight_decay=0.01)
            losses = []
            for _ in range(UPDATES):
                optimizer.zero_grad()
                loss = loss_of(model, documents)
                loss.backward()
                losses.append(loss.item())
                if rule == "adamw":
                    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
            out[f"loss.{rule}"] = torch.tensor(losses)
            out |= {f"{rule}.{path}": summary(parameter - begin[path]) for path, parameter in learned.items()}
            print(f"{name}, {rule}: {len(parameters)} parameters, loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        save_file(out, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
