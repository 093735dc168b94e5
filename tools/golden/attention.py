#!/usr/bin/env python3
"""Golden values of attention with sinks and of latent attention, by transformers.

    python tools/golden/attention.py crates/brasa-graph/tests/golden/attention.json

`sinks`: the eager attention of gpt-oss. `latent`: DeepSeek-V3's attention, which is in its expanded form. The operands are those of
the absorbed form: queries that meet the latents, and latents with their turned keys, [rows, heads, width]; `up` maps what attention sums
up of the latents to each head's value, [heads, latent, value]. Arrays are {shape, f32}. All rows are of one text.
"""
import json
import sys

import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

torch.manual_seed(20261130)
torch.set_grad_enabled(False)


def array(t):
    # The shortest decimal that gives the same f32.
    return {"shape": list(t.shape), "f32": [float(str(x)) for x in t.float().flatten().numpy()]}


def mask(rows, window):
    i, j = torch.arange(rows)[:, None], torch.arange(rows)[None]
    seen = (j <= i) & (i - j < (window or rows))
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def sinks(heads, kv_heads, width, rows, window, scale):
    module = torch.nn.Module()
    module.num_key_value_groups = heads // kv_heads
    module.sinks = torch.nn.Parameter(torch.randn(heads) * 2)
    module.training = False
    q, k, v = (torch.randn(1, n, rows, width) for n in (heads, kv_heads, kv_heads))
    y, _ = gpt_oss.eager_attention_forward(module, q, k, v, mask(rows, window), scaling=scale)
    by_rows = lambda x: array(x[0].transpose(0, 1).contiguous())
    return {"window": window, "scale": scale, "q": by_rows(q), "k": by_rows(k), "v": by_rows(v),
            "sinks": array(module.sinks), "y": array(y[0])}


def latent(rows):
    config = deepseek.DeepseekV3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, qk_nope_head_dim=12, qk_rope_head_dim=8,
        v_head_dim=10, kv_lora_rank=24, q_lora_rank=20, max_position_embeddings=64, attn_implementation="eager")
    attention = deepseek.DeepseekV3Attention(config, 0).eval()
    for weight in attention.parameters():
        weight.copy_(torch.randn_like(weight) * (0.3 if weight.dim() > 1 else 1.0))
    attention.o_proj = torch.nn.Identity()
    x, positions = torch.randn(1, rows, 32), torch.arange(rows)[None]
    rope = deepseek.DeepseekV3RotaryEmbedding(config)(x, positions)
    y, _ = attention(x, rope, mask(rows, None))
    heads, n, r, v, c = 4, 12, 8, 10, 24
    q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x))).view(1, rows, heads, n + r).transpose(1, 2)
    q_nope, q_rope = q.split([n, r], -1)
    latents, k_rope = attention.kv_a_proj_with_mqa(x).split([c, r], -1)
    q_rope, k_rope = deepseek.apply_rotary_pos_emb_interleave(q_rope, k_rope.view(1, 1, rows, r), *rope)
    latents = attention.kv_a_layernorm(latents)
    up_k, up_v = attention.kv_b_proj.weight.view(heads, n + v, c).split([n, v], 1)
    absorbed = torch.einsum("bhrn,hnc->bhrc", q_nope, up_k)
    q = torch.cat([absorbed, q_rope], -1)[0].transpose(0, 1)
    k = torch.cat([latents[0][:, None], k_rope[0].transpose(0, 1)], -1)
    return {"scale": attention.scaling, "value": c, "q": array(q), "k": array(k),
            "up": array(up_v.transpose(1, 2).contiguous()), "y": array(y.view(rows, heads, v))}


cases = {
    "sinks": [sinks(4, 2, 8, 9, None, 8 ** -0.5), sinks(6, 2, 5, 12, 4, 0.7), sinks(3, 3, 16, 5, 1, 0.25)],
    "latent": [latent(7), latent(11)],
}
with open(sys.argv[1], "w") as file:
    json.dump(cases, file, separators=(",", ":"))
