#!/usr/bin/env python3
"""Gradients of the tiny random checkpoints by torch, through transformers' models.

    python tools/golden/models/gradients.py [NAME ...]

writes `models/random/NAME/gradients.safetensors` and `models/random-encoders/NAME/gradients.safetensors`. The loss of a decoder is the mean of -log p over all tokens but the first of
`long.ids` (80 tokens, longer than every window) in `golden.safetensors`, in f32, without dropout and without losses
that balance experts. The loss of an encoder is the mean over its hidden states for `long.ids` times cos(i), i counting elements. Every tensor of the checkpoint that the model reads as a parameter has its gradient:

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

import random_encoders

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models"
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
    return stacked_gradient_of(stored, parameters)


def stacked_gradient_of(stored: torch.Tensor, parameters: list):
    """The gradient of a tensor whose rows are those of several parameters, which are apart in memory."""
    found, rows = [], 0
    while rows < len(stored):
        rest = stored[rows:].to(torch.float32)
        fits = (p for p in parameters if p.shape[1:] == rest.shape[1:] and torch.equal(p, rest[:len(p)]))
        parameter = next(fits, None)
        if parameter is None:
            return None
        found.append(parameter.grad)
        rows += len(parameter)
    return torch.cat(found).detach()


def cosines(elements: int) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.float64).cos()


def decoder(folder: pathlib.Path) -> tuple:
    ids = load_file(folder / "golden.safetensors")["long.ids"].long()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits = model(ids[None], use_cache=False).logits[0]
    return model, torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:])


def encoder(folder: pathlib.Path) -> tuple:
    golden = load_file(folder / "golden.safetensors")
    ids, types = golden["long.ids"].long(), golden["long.types"].long()
    config = random_encoders.RECIPES[folder.name].config
    model = random_encoders.loaded(folder, config)
    types = {"token_type_ids": types[None]} if config.get("type_vocab_size", 0) > 0 else {}
    states = model(input_ids=ids[None], output_hidden_states=True, **types).hidden_states[-1][0].double().flatten()
    assert torch.allclose(states.float(), golden["long.states"].flatten(), rtol=1e-4, atol=1e-5), folder
    return model, (states * cosines(len(states))).mean()


def build(folder: pathlib.Path, loss_of) -> None:
    model, loss = loss_of(folder)
    loss.backward()
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    values, missing = {"loss": loss.detach().float().reshape(1)}, []
    for tensor, stored in load_file(folder / "model.safetensors").items():
        gradient = gradient_of(stored, parameters)
        if gradient is None:
            missing.append(tensor)
            continue
        flat = gradient.double().flatten()
        along = (flat * cosines(len(flat))).sum()
        values[f"{tensor}.summary"] = torch.tensor([flat.norm(), along, len(flat)], dtype=torch.float32)
        if folder.name in WHOLE:
            values[tensor] = gradient
    save_file(values, folder / "gradients.safetensors")
    print(f"{folder.name}: loss {loss.item():.6f}, {len(values)} arrays, without gradient: {missing}")


def main() -> None:
    for models, loss_of in [("random", decoder), ("random-encoders", encoder)]:
        for folder in sorted(path.parent for path in (MODELS / models).glob("*/config.json")):
            if not sys.argv[1:] or folder.name in sys.argv[1:]:
                build(folder, loss_of)


if __name__ == "__main__":
    main()
