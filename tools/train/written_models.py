#!/usr/bin/env python3
"""Models that `brasa train --method full` wrote, loaded by transformers: the same logits.

    python tools/train/written_models.py BRASA NAME...     (needs torch, transformers, safetensors, huggingface_hub)

BRASA is the command, each NAME a checkpoint in models/ (tiny-llama, tiny-qwen2, tiny-gemma3, tiny-qwen3moe) or in models/random with a tokenizer. Each learns eight updates of four
examples. Prints, for the written folder, the relative L2 of Brasa's logits (reference precision) against transformers' in f32 on the same folder, and how far the model moved: the
relative L2 of its logits against the base's. Then the folder is written once more in shards of 1 MB, which transformers loads, and splits in the same way when it saves. Exits with 1 above
1e-4, if transformers misses a tensor or finds one too many, or if a tensor of the shards, their index or their split differs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
IDS = [1, 17, 300, 42, 7, 256, 99, 1000, 5, 64]
WORDS = [("cat", "cats"), ("box", "boxes"), ("lady", "ladies"), ("dog", "dogs")]


def logits_of_brasa(brasa: str, model: pathlib.Path, work: pathlib.Path) -> np.ndarray:
    out = work / "logits.npy"
    ids = ",".join(map(str, IDS))
    subprocess.run([brasa, "logits", "-m", model, "--ids", ids, "--precision", "reference", "--out", out, "--force"], check=True, capture_output=True)
    return np.load(out)


def main() -> int:
    brasa, names = sys.argv[1], sys.argv[2:]
    failed = False
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            rows = [{"prompt": f"Plural of {word}?", "completion": answer} for word, answer in WORDS]
            (work / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            run = ["train", MODELS / name, "--data", work, "--out", work / "out", "--method", "full", "--steps", "8", "--lr", "1e-3"]
            subprocess.run([brasa, *run], check=True, capture_output=True)
            written = work / "out/model"
            model, info = AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32, output_loading_info=True)
            strange = {key: list(value) for key, value in info.items() if value}
            with torch.no_grad():
                expected = model.eval()(torch.tensor([IDS])).logits[0].numpy()
            found, base = (logits_of_brasa(brasa, path, work) for path in (written, MODELS / name))
            distance = lambda a, b: np.linalg.norm(a - b) / np.linalg.norm(b)
            error, moved = distance(found, expected), distance(found, base)
            print(f"{name}: {error:.1e} of transformers' logits, {moved:.2f} of the base's {strange or ''}")
            failed |= bool(error > 1e-4 or strange or moved < 0.01)
            subprocess.run([brasa, *run, "--resume", "--max-shard-size", "1MB"], check=True, capture_output=True)
            sharded, info = AutoModelForCausalLM.from_pretrained(written, dtype="auto", output_loading_info=True)
            index = json.loads((written / "model.safetensors.index.json").read_text())
            kept = model.state_dict()
            wrong = [key for key, value in sharded.state_dict().items() if not torch.equal(value.float(), kept[key])]
            stored = {}
            for path in sorted(written.glob("*.safetensors")):
                with safe_open(path, "pt") as file:
                    stored |= {key: (path.name, file.get_tensor(key)) for key in file.keys()}
            size = sum(value.numel() * value.element_size() for _, value in stored.values())
            promised = {key: file for key, (file, _) in stored.items()}
            order = {key: value for key, (_, value) in stored.items()}
            split = split_torch_state_dict_into_shards(order, max_shard_size="1MB")
            same = sorted(map(sorted, split.filename_to_tensors.values())) == sorted(sorted(k for k in promised if promised[k] == f) for f in set(promised.values()))
            fine = not wrong and promised == index["weight_map"] and index["metadata"]["total_size"] == size and same
            print(f"{name}: {len(set(promised.values()))} shards, {'equal' if fine else f'wrong: {wrong} {same}'} {({k: v for k, v in info.items() if v} or '')}")
            failed |= not fine or any(info.values())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
