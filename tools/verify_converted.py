#!/usr/bin/env python3
"""Our reading of what llama.cpp's convert_hf_to_gguf.py writes, for the trained checkpoints.

    python tools/verify_converted.py BRASA LLAMA_CPP_DIR WORK_DIR HF_DIR...

Converts each checkpoint to F32 (tools/golden/models/convert_hf.py, which tells the converter what it cannot know of their tokenizers) and
compares with reference.json (transformers), in reference precision: ids of plain prompts, last logits of all, greedy texts.
Prints a line per checkpoint; exits with 1 where ids or greedy texts differ or logits are off by more than 1e-4.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

CONVERT = pathlib.Path(__file__).resolve().parent / "golden" / "models" / "convert_hf.py"
VOCABULARIES = {"tiny-llama": "pre=llama-bpe", "tiny-gemma3": "merges", "tiny-gemma4": "added", "tiny-gemma4moe": "added"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("llama_cpp")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("hf", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    failed = False
    for hf in args.hf:
        path, vocabulary = args.work / f"{hf.name}.gguf", VOCABULARIES.get(hf.name, "pre=qwen2")
        if not path.exists():
            command = [sys.executable, CONVERT, args.llama_cpp, hf, path, "--outtype", "f32", "--vocab", vocabulary]
            subprocess.run([str(part) for part in command], check=True, capture_output=True)
        run = lambda *command: subprocess.run([args.brasa, *command, "-m", str(path)], check=True, capture_output=True).stdout
        prompts, logits = json.loads((hf / "reference.json").read_text())["prompts"], np.load(hf / "reference_logits.npz")
        plain = [prompt for prompt in prompts if prompt["kind"] == "plain"]
        same_ids = sum(json.loads(run("tokenize", "-p", p["text"], "--json"))["ids"] == p["input_ids"] for p in plain)
        worst, same_texts = 0.0, 0
        for prompt in prompts:
            ids = ",".join(map(str, prompt["input_ids"]))
            with tempfile.TemporaryDirectory() as folder:
                run("logits", "--ids", ids, "--precision", "reference", "--out", f"{folder}/logits.npy")
                found = np.load(f"{folder}/logits.npy")[-1].astype(np.float64)
            expected = logits[f"{prompt['name']}:last"].astype(np.float64)
            worst = max(worst, np.linalg.norm(found - expected) / np.linalg.norm(expected))
            greedy = prompt["greedy_ids"]
            text = run("generate", "--ids", ids, "--precision", "reference", "-n", str(len(greedy)), "--temp", "0", "--ignore-eos", "--json")
            same_texts += json.loads(text)["ids"] == greedy
        failed |= same_ids < len(plain) or same_texts < len(prompts) or worst > 1e-4
        print(f"{hf.name}: ids {same_ids} of {len(plain)}, logits within {worst:.1e}, greedy texts {same_texts} of {len(prompts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
