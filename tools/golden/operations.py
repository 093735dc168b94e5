#!/usr/bin/env python3
"""Golden values of graph operations, by torch and transformers.

    python tools/golden/operations.py crates/brasa-graph/tests/golden/operations.json

Each case: operation with its parameters, operands, results; arrays as {shape, f32} or {shape, u32}. Attention cases
are two segments of 3 and 5 rows.
"""
import json
import sys

import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm

torch.manual_seed(20261121)
cases = []


def array(t):
    if t.dtype in (torch.int64, torch.int32):
        return {"shape": list(t.shape), "u32": t.flatten().tolist()}
    # The shortest decimal that gives the same f32.
    return {"shape": list(t.shape), "f32": [float(str(x)) for x in t.detach().float().flatten().numpy()]}


def case(name, params, operands, results):
    cases.append({"op": name, "params": params, "operands": [array(t) for t in operands],
                  "results": [array(t) for t in results]})


def randn(*shape, scale=1.0):
    return torch.randn(*shape) * scale


# Elementwise, over a range where every branch of erf is taken.
x = torch.cat([torch.linspace(-8, 8, 41), torch.tensor([1e-4, -1e-4, 20.0, -20.0])])
case("gelu_erf", {}, [x], [F.gelu(x)])
case("gelu_tanh", {}, [x], [F.gelu(x, approximate="tanh")])
case("silu", {}, [x], [F.silu(x)])
case("sigmoid", {}, [x], [torch.sigmoid(x)])
case("tanh", {}, [x], [torch.tanh(x)])
case("exp", {}, [x], [torch.exp(x)])
case("softcap", {"cap": 3.0}, [x], [3.0 * torch.tanh(x / 3.0)])
case("clamp", {"low": -1.5, "high": 2.0}, [x], [x.clamp(-1.5, 2.0)])
case("log", {}, [x.abs()], [x.abs().log()])
case("rsqrt", {}, [x.abs()], [x.abs().rsqrt()])

# Norms.
x, w, b = randn(3, 37, scale=4.0), randn(37), randn(37)
norm = MixtralRMSNorm(37, eps=1e-5)
norm.weight.data = w
case("rms_norm", {"eps": 1e-5}, [x, w], [norm(x)])
case("rms_norm", {"eps": 1e-2}, [x * 0.01], [F.rms_norm(x * 0.01, [37], eps=1e-2)])
case("layer_norm", {"eps": 1e-5}, [x + 3, w, b], [F.layer_norm(x + 3, [37], w, b, eps=1e-5)])

# Products.
x, w = randn(4, 19), randn(7, 19)
case("linear", {}, [x, w], [F.linear(x, w)])
y = randn(4, 7)
case("linear_transposed", {}, [y, w], [y @ w])
for ta in (False, True):
    for tb in (False, True):
        a, b = randn(5, 6), randn(6, 3)
        case("matmul", {"transpose_a": ta, "transpose_b": tb},
             [a.T.contiguous() if ta else a, b.T.contiguous() if tb else b], [a @ b])

# Reductions.
x = randn(4, 23, scale=3.0)
case("softmax", {}, [x], [F.softmax(x, dim=-1)])
case("logsumexp", {"axis": 1}, [x], [torch.logsumexp(x, 1)])
case("mean", {"axis": 0}, [x], [x.mean(0)])
targets = torch.tensor([0, 22, 7, 7])
case("cross_entropy", {}, [x, targets], [F.cross_entropy(x, targets, reduction="none")])
case("argmax", {}, [x], [x.argmax(-1)])

# Rotations.
heads, width = 3, 16
x, positions = randn(5, heads, width), torch.tensor([0, 1, 5, 400, 100_000])
for rotary in (16, 8):
    freqs = 1.0 / (10_000 ** (torch.arange(0, rotary, 2).float() / rotary))
    angles = positions[:, None].float() * freqs[None]
    both = torch.cat([angles, angles], -1)
    turned, rest = x[..., :rotary], x[..., rotary:]
    split, _ = apply_rotary_pos_emb(turned.transpose(0, 1)[None], turned.transpose(0, 1)[None],
                                    both.cos()[None], both.sin()[None])
    split = torch.cat([split[0].transpose(0, 1), rest], -1)
    case("rope", {"layout": "split_half", "rotary_dim": rotary, "magnitude": 1.0}, [x, positions, freqs], [split])
    pairs = torch.view_as_complex(turned.reshape(5, heads, rotary // 2, 2))
    turns = 1.25 * torch.polar(torch.ones_like(angles), angles)[:, None]
    interleaved = torch.cat([torch.view_as_real(pairs * turns).flatten(2), rest], -1)
    case("rope", {"layout": "interleaved", "rotary_dim": rotary, "magnitude": 1.25}, [x, positions, freqs],
         [interleaved])

# Attention: segments of 3 and 5 rows, 4 query heads over 2 KV heads.
rows = 8
segment = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
index = torch.arange(rows)
for mask_name in ("causal", "bidirectional"):
    for window in (None, 1, 2, 3):
        for cap in (None, 2.0):
            q, k, v = randn(rows, 4, 5), randn(rows, 2, 5), randn(rows, 2, 5)
            seen = segment[:, None] == segment[None]
            if mask_name == "causal":
                seen &= index[None] <= index[:, None]
            if window is not None:
                seen &= index[None] > index[:, None] - window
                seen &= index[None] < index[:, None] + window
            scale = 0.4
            if cap is None:
                y = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k.transpose(0, 1)[None],
                                                   v.transpose(0, 1)[None], attn_mask=seen, scale=scale,
                                                   enable_gqa=True)[0].transpose(0, 1)
            else:
                scores = scale * torch.einsum("rhe,jhe->hrj", q, k.repeat_interleave(2, 1))
                scores = (cap * torch.tanh(scores / cap)).masked_fill(~seen, float("-inf"))
                y = torch.einsum("hrj,jhe->rhe", scores.softmax(-1), v.repeat_interleave(2, 1))
            case("attention", {"mask": mask_name, "window": window, "softcap": cap, "scale": scale}, [q, k, v], [y])

# Experts.
logits = randn(5, 6)
for k in (1, 2, 6):
    shares = F.softmax(logits, -1)
    values, chosen = shares.topk(k, -1)
    case("router_topk", {"k": k, "gating": "softmax_all"}, [logits], [chosen, values])
    case("router_topk", {"k": k, "gating": "softmax_chosen"}, [logits], [chosen, values / values.sum(-1, keepdim=True)])
chosen = logits.topk(2, -1).indices
w = randn(6, 7, 9)
x = randn(5, 9)
case("expert_linear", {}, [x, chosen, w], [torch.einsum("rk,rjnk->rjn", x, w[chosen])])
x = randn(5, 2, 9)
case("expert_linear", {}, [x, chosen, w], [torch.einsum("rjk,rjnk->rjn", x, w[chosen])])

# Convolution along the rows, one segment of 8 rows.
x, w, b = randn(8, 5), randn(4, 5, 3), randn(4)
for stride in (1, 2):
    y = F.conv1d(x.T[None], w, b, stride=stride, padding=1)[0].T
    case("conv1d", {"stride": stride, "padding": 1}, [x, w, b], [y])

base, indices, x = randn(4, 3), torch.tensor([2, 0, 2]), randn(3, 3)
case("index_add", {}, [base, indices, x], [base.index_add(0, indices, x)])

with open(sys.argv[1], "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
