#!/usr/bin/env python3
"""Golden values of operations with recurrent states, by transformers.

    python tools/golden/recurrences.py crates/brasa-graph/tests/golden/recurrences.json

Cases: the causal convolution and the gated delta rule of Qwen3-Next, token by token, and Mamba-2's scan, token by token (its chunked
form must agree). Each has operands, the result `y` of every row and the `state` after the last row, as our state pages hold it.
Arrays are {shape, f32}.
"""
import json
import sys

import torch
import torch.nn.functional as F
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    causal_conv1d_update,
    torch_recurrent_gated_delta_rule,
)

torch.manual_seed(20261130)
ROWS = 13
cases = []


def array(t):
    # The shortest decimal that gives the same f32.
    return {"shape": list(t.shape), "f32": [float(str(x)) for x in t.detach().float().flatten().numpy()]}


def case(name, operands, y, state):
    arrays = {key: array(value) for key, value in operands.items()}
    cases.append({"name": name, "operands": arrays, "y": array(y), "state": array(state)})


# Convolutions of 4 and 3 taps. The state is the last K − 1 rows.
for taps in (4, 3):
    x, w = torch.randn(ROWS, 10), torch.randn(10, taps)
    y = causal_conv1d_fn(x.T[None], w, activation="silu")[0].T
    state = torch.zeros(1, 10, taps - 1)
    steps = [causal_conv1d_update(row[None, :, None], state, w, activation="silu")[0, :, 0] for row in x]
    assert torch.allclose(torch.stack(steps), y, atol=1e-6)
    case("short_conv", {"x": x, "w": w}, y, state[0].T)

# The gated delta rule: value heads that are neighbours share a key head. Queries are divided by √E within.
key_heads, heads, key_dim, value_dim = 2, 4, 12, 9
q, k = (F.normalize(torch.randn(ROWS, key_heads, key_dim), dim=-1) for _ in range(2))
v, g = torch.randn(ROWS, heads, value_dim), -F.softplus(torch.randn(ROWS, heads))
beta = torch.sigmoid(torch.randn(ROWS, heads))
y, state = torch_recurrent_gated_delta_rule(
    q[None], k[None], v[None], g[None], beta[None], output_final_state=True
)
operands = {"q": q / key_dim**0.5, "k": k, "v": v, "decay": g.exp(), "beta": beta}
case("delta", operands, y[0], state[0])

# Mamba-2: heads that are neighbours share B and C. Its state is [P, N], ours [N, P].
groups, heads, head_dim, state_size = 2, 6, 7, 11
x, dt = torch.randn(ROWS, heads, head_dim), torch.randn(ROWS, heads) * 3
b, c = torch.randn(ROWS, groups, state_size), torch.randn(ROWS, groups, state_size)
bias, a = torch.randn(heads), -torch.rand(heads) * 2
state, rows = torch.zeros(1, heads, head_dim, state_size), []
for t in range(ROWS):
    each = [value[:, None].expand(heads, head_dim) for value in (dt[t], bias)]
    step = mamba2_selective_state_update(
        state, x[t][None], each[0][None, :, :], a[:, None, None].expand(heads, head_dim, state_size),
        b[t][None], c[t][None], dt_bias=each[1], dt_softplus=True,
    )
    rows.append(step[0])
y = torch.stack(rows)
chunked = mamba2_chunk_scan(
    x[None], dt[None], a, b[None], c[None], chunk_size=8, dt_bias=bias, dt_softplus=True
)[0]
assert torch.allclose(chunked, y, atol=1e-5), (chunked - y).abs().max()
case("mamba2", {"c": c, "b": b, "x": x, "dt": dt + bias, "a": a}, y, state[0].transpose(1, 2))

x = torch.cat([torch.linspace(-30, 30, 41), torch.tensor([1e-4, -1e-4, 90.0, -90.0])])
case("softplus", {"x": x}, F.softplus(x), x[:1])

with open(sys.argv[1], "w") as file:
    json.dump(cases, file, separators=(",", ":"))
