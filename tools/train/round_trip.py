"""Adapters that `brasa train` writes, read by PEFT, MLX-LM and llama.cpp: logits beside those of `brasa --lora`.

    python tools/train/round_trip.py BRASA FOLDER [--only peft,mlx,gguf] [--mlx PYTHON]

tiny-llama learns a few examples, once for each form; then Brasa and the form's own program compute the logits of eight tokens in f32. Prints the relative L2
distance and the worst element beside the largest, and how much the adapter changes; fails above 1e-4. Runs with torch, transformers, peft and
llama-cpp-python; PYTHON has mlx-lm (0.32).
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/tiny-llama"
IDS = [5, 9, 77, 300, 12, 900, 33, 41]
BOUND = 1e-4


def of_peft(_: pathlib.Path, adapter: pathlib.Path) -> np.ndarray:
    import torch
    import transformers
    from peft import PeftModel

    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter).eval()
    return model(torch.tensor([IDS])).logits[0].detach().numpy()


def of_mlx(_: pathlib.Path, adapter: pathlib.Path) -> np.ndarray:
    import mlx.core as mx
    from mlx_lm import load

    mx.set_default_device(mx.cpu)
    model, _ = load(str(MODEL), adapter_path=str(adapter))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([IDS]))[0])


def of_gguf(gguf: pathlib.Path, adapter: pathlib.Path) -> np.ndarray:
    import ctypes

    import llama_cpp as llama

    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(gguf).encode(), llama.llama_model_default_params())
    parameters = llama.llama_context_default_params()
    parameters.type_k = parameters.type_v = parameters.flash_attn_type = 0  # f32, and no flash attention, which rounds
    context = llama.llama_init_from_model(model, parameters)
    lora = llama.llama_adapter_lora_init(model, str(adapter / "adapter.gguf").encode())
    assert lora, "llama.cpp refuses the adapter"
    loras = (llama.llama_adapter_lora_p_ctypes * 1)(lora)
    assert llama.llama_set_adapters_lora(context, loras, 1, (ctypes.c_float * 1)(1.0)) == 0
    batch = llama.llama_batch_init(len(IDS), 0, 1)
    batch.n_tokens = len(IDS)
    for i, token in enumerate(IDS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama.llama_decode(context, batch) == 0
    width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    return np.ctypeslib.as_array(llama.llama_get_logits(context), (len(IDS) * width,)).reshape(len(IDS), width).copy()


PROGRAMS = {"peft": of_peft, "mlx": of_mlx, "gguf": of_gguf}


def logits_of_brasa(brasa: str, out: pathlib.Path, *more: str) -> np.ndarray:
    command = [brasa, "logits", "-m", str(MODEL), "--ids", ",".join(map(str, IDS)), "--precision", "reference", "--out", str(out), "--force", *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return np.load(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="peft,mlx,gguf")
    parser.add_argument("--mlx", default=sys.executable, help="a Python with mlx-lm")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder
    gguf = folder / "tiny-llama.gguf"
    if options.one:
        np.save(folder / f"{options.one}.npy", PROGRAMS[options.one](gguf, folder / options.one))
        return 0
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"prompt": f"word {i}", "completion": f"answer {i * 7 % 13} {i}"}) for i in range(40)]
    (data / "train.jsonl").write_text("\n".join(rows) + "\n")
    subprocess.run([options.brasa, "quantize", str(MODEL), str(gguf), "F32", "--force"], check=True, capture_output=True)
    base = logits_of_brasa(options.brasa, folder / "base.npy")
    worst = 0.0
    for form in options.only.split(","):
        command = [options.brasa, "train", str(MODEL), "--data", str(data), "--out", str(folder / form), "--form", form, "--steps", "12", "--lr", "5e-3", "--rank", "4"]
        shutil.rmtree(folder / form, ignore_errors=True)
        subprocess.run(command, check=True, capture_output=True)
        adapter = folder / form / ("adapter.gguf" if form == "gguf" else "")
        ours = logits_of_brasa(options.brasa, folder / "brasa.npy", "--lora", str(adapter))
        python = options.mlx if form == "mlx" else sys.executable
        subprocess.run([python, __file__, options.brasa, str(folder), "--one", form], check=True, stderr=subprocess.DEVNULL)
        theirs = np.load(folder / f"{form}.npy")
        distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        element = np.abs(ours - theirs).max() / np.abs(theirs).max()
        change = np.linalg.norm(theirs - base) / np.linalg.norm(base)
        print(f"{form}: logits differ by {distance:.1e} (relative L2), {element:.1e} (worst element); the adapter changes {change:.2f}", flush=True)
        worst = max(worst, distance, element)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
