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

import numpy as np

from verify_trained import TOOLS, Way

VOCABULARIES = {"tiny-llama": "pre=llama-bpe", "tiny-gemma3": "merges", "tiny-gemma4": "added", "tiny-gemma4moe": "added"}


def oracle(hf: pathlib.Path, prompts: list) -> dict:
    """What decoded_oracle.py would give for the checkpoint itself; every greedy step counts."""
    logits, found = np.load(hf / "reference_logits.npz"), {}
    for prompt in prompts:
        parts = {"ids": prompt["input_ids"], "last": logits[f"{prompt['name']}:last"], "nll": [prompt["mean_nll"]],
                 "greedy_ids": prompt["greedy_ids"], "greedy_margins": [np.inf] * len(prompt["greedy_ids"])}
        found |= {f"{prompt['name']}.{part}": np.array(value) for part, value in parts.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("brasa", "llama_cpp"):
        parser.add_argument(name)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("hf", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    failed = False
    for hf in args.hf:
        path, vocabulary = args.work / f"{hf.name}.gguf", VOCABULARIES.get(hf.name, "pre=qwen2")
        if not path.exists():
            convert = TOOLS / "golden" / "models" / "convert_hf.py"
            command = [sys.executable, convert, args.llama_cpp, hf, path, "--outtype", "f32", "--vocab", vocabulary]
            subprocess.run([str(part) for part in command], check=True, capture_output=True)
        prompts = json.loads((hf / "reference.json").read_text())["prompts"]
        plain, same_ids = [prompt for prompt in prompts if prompt["kind"] == "plain"], 0
        for prompt in plain:
            command = [args.brasa, "tokenize", "-p", prompt["text"], "--json", "-m", str(path)]
            same_ids += json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["ids"] == prompt["input_ids"]
        way = Way(args.brasa, path, oracle(hf, prompts), ["--precision", "reference"])
        worst = max(way.errors.values())
        failed |= same_ids < len(plain) or way.equal < len(prompts) or worst > 1e-4
        print(f"{hf.name}: ids {same_ids} of {len(plain)}, logits within {worst:.1e}, greedy texts {way.equal} of {len(prompts)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
