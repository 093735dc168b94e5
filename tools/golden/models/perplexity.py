"""Perplexity as llama-perplexity measures it.

The text (less one newline at its end) is tokenised once, with the specials the model's tokenizer adds and
without parsing any. Windows of n_ctx ids are cut one after the other, the rest is dropped; where the tokenizer
adds a BOS it replaces each window's first id. Every window is computed by itself; the ids from position
n_ctx/2 + 1 on are scored, n_ctx/2 - 1 of them. The result is exp of the mean of all -log p.
"""

import numpy as np


def windows(ids: list, n_ctx: int, bos: int = None) -> list:
    cut = [list(ids[i : i + n_ctx]) for i in range(0, len(ids) - n_ctx + 1, n_ctx)]
    return cut if bos is None else [[bos] + window[1:] for window in cut]


def scored_nll(logits: np.ndarray, window: list, targets: list = None) -> np.ndarray:
    """-log p of the scored half of a window; `logits` are those of all its rows."""
    first = len(window) // 2
    rows = logits[first:-1].astype(np.float64)
    targets = (targets or window)[first + 1 :]
    peak = rows.max(-1)
    lse = peak + np.log(np.exp(rows - peak[:, None]).sum(-1))
    return lse - rows[np.arange(len(targets)), targets]


def perplexity(logits_of, ids: list, n_ctx: int = 512, bos: int = None) -> dict:
    """`logits_of(window)` gives `[n_ctx, vocab]`."""
    nll = np.concatenate([scored_nll(logits_of(window), window) for window in windows(ids, n_ctx, bos)])
    return {"perplexity": float(np.exp(nll.mean())), "standard_error": float(np.exp(nll.mean()) * nll.std() / np.sqrt(len(nll))),
            "windows": len(ids) // n_ctx, "scored": len(nll)}
