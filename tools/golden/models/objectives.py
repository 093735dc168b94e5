#!/usr/bin/env python3
"""Golden losses of one's own: adapters of tiny random checkpoints, learned by torch with label smoothing and from a teacher's probabilities.

usage: objectives.py OUT_DIR     (needs torch, transformers, peft, safetensors)

OUT_DIR/objectives.safetensors: documents, adapter and SGD of lora.py on llama31, in f32 on the CPU. The loss of an objective is the mean over learned tokens of

    smoothed     torch's cross_entropy with label_smoothing 0.1
    taught       half the cross-entropy of the token, half that to a teacher's probabilities: the softmax of 2·sin(0.7·j + 1.3·v) for token v in place of the j-th
                 learned token of its document

    OBJECTIVE.loss                   [20]   before each update
    OBJECTIVE.gradient.MODULE.a|b    the first gradient, computed in f64
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from lora import MODELS, build

NAME, RATE, UPDATES = "llama31", 0.03, 20


def smoothed(logits, targets):
    return cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)


def taught(logits, targets):
    j, v = torch.arange(len(targets), dtype=torch.float64)[:, None], torch.arange(logits.shape[1], dtype=torch.float64)[None]
    teacher = (2 * (0.7 * j + 1.3 * v).sin()).softmax(1).to(logits.dtype)
    return 0.5 * cross_entropy(logits, targets, reduction="sum") + 0.5 * cross_entropy(logits, teacher, reduction="sum")


def loss_of(model, documents, objective):
    total, count = 0.0, 0
    for ids, first in documents:
        logits = model(ids[None], use_cache=False).logits[0]
        total, count = total + objective(logits[first - 1 : -1], ids[first:]), count + len(ids) - first
    return total / count


def main() -> None:
    golden = load_file(MODELS / NAME / "golden.safetensors")
    documents = [(golden["long.ids"].long(), 20), (golden["short.ids"].long(), 1)]
    out = {}
    for label, objective in [("smoothed", smoothed), ("taught", taught)]:
        model, matrices = build(NAME, dtype=torch.float64)
        loss_of(model, documents, objective).backward()
        out |= {f"{label}.gradient.{name}": p.grad.float().contiguous() for name, p in matrices.items()}
        model, matrices = build(NAME)
        optimizer = torch.optim.SGD(matrices.values(), lr=RATE)
        losses = []
        for _ in range(UPDATES):
            optimizer.zero_grad()
            loss = loss_of(model, documents, objective)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        out[f"{label}.loss"] = torch.tensor(losses)
        print(f"{label}: loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    save_file(out, pathlib.Path(sys.argv[1]) / "objectives.safetensors")


if __name__ == "__main__":
    main()
