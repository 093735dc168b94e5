#!/usr/bin/env python3
"""The trained checkpoints in every container, each against transformers on its decoded weights, on every path.

    python tools/verify_trained.py BRASA WORK_DIR HF_DIR...

BRASA is the command. For each checkpoint WORK_DIR gets: MLX directories of 4 and 8 bits (mlx_lm.convert), GGUF files in BF16, Q8_0 and
Q4_K_M (`brasa quantize`), and the oracle of each (tools/golden/models/decoded_oracle.py): what is there already is used again.

Prints a row per file: relative L2 of the last logits of the reference prompts, all together and the worst, and how far the mean of −ln p over all
prompts is off, relative to itself, in reference precision, as it comes, and with --deterministic; then how many greedy texts equal the oracle's up to the
first step whose margin is below the worst error of any prompt. Exits with 1 where a row misses
    1e-4 on any prompt in reference precision; else, all prompts together, 3e-2 of a quantised file, 1e-2 of one of floats, and 2e-3 of one of
    floats where it is deterministic; single prompts that do are named,
    1e-3 of −ln p, any greedy text.
In mixtures of experts another choice in one row changes all behind it: there greedy texts are judged in reference precision alone.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file

TOOLS = pathlib.Path(__file__).resolve().parent
FILES = ("BF16.gguf", "Q8_0.gguf", "Q4_K_M.gguf", "mlx-4", "mlx-8")
WAYS = {"reference": ["--precision", "reference"], "fast": [], "deterministic": ["--deterministic"]}


def make(brasa: str, hf: pathlib.Path, work: pathlib.Path, file: str) -> tuple:
    """The file and its oracle."""
    path, oracle = work / f"{hf.name}-{file}", work / f"{hf.name}-{file}.safetensors"
    run = lambda *command: subprocess.run([str(part) for part in command], check=True, capture_output=True)
    if not path.exists():
        kind, _, bits = file.partition("-")
        if kind == "mlx":
            group = 32 if hf.name == "tiny-qwen3moe" else 64
            run(sys.executable, TOOLS / "golden/models/mlx_convert.py", hf, path, "--bits", bits, "--group-size", group)
        else:
            run(brasa, "quantize", hf, path, file.removesuffix(".gguf"))
    if not oracle.exists():
        run(sys.executable, TOOLS / "golden/models/decoded_oracle.py", hf, path, oracle)
    return path, load_file(oracle)


class Way:
    """What one way of Brasa makes of all prompts."""

    def __init__(self, brasa: str, path: pathlib.Path, oracle: dict, options: list):
        self.errors, self.worst, self.nll, self.equal, self.differing = {}, 0.0, 0.0, 0, []
        off, whole = 0.0, 0.0
        names = sorted(key.removesuffix(".ids") for key in oracle if key.endswith(".ids"))
        expected_nll = 0.0
        run = lambda *command: subprocess.run([brasa, *command, "-m", str(path), *options], check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                ids, expected = oracle[f"{name}.ids"], oracle[f"{name}.last"].astype(np.float64)
                text = ",".join(map(str, ids))
                found = json.loads(run("logits", "--ids", text, "--out", f"{folder}/logits.npy", "--json"))
                last = np.load(f"{folder}/logits.npy")[-1].astype(np.float64)
                self.errors[name] = np.linalg.norm(last - expected) / np.linalg.norm(expected)
                off, whole = off + ((last - expected) ** 2).sum(), whole + (expected**2).sum()
                self.worst = max(self.worst, abs(last - expected).max())
                self.nll += found["nll"] * (len(ids) - 1)
                expected_nll += float(oracle[f"{name}.nll"][0]) * (len(ids) - 1)
        self.nll, self.together = abs(self.nll / expected_nll - 1), np.sqrt(off / whole)
        for name in names:
            expected, margins = oracle[f"{name}.greedy_ids"], oracle[f"{name}.greedy_margins"]
            text = ",".join(map(str, oracle[f"{name}.ids"]))
            found = json.loads(run("generate", "--ids", text, "-n", str(len(expected)), "--temp", "0", "--ignore-eos", "--json"))["ids"]
            relied = next((step for step, margin in enumerate(margins) if margin < self.worst), len(expected))
            if found[:relied] == expected[:relied].tolist():
                self.equal += 1
            else:
                self.differing.append(name)

    def cell(self) -> str:
        return f"{self.together:.1e} / {max(self.errors.values()):.1e}, {self.nll:.1e}"

    def judge(self, name: str, is_float: bool, is_mixture: bool) -> tuple:
        """What it misses, and single prompts that would have."""
        exact = name == "reference"
        bound = 1e-4 if exact else 3e-2 if not is_float else 2e-3 if name == "deterministic" else 1e-2
        single = [f"{name}: {prompt} {error:.1e}" for prompt, error in self.errors.items() if error > bound]
        missed = [f"{name}: {what}" for wrong, what in (
            (self.together > bound, f"all prompts {self.together:.1e}"), (self.nll > 1e-3, "−ln p"),
            (self.differing and (exact or not is_mixture), f"greedy text of {', '.join(self.differing)}")) if wrong]
        return (missed + single, []) if exact else (missed, single)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("hf", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    failed = False
    print("| checkpoint | file | " + " | ".join(WAYS) + " | greedy texts |\n|" + "---|" * (len(WAYS) + 3))
    for hf in args.hf:
        for file in FILES:
            path, oracle = make(args.brasa, hf, args.work, file)
            ways = {name: Way(args.brasa, path, oracle, options) for name, options in WAYS.items()}
            missed, single = [], []
            for name, way in ways.items():
                for all_found, found in zip((missed, single), way.judge(name, file == "BF16.gguf", hf.name.endswith("moe"))):
                    all_found += found
            failed |= bool(missed)
            problems = [f"MISSED {what}" for what in missed] + single
            texts = ", ".join(f"{way.equal} of {len(way.errors)}" for way in ways.values())
            print(f"| {hf.name} | {file} | " + " | ".join(way.cell() for way in ways.values()) + f" | {texts} | {'; '.join(problems)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
