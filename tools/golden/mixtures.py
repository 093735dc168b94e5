#!/usr/bin/env python3
"""Golden values of mixtures of experts, by the modules of transformers.

    python tools/golden/mixtures.py crates/brasa-graph/tests/golden/mixtures.json

Routers: logits, selection bias, chosen experts and their weights of a module of transformers. `gpt_oss_experts`: a whole mixture. Arrays
as {shape, f32} or {shape, u32}. Routers return experts in no order: rows are sorted by expert.
"""
import json
import sys

import torch
from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.lfm2_moe.configuration_lfm2_moe import Lfm2MoeConfig
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

torch.manual_seed(20261130)
ROWS, WIDTH = 9, 32
cases = {}


def array(t):
    if t.dtype in (torch.int64, torch.int32):
        return {"shape": list(t.shape), "u32": t.flatten().tolist()}
    # The shortest decimal that gives the same f32.
    return {"shape": list(t.shape), "f32": [float(str(x)) for x in t.detach().float().flatten().numpy()]}


def fill(module):
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    return module


def router(name, params, forward, bias=None):
    x = torch.randn(ROWS, WIDTH) * 0.4
    with torch.no_grad():
        logits, weights, experts = forward(x)
    order = experts.argsort(-1)
    case = {"name": name, "params": params, "logits": array(logits), "experts": array(experts.gather(-1, order)),
            "weights": array(weights.gather(-1, order))}
    if bias is not None:
        case["bias"] = array(bias)
    cases.setdefault("routers", []).append(case)


gate = fill(GptOssTopKRouter(GptOssConfig(hidden_size=WIDTH, num_local_experts=16, num_experts_per_tok=4)))
router("gpt_oss", {"k": 4, "scores": "softmax_chosen", "scale": 1.0}, gate)

for norm, scale in ((True, 2.5), (False, 1.0)):
    config = DeepseekV3Config(hidden_size=WIDTH, n_routed_experts=32, num_experts_per_tok=6, n_group=8, topk_group=3,
                              norm_topk_prob=norm, routed_scaling_factor=scale)
    gate = fill(DeepseekV3TopkRouter(config))
    gate.e_score_correction_bias.copy_(torch.randn(32) * 0.2)
    params = {"k": 6, "scores": "sigmoid", "scale": scale, "groups": 8, "kept": 3, "group_score": "top_two"}
    router("deepseek_v3", params | ({"norm_eps": 1e-20} if norm else {}), gate, gate.e_score_correction_bias)

config = DeepseekV2Config(hidden_size=WIDTH, n_routed_experts=24, num_experts_per_tok=5, n_group=6, topk_group=2,
                          topk_method="group_limited_greedy", routed_scaling_factor=16.0)
params = {"k": 5, "scores": "softmax_all", "scale": 16.0, "groups": 6, "kept": 2, "group_score": "max"}
router("deepseek_v2", params, fill(DeepseekV2TopkRouter(config)))

config = Lfm2MoeConfig(hidden_size=WIDTH, num_experts=20, num_experts_per_tok=4, norm_topk_prob=True,
                       routed_scaling_factor=1.5, use_expert_bias=True)
gate, bias = fill(Lfm2MoeTopKRouter(config)), torch.randn(20) * 0.3
router("lfm2_moe", {"k": 4, "scores": "sigmoid", "scale": 1.5, "norm_eps": 1e-6}, lambda x: gate(x, bias), bias)

# Gates and ups in turns, as the published files store their rows: [X, 2F, D] and [X, D, F]. Large enough that both clamps are met.
config = GptOssConfig(hidden_size=12, intermediate_size=10, num_local_experts=6, num_experts_per_tok=2)
experts = fill(GptOssExperts(config))
x = torch.randn(ROWS, 12) * 2
weights, chosen = torch.rand(ROWS, 6).topk(2, -1)
with torch.no_grad():
    y = experts(x, chosen, weights)
cases["gpt_oss_experts"] = {
    "alpha": experts.alpha, "limit": experts.limit, "x": array(x), "experts": array(chosen), "weights": array(weights),
    "gate_up": array(experts.gate_up_proj.transpose(1, 2)), "gate_up_bias": array(experts.gate_up_proj_bias),
    "down": array(experts.down_proj.transpose(1, 2)), "down_bias": array(experts.down_proj_bias), "y": array(y)}

positions = torch.tensor([0, 1, 8191, 8192, 16383, 16384, 200_000, 1_000_000])
scale = get_llama_4_attn_scale(positions[None], 0.1, 8192).flatten()
cases["position_scale"] = {"beta": 0.1, "positions": 8192, "at": array(positions), "factors": array(scale)}

with open(sys.argv[1], "w") as f:
    json.dump(cases, f, separators=(",", ":"))
    f.write("\n")
