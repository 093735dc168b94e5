#!/usr/bin/env python3
"""Low-rank adapters of PEFT, MLX-LM and llama.cpp's converter, and what they make of the random checkpoints.

    python tools/golden/models/adapters.py make LLAMA_CPP
    python tools/golden/models/adapters.py check WRITTEN [LLAMA_SERVER]

`make` writes `models/random-adapters/NAME/{peft, mlx, adapter.gguf}`, each where the base has that form, with
`golden.safetensors`: `ids` i32 `[12]` and f32 `[12, V]` logits `peft` and `mlx`, of transformers + PEFT and of MLX-LM in
float32. `adapter.gguf` is what convert_lora_to_gguf.py of the llama.cpp sources in LLAMA_CPP makes of `peft`.

`check` reads adapters that Brasa wrote (`BRASA_KEEP_ADAPTERS=WRITTEN cargo test -p brasa-models adapters`), in
`WRITTEN/NAME/{peft, mlx, adapter.gguf}`, with PEFT, MLX-LM and, where the base is in `models/random-gguf`, with the program
LLAMA_SERVER of llama.cpp, and compares logits with the golden ones; llama.cpp's as log-probabilities behind the prompt.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

import gguf
import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models"
OUT = MODELS / "random-adapters"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = ["gate_proj", "up_proj", "down_proj"]

PEFT = {
    "llama31": (dict(r=4, lora_alpha=10, target_modules=[*ATTENTION, *DENSE, "lm_head"]), torch.float32),
    "phi3": (dict(r=4, lora_alpha=6, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], use_rslora=True,
                  rank_pattern={"o_proj": 2, r"layers\.1\.mlp.*": 3}, alpha_pattern={"model.layers.0.mlp.down_proj": 9}),
             torch.bfloat16),
    "gemma2": (dict(r=2, lora_alpha=4, target_modules=ATTENTION, layers_to_transform=[1]), torch.float16),
    "gemma3": (dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], use_dora=True), torch.float32),
}
MLX = {
    "llama31": dict(rank=3, scale=2.5, dropout=0.0),
    "mistral": dict(rank=4, scale=1.5, dropout=0.0, keys=["self_attn.q_proj", "mlp.down_proj", "lm_head"]),
    "mixtral": dict(rank=2, scale=2.0, dropout=0.0),
    "qwen3moe": dict(rank=2, scale=2.0, dropout=0.0),
}
GGUF = ["llama31"]
# Bases with settings that llama.cpp does not read.
OTHER_IN_LLAMA_CPP = ["gemma2"]


def ids_of(name: str) -> np.ndarray:
    return load_file(MODELS / "random" / name / "golden.safetensors")["short.ids"]


def base(name: str):
    return AutoModelForCausalLM.from_pretrained(
        MODELS / "random" / name, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def torch_logits(model, ids: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].float().numpy().copy()


def mlx_base(name: str):
    model, config = load_model(MODELS / "random" / name, lazy=True)
    model.set_dtype(mx.float32)
    return model, config


def mlx_logits(model, ids: np.ndarray) -> np.ndarray:
    return np.array(model(mx.array(ids.astype(np.int32))[None])[0].astype(mx.float32))


@torch.no_grad()
def make_peft(name: str, folder: pathlib.Path) -> np.ndarray:
    settings, dtype = PEFT[name]
    torch.manual_seed(3)
    model = get_peft_model(base(name), LoraConfig(task_type="CAUSAL_LM", **settings))
    for key, parameter in model.named_parameters():
        if "lora_A" in key or "lora_B" in key:
            parameter.copy_((torch.randn(parameter.shape) * 0.2).to(dtype))
        elif "lora_magnitude" in key:
            parameter.mul_(1 + 0.2 * torch.rand(parameter.shape))
    logits = torch_logits(model.eval(), ids_of(name))
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder / "peft")
    (folder / "peft" / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "peft" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name
    (folder / "peft" / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return logits


def make_mlx(name: str, folder: pathlib.Path) -> np.ndarray:
    mx.random.seed(5)
    model, _ = mlx_base(name)
    model.freeze()
    linear_to_lora_layers(model, len(model.layers), MLX[name])
    changed = [(key, mx.random.normal(value.shape) * 0.2) for key, value in tree_flatten(model.trainable_parameters())]
    model.load_weights(changed, strict=False)
    logits = mlx_logits(model, ids_of(name))
    (folder / "mlx").mkdir()
    # As mlx_lm.lora saves them.
    mx.save_safetensors(str(folder / "mlx" / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters())))
    config = {"fine_tune_type": "lora", "model": name, "num_layers": len(model.layers), "lora_parameters": MLX[name]}
    (folder / "mlx" / "adapter_config.json").write_text(json.dumps(config, indent=4) + "\n")
    return logits


def make(llama_cpp: str) -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    for name in sorted({*PEFT, *MLX}):
        folder = OUT / name
        folder.mkdir(parents=True)
        golden = {"ids": ids_of(name).astype(np.int32)}
        if name in PEFT:
            golden["peft"] = make_peft(name, folder)
        if name in MLX:
            golden["mlx"] = make_mlx(name, folder)
        if name in GGUF:
            subprocess.run(
                [sys.executable, pathlib.Path(llama_cpp) / "convert_lora_to_gguf.py", folder / "peft", "--base",
                 MODELS / "random" / name, "--outfile", folder / "adapter.gguf", "--outtype", "f32"], check=True)
        save_file(golden, folder / "golden.safetensors")
        print(name, {key: value.shape for key, value in golden.items()})


def compare(label: str, found: np.ndarray, expected: np.ndarray, bound: float = 1e-5) -> None:
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    print(f"{label}: relative L2 {error:.2e}, worst {np.abs(found - expected).max():.2e}")
    assert error < bound, label


def with_merges(source: pathlib.Path, target: pathlib.Path) -> None:
    """The GGUF file with a merge in its vocabulary, without which llama.cpp does not load it."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "tokenizer.ggml.merges"):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    writer.add_token_merges(["< 1"])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_logprobs(server: str, source: pathlib.Path, adapter: pathlib.Path, ids: np.ndarray) -> np.ndarray:
    """Log-probabilities behind `ids`, with f32 keys and values."""
    port, count = 18477, 160
    base = adapter.parent / "base.gguf"
    with_merges(source, base)
    command = [server, "-m", base, "--lora", adapter, "--port", str(port), "-c", "512", "-ctk", "f32", "-ctv", "f32", "-t", "1",
               "--no-warmup", "-fa", "off"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            body = {"prompt": ids.tolist(), "n_predict": 1, "n_probs": count, "temperature": 0}
            for _ in range(100):
                try:
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
                    reply = json.load(urllib.request.urlopen(request))
                    break
                except OSError:
                    time.sleep(0.1)
        finally:
            process.terminate()
    logprobs = np.zeros(count, np.float32)
    for entry in reply["completion_probabilities"][0]["top_logprobs"]:
        logprobs[entry["id"]] = entry["logprob"]
    return logprobs


def check(written: pathlib.Path, server: str | None) -> None:
    count = 0
    for folder in sorted(written.iterdir()):
        name = folder.name.split("-from-")[0]
        golden = load_file(OUT / name / "golden.safetensors")
        expected = golden[folder.name.split("-from-")[1]]
        if (folder / "peft").exists():
            compare(f"{folder.name} by PEFT", torch_logits(
                PeftModel.from_pretrained(base(name), folder / "peft").eval(), golden["ids"]), expected)
            count += 1
        if (folder / "mlx").exists():
            model, _ = mlx_base(name)
            compare(f"{folder.name} by MLX-LM", mlx_logits(load_adapters(model, folder / "mlx"), golden["ids"]), expected)
            count += 1
        source = MODELS / "random-gguf" / f"{name}.gguf"
        if server and source.exists() and name not in OTHER_IN_LLAMA_CPP:
            last = torch.log_softmax(torch.from_numpy(expected[-1]), 0).numpy()
            found = llama_cpp_logprobs(server, source, folder / "adapter.gguf", golden["ids"])
            # Its products of float weights round activations to 16 bits.
            compare(f"{folder.name} by llama.cpp", found, last, 5e-3)
            count += 1
    assert count, "nothing to check"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", llama_cpp]:
            make(llama_cpp)
        case ["check", written, *server]:
            check(pathlib.Path(written), *(server or [None]))
        case _:
            sys.exit(__doc__)
