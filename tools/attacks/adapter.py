"""Small adapters for the built-in model, in PEFT's form."""

import json
import os
import random
import struct


def make(folder, seed, rank=4, width=512, layers=7):
    """Writes an adapter of all `q_proj`, whose numbers depend on `seed`."""
    os.makedirs(folder, exist_ok=True)
    draw, head, data = random.Random(seed), {}, []
    end = 0
    for layer in range(layers):
        for part, shape in (("A", [rank, width]), ("B", [width, rank])):
            numbers = [draw.gauss(0, 0.05) for _ in range(rank * width)]
            data.append(struct.pack(f"<{len(numbers)}f", *numbers))
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + len(data[-1])]}
            end += len(data[-1])
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    with open(f"{folder}/adapter_config.json", "w") as file:
        json.dump(config, file)
