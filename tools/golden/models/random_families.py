#!/usr/bin/env python3
"""Tiny random checkpoints of every supported family and variant, with golden values by transformers.

    python tools/golden/models/random_families.py [NAME ...]

writes `models/random/NAME/{config.json, model.safetensors, golden.safetensors}`. The weights are random, so
the text means nothing; what a checkpoint is good for is to be computed *differently* by every engine that
misses one of its features. That is checked here rather than hoped: a recipe lists changes to its
configuration (`matters`), and each of them must move the last logits by more than 1 % in relative L2.

config.json is written as published checkpoints write it (old and new rope keys both occur), not as
transformers would save it. The golden values come from the files as they lie on disk.

golden.safetensors (f32 unless said otherwise; V is the vocabulary):

    short.ids            i32 [12]     prompt
    short.logits         [12, V]      after soft-capping
    short.nll            [1]          mean of -log p over all prompt tokens but the first, nats
    short.greedy_ids     i32 [24]     argmax continuation, every step recomputed from scratch
    short.greedy_margins [24]         gap between the best and the second-best logit at each step
    long.*                            the same for 80 tokens (longer than every window), but
    long.last            [V]          only the last row of logits

Seeds are tried in order until no greedy margin is below 0.01, so that greedy ids leave no room for rounding, and
until the continuations have 6 different tokens each, so that they do not just repeat themselves.
"""

import copy
import json
import math
import pathlib
import shutil
import sys
import tempfile
import zlib
from dataclasses import dataclass, field

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3] / "models" / "random"
SHORT, LONG, GREEDY = 12, 80, 24
MARGIN, DISTINCT = 0.01, 6

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass
class Recipe:
    """A configuration, and the changes to it that must change the answer."""

    config: dict
    matters: list = field(default_factory=list)
    dtype: str = "bfloat16"


def family(architecture: str, model_type: str, **keys) -> dict:
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "vocab_size": 160,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-05,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    config.update(keys)
    return {key: value for key, value in config.items() if value != "absent"}


def llama(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False,
            "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "head_dim": 16}
    return family("LlamaForCausalLM", "llama", **{**base, **keys})


def mistral(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 10000.0, "sliding_window": None, "tie_word_embeddings": False}
    return family("MistralForCausalLM", "mistral", **{**base, **keys})


def qwen2(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 10000.0, "sliding_window": None, "use_sliding_window": False,
            "max_window_layers": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": True}
    return family("Qwen2ForCausalLM", "qwen2", **{**base, **keys})


def qwen3(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None, "head_dim": 16,
            "use_sliding_window": False, "max_window_layers": 2, "rms_norm_eps": 1e-06, "attention_bias": False,
            "tie_word_embeddings": True}
    return family("Qwen3ForCausalLM", "qwen3", **{**base, **keys})


def qwen3_moe(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None, "head_dim": 16,
            "use_sliding_window": False, "max_window_layers": 2, "rms_norm_eps": 1e-06, "attention_bias": False,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 24, "norm_topk_prob": True,
            "num_experts": 6, "num_experts_per_tok": 3, "output_router_logits": False,
            "router_aux_loss_coef": 0.001, "tie_word_embeddings": False}
    return family("Qwen3MoeForCausalLM", "qwen3_moe", **{**base, **keys})


def gemma3(**keys) -> dict:
    base = {"attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 3, "query_pre_attn_scalar": 16,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 100.0, "rope_scaling": None, "rope_theta": 10000.0,
            "sliding_window": 16, "sliding_window_pattern": 3, "tie_word_embeddings": "absent"}
    return family("Gemma3ForCausalLM", "gemma3_text", **{**base, **keys})


def gemma4(**keys) -> dict:
    base = {"attention_bias": False, "attention_k_eq_v": False, "enable_moe_block": False,
            "final_logit_softcapping": 2.0, "head_dim": 8, "global_head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
            "layer_types": ["sliding_attention", "full_attention"], "moe_intermediate_size": None, "num_experts": None,
            "num_global_key_value_heads": None, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000.0, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}},
            "sliding_window": 16, "tie_word_embeddings": True, "top_k_experts": None,
            "use_bidirectional_attention": None, "use_double_wide_mlp": False, "vocab_size_per_layer_input": 160}
    return family("Gemma4ForCausalLM", "gemma4_text", **{**base, **keys})


def phi3(**keys) -> dict:
    base = {"hidden_act": "silu", "rope_theta": 10000.0, "rope_scaling": None, "sliding_window": None, "embd_pdrop": 0.0,
            "resid_pdrop": 0.0, "attention_bias": False, "original_max_position_embeddings": 512,
            "tie_word_embeddings": False, "num_key_value_heads": 4}
    return family("Phi3ForCausalLM", "phi3", **{**base, **keys})


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
          "rope_type": "llama3"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
SHORT_FACTOR = [1.0, 1.05, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0]
LONG_FACTOR = [1.2, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0]


def yarn(**keys) -> dict:
    return {"rope_theta": 1000.0, "max_position_embeddings": 4096, "rope_scaling": {**YARN, **keys}}


def unscaled(rope: dict, **change) -> dict:
    """The same checkpoint with one rope key different."""
    return {"rope_scaling": {**rope, **change}}


RECIPES = {
    # Llama 1 and 2: every head has its own keys, nothing is shared, no biases.
    "llama2": Recipe(llama(num_key_value_heads=4, head_dim="absent", rope_theta="absent", pretraining_tp="absent"),
                     [{"rope_theta": 500.0}, {"rms_norm_eps": 1e-1}], dtype="float32"),
    "llama2-tied": Recipe(llama(num_key_value_heads=4, head_dim="absent", tie_word_embeddings=True), [], dtype="float16"),
    "llama31": Recipe(llama(rope_theta=500000.0, rope_scaling=LLAMA3),
                      [{"rope_scaling": None}, unscaled(LLAMA3, low_freq_factor=2.0), unscaled(LLAMA3, high_freq_factor=8.0)]),
    "llama32-tied": Recipe(llama(rope_theta=500000.0, rope_scaling={**LLAMA3, "factor": 32.0}, tie_word_embeddings=True,
                                 head_dim=8), [{"rope_scaling": None}]),
    "llama-rope-parameters": Recipe(  # the keys of transformers 5
        llama(rope_theta="absent", rope_scaling="absent", rope_parameters={**LLAMA3, "rope_theta": 5000.0}),
        [{"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, {"rope_parameters": {**LLAMA3, "rope_theta": 10000.0}}]),
    "llama-linear": Recipe(llama(rope_scaling={"type": "linear", "factor": 4.0}), [{"rope_scaling": None}]),
    "llama-yarn": Recipe(llama(**yarn()), [{"rope_scaling": None}, unscaled(YARN, attention_factor=1.0),
                                           unscaled(YARN, beta_fast=8.0), unscaled(YARN, beta_slow=8.0)]),
    "llama-yarn-mscale": Recipe(llama(**yarn(mscale=2.0, mscale_all_dim=0.5)),
                                [unscaled(YARN), unscaled(YARN, attention_factor=1.0)]),
    "llama-yarn-explicit": Recipe(
        llama(**yarn(attention_factor=0.8, beta_fast=16.0, beta_slow=2.0, truncate=False)),
        [unscaled(YARN, beta_fast=16.0, beta_slow=2.0, truncate=False), unscaled(YARN, attention_factor=0.8, truncate=False),
         unscaled(YARN, attention_factor=0.8, beta_fast=16.0, beta_slow=2.0)]),
    "llama-biased-tied": Recipe(llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), []),
    "llama-wide-heads": Recipe(llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=20), []),
    # Mistral 7B v0.1 has a window, later ones none; Nemo's heads are wider than hidden / heads.
    "mistral-window": Recipe(mistral(sliding_window=16), [{"sliding_window": None}, {"sliding_window": 15}, {"sliding_window": 17}]),
    "mistral": Recipe(mistral(head_dim=16, rope_theta=1000000.0), [{"rope_theta": 10000.0}]),
    "mixtral": Recipe(family("MixtralForCausalLM", "mixtral", hidden_act="silu", rope_theta=1000000.0, sliding_window=None,
                             num_local_experts=4, num_experts_per_tok=2, output_router_logits=False,
                             router_aux_loss_coef=0.02, tie_word_embeddings=False, intermediate_size=40),
                      [{"num_experts_per_tok": 1}, {"num_experts_per_tok": 3}]),
    "qwen2": Recipe(qwen2(), []),
    "qwen2-untied": Recipe(qwen2(tie_word_embeddings=False), []),
    "qwen2-window": Recipe(qwen2(use_sliding_window=True, sliding_window=16, max_window_layers=1, num_hidden_layers=3),
                           [{"use_sliding_window": False}, {"max_window_layers": 0}, {"max_window_layers": 2}]),
    "qwen2-yarn": Recipe(  # as the Qwen2.5 cards tell users to write it
        qwen2(num_attention_heads=2, num_key_value_heads=1, rope_theta=1000.0, max_position_embeddings=4096,
              rope_scaling={"factor": 4.0, "original_max_position_embeddings": 1024, "type": "yarn"}),
        [{"rope_scaling": None}]),
    "qwen3": Recipe(qwen3(), [{"rms_norm_eps": 1e-1}]),
    "qwen3-untied": Recipe(qwen3(tie_word_embeddings=False, num_attention_heads=3, num_key_value_heads=1, head_dim=24), []),
    "qwen3moe": Recipe(qwen3_moe(), [{"norm_topk_prob": False}, {"num_experts_per_tok": 2}]),
    "qwen3moe-raw-sparse-step": Recipe(qwen3_moe(norm_topk_prob=False, decoder_sparse_step=2),
                                       [{"norm_topk_prob": True}]),
    "qwen3moe-mlp-only": Recipe(qwen3_moe(mlp_only_layers=[0], num_hidden_layers=3, tie_word_embeddings=True),
                                [{"norm_topk_prob": False}]),
    # The first Gemma files say "gelu" and mean its tanh form.
    "gemma": Recipe(family("GemmaForCausalLM", "gemma", hidden_act="gelu", hidden_activation=None, head_dim=16,
                           num_key_value_heads=1, rms_norm_eps=1e-06, rope_theta=10000.0, rope_scaling=None,
                           attention_bias=False), [{"rms_norm_eps": 1e-1}]),
    "gemma2": Recipe(family("Gemma2ForCausalLM", "gemma2", hidden_act="gelu_pytorch_tanh",
                            hidden_activation="gelu_pytorch_tanh", head_dim=16, rms_norm_eps=1e-06, rope_theta=10000.0,
                            attention_bias=False, attn_logit_softcapping=2.0, final_logit_softcapping=2.0,
                            query_pre_attn_scalar=9, sliding_window=16, cache_implementation="hybrid", num_hidden_layers=3),
                     [{"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, {"query_pre_attn_scalar": 16},
                      {"sliding_window": 500}, {"sliding_window": 17}, {"layer_types": ["full_attention"] * 3},
                      {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}]),
    "gemma3": Recipe(gemma3(), [{"sliding_window": 500}, {"sliding_window": 17}, {"rope_local_base_freq": 10000.0},
                                {"rope_theta": 100.0}, {"sliding_window_pattern": 2}]),
    "gemma3-linear": Recipe(  # 4B and larger: the full layers' rope is scaled, the window layers' is not
        gemma3(rope_scaling={"factor": 8.0, "rope_type": "linear"}, query_pre_attn_scalar=7,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        [{"rope_scaling": None}, {"query_pre_attn_scalar": 16}, {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}]),
    "gemma4": Recipe(  # as E2B: per-layer inputs, last layers read earlier layers' caches and are twice as wide
        gemma4(hidden_size_per_layer_input=8, num_kv_shared_layers=2, use_double_wide_mlp=True, num_hidden_layers=4,
               num_key_value_heads=1, layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        [{"sliding_window": 500}, {"final_logit_softcapping": None}]),
    "gemma4-keys-are-values": Recipe(  # as 31B: full layers have no value projection and their own head count
        gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, num_hidden_layers=3,
               layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        [{"sliding_window": 500},
         {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000.0, "rope_type": "proportional"},
                              "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}}}]),
    "gemma4-moe": Recipe(  # as 26B-A4B: a dense and a sparse MLP side by side
        gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2,
               moe_intermediate_size=24),
        [{"top_k_experts": 1}, {"top_k_experts": 3}]),
    "phi3": Recipe(phi3(), []),
    "phi3-window": Recipe(phi3(sliding_window=16, num_key_value_heads=2), [{"sliding_window": None}, {"sliding_window": 17}]),
    "phi3-longrope": Recipe(  # 80 tokens exceed the original context and take the long factors, 12 + 24 do not
        phi3(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, original_max_position_embeddings=48,
             rope_scaling={"type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR}),
        [{"rope_scaling": None}, {"original_max_position_embeddings": 100},
         {"rope_scaling": {"type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": SHORT_FACTOR}},
         {"max_position_embeddings": 512}]),
    "phi4-mini": Recipe(  # partial rotation, tied, grouped; the factors cover the rotated part only
        phi3(num_attention_heads=2, num_key_value_heads=1, partial_rotary_factor=0.75, tie_word_embeddings=True,
             max_position_embeddings=256, original_max_position_embeddings=48,
             rope_scaling={"type": "longrope", "short_factor": SHORT_FACTOR[:6], "long_factor": LONG_FACTOR[:6]}),
        [{"rope_scaling": None}]),
    # For block formats end to end: every K a multiple of 256 (no K-quant falls back), and none of them.
    "k256": Recipe(llama(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
                         num_hidden_layers=1, tie_word_embeddings=True), []),
    "k-ragged": Recipe(qwen3(hidden_size=96, intermediate_size=352, num_attention_heads=5, num_key_value_heads=1,
                             head_dim=32), []),
}


def parts(name: str) -> set:
    return set(name.split("."))


def gain(name: str) -> float:
    """Queries and keys decide, branches outweigh the embedding, routers spread: every part is heard in the logits."""
    part = parts(name)
    if part & {"q_proj", "k_proj", "qkv_proj"}:
        return 1.4
    if part & {"o_proj", "down_proj", "w2", "per_layer_projection"}:
        return 2.0
    if "router" in part or name.endswith("mlp.gate.weight") or name.endswith("block_sparse_moe.gate.weight"):
        return 1.0
    return 1.2


@torch.no_grad()
def randomise(model, config: dict, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model_type, hidden_size = config["model_type"], config["hidden_size"]
    offset_norms = model_type in ("gemma", "gemma2", "gemma3_text")
    scaled_embedding = model_type.startswith("gemma")
    named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n.endswith("layer_scalar")]
    for name, tensor in sorted(named):
        noise = torch.randn(tensor.shape, generator=generator)
        if "embed_tokens_per_layer" in name:
            tensor.copy_(noise / math.sqrt(config["hidden_size_per_layer_input"]))
        elif "embed_tokens" in name:
            tensor.copy_(noise * (1.0 / math.sqrt(hidden_size) if scaled_embedding else 0.6 * math.sqrt(32 / hidden_size)))
        elif name.endswith(".bias"):
            tensor.copy_(0.5 * noise)
        elif tensor.dim() == 1:  # norms and scales
            tensor.copy_(0.3 * noise if offset_norms else (1.0 + 0.3 * noise).clamp(0.3, 1.7))
            if model_type != "gemma" and parts(name) & {"post_attention_layernorm", "post_feedforward_layernorm"} and scaled_embedding:
                tensor.add_(1.0)  # Gemma norms a branch before adding it; this is where its volume is set
        else:
            tensor.copy_(noise * gain(name) / math.sqrt(tensor.shape[-1]))


def load(folder: pathlib.Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def logits_of(model, ids: list) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def mean_nll(logits: torch.Tensor, ids: list) -> float:
    log_p = torch.log_softmax(logits[:-1].double(), -1)
    return -log_p[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean().item()


def greedy(model, ids: list) -> tuple:
    ids, chosen, margins = list(ids), [], []
    for _ in range(GREEDY):
        best = logits_of(model, ids)[-1].topk(2)
        chosen.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        ids.append(chosen[-1])
    return chosen, margins


def write_config(folder: pathlib.Path, config: dict) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(folder: pathlib.Path, recipe: Recipe, seed: int) -> None:
    config = {**recipe.config, "torch_dtype": recipe.dtype}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation="eager")
    randomise(model, config, seed)
    model.to(getattr(torch, recipe.dtype)).save_pretrained(folder)
    write_config(folder, config)
    (folder / "generation_config.json").unlink(missing_ok=True)


def prompts(name: str, vocab: int) -> tuple:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return tuple([1] + torch.randint(3, vocab, (n - 1,), generator=generator).tolist() for n in (SHORT, LONG))


def golden(folder: pathlib.Path, name: str, config: dict) -> dict:
    model = load(folder)
    out = {}
    for label, ids in zip(("short", "long"), prompts(name, config["vocab_size"])):
        logits = logits_of(model, ids)
        chosen, margins = greedy(model, ids)
        out[f"{label}.ids"] = torch.tensor(ids, dtype=torch.int32)
        out[f"{label}.nll"] = torch.tensor([mean_nll(logits, ids)])
        out[f"{label}.greedy_ids"] = torch.tensor(chosen, dtype=torch.int32)
        out[f"{label}.greedy_margins"] = torch.tensor(margins)
        if label == "short":
            out["short.logits"] = logits.contiguous()
        else:
            out["long.last"] = logits[-1].contiguous()
    return out


def relative_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def check_matters(folder: pathlib.Path, recipe: Recipe, values: dict) -> list:
    moved = []
    for change in recipe.matters:
        with tempfile.TemporaryDirectory() as other:
            other = pathlib.Path(other)
            shutil.copy(folder / "model.safetensors", other)
            config = copy.deepcopy(recipe.config)
            config.update(change)
            write_config(other, config)
            moved.append((relative_l2(logits_of(load(other), values["long.ids"].tolist())[-1], values["long.last"]), change))
    return moved


def build(name: str) -> tuple:
    recipe, folder = RECIPES[name], ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    for attempt in range(200):
        seed = zlib.crc32(f"{name}/{attempt}".encode())
        make(folder, recipe, seed)
        values = golden(folder, name, recipe.config)
        margin = min(values["short.greedy_margins"].min().item(), values["long.greedy_margins"].min().item())
        distinct = min(len(set(values[f"{label}.greedy_ids"].tolist())) for label in ("short", "long"))
        if margin >= MARGIN and distinct >= DISTINCT:
            break
    else:
        raise SystemExit(f"{name}: no seed gives margins above {MARGIN} and {DISTINCT} tokens")
    save_file(values, folder / "golden.safetensors",
              metadata={"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager", "seed": str(seed)})
    moved = check_matters(folder, recipe, values)
    for distance, change in moved:
        if not distance > 0.01:
            raise SystemExit(f"{name}: {change} changes the logits by {distance:.2e} only")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:26} {size / 1000:7.1f} kB  seed {attempt:2}  smallest margin {margin:.3f}  logit std {values['short.logits'].std():.2f}"
          f"  {distinct:2}/{GREEDY} distinct  nll {values['long.nll'].item():.2f}  smallest effect {min((d for d, _ in moved), default=float('nan')):.3f}", flush=True)
    return name, size


if __name__ == "__main__":
    torch.set_num_threads(1)
    sizes = [build(name) for name in (sys.argv[1:] or RECIPES)]
    print(f"{len(sizes)} checkpoints, {sum(size for _, size in sizes) / 1e6:.2f} MB")
