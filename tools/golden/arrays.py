#!/usr/bin/env python3
"""A two-layer network that learns by plain gradient descent, by torch in float32.

    python tools/golden/arrays.py

writes `crates/brasa-array/tests/golden/network.json`: `x`, one-hot `targets` and first `parameters` (shape and values), their `gradients`, and 50
`losses` (mean cross-entropy) at a rate of 0.5.
"""

import json
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "brasa-array" / "tests" / "golden" / "network.json"


def listed(tensor: torch.Tensor) -> list:
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def shaped(tensor: torch.Tensor) -> dict:
    return {"shape": list(tensor.shape), "values": listed(tensor)}


def main() -> None:
    torch.manual_seed(3)
    x = torch.randn(12, 4)
    targets = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    shapes = {"w1": (4, 7), "b1": (7,), "w2": (7, 3), "b2": (3,)}
    parameters = {name: (torch.randn(shape) * 0.5).requires_grad_() for name, shape in shapes.items()}
    made = {"x": shaped(x), "targets": shaped(torch.nn.functional.one_hot(targets, 3).float()),
            "parameters": {name: shaped(value) for name, value in parameters.items()}, "losses": []}
    for step in range(50):
        w1, b1, w2, b2 = parameters.values()
        logits = torch.nn.functional.gelu(x @ w1 + b1) @ w2 + b2
        loss = torch.nn.functional.cross_entropy(logits, targets)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        if step == 0:
            made["gradients"] = {name: listed(value) for name, value in zip(parameters, gradients)}
        made["losses"].append(loss.item())
        with torch.no_grad():
            for value, gradient in zip(parameters.values(), gradients):
                value -= 0.5 * gradient
    OUT.write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
