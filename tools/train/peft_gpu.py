"""How fast PEFT learns an adapter of all linear layers of a Llama with random weights on a GPU; the other side of brasa-cuda's `train_speed`.

    python tools/train/peft_gpu.py 8b|1b [--rows 2048] [--rank 16] [--updates 5] [--recompute] [--compile] [--f32-adapter]

Base and adapter are BF16; with --f32-adapter the adapter is F32 under autocast, as PEFT makes it unless told otherwise. Each update learns one text
of --rows tokens, all of them, by AdamW with clipping. --recompute is gradient checkpointing, --compile is torch.compile. The first three updates
are left out of the mean. Needs torch, transformers and peft.
"""

import argparse
import contextlib
import time

import torch
import transformers
from peft import LoraConfig, get_peft_model

SHAPES = {
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128),
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
               tie_word_embeddings=True),
}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEFT_OUT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--f32-adapter", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, **SHAPES[options.shape])
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        base = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    lora = LoraConfig(r=options.rank, lora_alpha=16, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, autocast_adapter_dtype=options.f32_adapter)
    model.train()
    base.config.use_cache = False
    if options.recompute:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    run = torch.compile(model) if options.compile else model
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True)
    arithmetic = torch.autocast("cuda", torch.bfloat16) if options.f32_adapter else contextlib.nullcontext()

    times = []
    for _ in range(LEFT_OUT + options.updates):
        ids = torch.randint(128256, (1, options.rows), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with arithmetic:
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    how = " ".join(f"--{name.replace('_', '-')}" for name in ("recompute", "compile", "f32_adapter") if getattr(options, name))
    speed = options.rows * options.updates / sum(times[LEFT_OUT:])
    gib = torch.cuda.max_memory_allocated() / 2**30
    print(f"PEFT {options.shape} BF16 {how}, {options.rows} rows: {speed:.0f} tokens/s, {gib:.1f} GiB, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
