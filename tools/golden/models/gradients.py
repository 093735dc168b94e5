#!/usr/bin/env python3
"""Gradients of the tiny random checkpoints by torch, through transformers' models.

    python tools/golden/models/gradients.py [NAME ...]

writes `models/random/NAME/gradients.safetensors`. The loss is the mean of -log p over all tokens but the first of
`long.ids` (80 tokens, longer than every window) in `golden.safetensors`, in f32, without dropout and without losses
that balance experts. Every tensor of the checkpoint that the model reads as a parameter has its gradient:

    loss              [1]
    TENSOR.summary    [3]    norm of the gradient, its sum weighted by cos(i), i counting elements, both summed in f64; elements
    TENSOR            whole gradient, as the tensor is shaped on disk; for the checkpoints in WHOLE alone

The summaries see every element, so that all checkpoints together stay small.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3] / "models" / "random"
WHOLE = ["gemma2", "qwen3moe"]

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def slices(parameter: torch.Tensor):
    """A parameter, its matrices, and the halves of these: experts and gates are stacked in memory and apart on disk."""
    yield parameter, lambda gradient: gradient
    if parameter.ndim == 3:
        half = parameter.shape[1] // 2
        for expert in range(parameter.shape[0]):
            yield parameter[expert], lambda gradient, e=expert: gradient[e]
            yield parameter[expert, :half], lambda gradient, e=expert: gradient[e, :half]
            yield parameter[expert, half:], lambda gradient, e=expert: gradient[e, half:]


def gradient_of(stored: torch.Tensor, parameters: list):
    """The gradient of a stored tensor, found by its values, which are random."""
    for parameter in parameters:
        for part, take in slices(parameter):
            if part.shape == stored.shape and torch.equal(part, stored.to(torch.float32)):
                return take(parameter.grad).detach().contiguous().clone()
    return None


def build(name: str) -> None:
    folder = ROOT / name
    ids = load_file(folder / "golden.safetensors")["long.ids"].long()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits = model(ids[None], use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:])
    loss.backward()
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    values, missing = {"loss": loss.detach().float().reshape(1)}, []
    for tensor, stored in load_file(folder / "model.safetensors").items():
        gradient = gradient_of(stored, parameters)
        if gradient is None:
            missing.append(tensor)
            continue
        flat = gradient.double().flatten()
        along = (flat * torch.arange(len(flat), dtype=torch.float64).cos()).sum()
        values[f"{tensor}.summary"] = torch.tensor([flat.norm(), along, len(flat)], dtype=torch.float32)
        if name in WHOLE:
            values[tensor] = gradient
    save_file(values, folder / "gradients.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {len(values)} arrays, without gradient: {missing}")


def main() -> None:
    names = sys.argv[1:] or sorted(path.name for path in ROOT.iterdir() if (path / "config.json").exists())
    for name in names:
        build(name)


if __name__ == "__main__":
    main()
