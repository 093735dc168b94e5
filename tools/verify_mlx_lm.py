#!/usr/bin/env python3
"""The backend mlx_lm, which runs mlx-lm in a process, against Brasa's own device `cpu`.

    cargo build -p brasa --example backends
    python tools/verify_mlx_lm.py target/debug/examples/backends WORK_DIR HF_DIR...

Runs under the Python that has mlx-lm, and gives it to Brasa as BRASA_PYTHON. For each checkpoint with a reference.json, WORK_DIR gets a copy
with float32 weights. Both backends continue the reference prompts (texts, and chats of one question) by the most probable tokens: the copy
in reference precision, and the checkpoint as it is.

Prints a row per checkpoint: how many token sequences are equal to the end. Exits with 1 if two differ for the copy, unless the margin between the
two likeliest tokens, which reference.json knows as long as the tokens are its own, is less than 1e-3 at the step where they part; and if
mlx-lm runs none of the checkpoints. Checkpoints in 16 bits are rounded differently by the two: their differences are told and not judged.
"""

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys

import mlx.core as mx

TIE = 1e-3


class Refused(Exception):
    """mlx-lm cannot run a checkpoint."""


def float32_copy(checkpoint: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    copy = work / f"{checkpoint.name}-float32"
    copy.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        if file.suffix == ".safetensors":
            tensors = {name: value.astype(mx.float32) for name, value in mx.load(str(file)).items()}
            mx.save_safetensors(str(copy / file.name), tensors, metadata={"format": "pt"})
        elif file.suffix in (".json", ".jinja") and not file.name.startswith("reference"):
            shutil.copy(file, copy / file.name)
    config = json.loads((copy / "config.json").read_text())
    for part in (config, config.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = "float32"
    (copy / "config.json").write_text(json.dumps(config, indent=2))
    return copy


def tokens(program: str, model: pathlib.Path, device: str, prompts: list, *flags: str) -> list:
    environment = {**os.environ, "BRASA_PYTHON": sys.executable}
    command = [program, *flags, str(model), device, *prompts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0 and device == "mlx_lm" and "Error: Backend(Failed" in done.stderr:
        raise Refused(done.stderr[done.stderr.index("message: ") + len("message: ") :].strip(" })\n"))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])}: {done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("ids: [")]
    assert len(lines) == len(prompts), done.stdout
    return [ast.literal_eval(line[len("ids: ") : line.index("]") + 1]) for line in lines]


def argument(prompt: dict) -> str | None:
    if prompt["kind"] == "plain":
        return prompt["text"]
    messages = prompt["messages"]
    return "chat:" + messages[0]["content"] if [it["role"] for it in messages] == ["user"] else None


def compare(names: list, prompts: list, other: list, native: list) -> tuple:
    """How many are equal, and a line for each that is not; with the margin at the step where they part."""
    equal, parted = 0, []
    for name, prompt, a, b in zip(names, prompts, other, native):
        if a == b:
            equal += 1
            continue
        step = next((step for step, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        known = prompt["greedy_ids"][:step] == a[:step] and step < len(prompt["greedy_margins"])
        margin = prompt["greedy_margins"][step] if known else None
        parted.append((name, step, margin))
    return equal, parted


def main() -> None:
    program, work, *checkpoints = sys.argv[1:]
    failed, compared = False, False
    print("| checkpoint | float32 | as it is |\n|---|---|---|")
    for checkpoint in map(pathlib.Path, checkpoints):
        reference = json.loads((checkpoint / "reference.json").read_text())["prompts"]
        prompts = [prompt for prompt in reference if argument(prompt) is not None]
        names, arguments = [prompt["name"] for prompt in prompts], [argument(prompt) for prompt in prompts]
        copy = float32_copy(checkpoint, pathlib.Path(work))
        cells, notes = [], []
        for where, model, flags in (("float32", copy, ["--reference"]), ("as it is", checkpoint, [])):
            try:
                other = tokens(program, model, "mlx_lm", arguments)
            except Refused as refused:
                cells.append("refused by mlx-lm")
                notes.append(f"  {where}: {refused}")
                continue
            native = tokens(program, model, "cpu", arguments, *flags)
            equal, parted = compare(names, prompts, other, native)
            cells.append(f"{equal} of {len(prompts)}")
            judged = where == "float32"
            compared |= judged
            for name, step, margin in parted:
                wrong = judged and (margin is None or margin >= TIE)
                failed |= wrong
                notes.append(f"  {name}, {where}: parts at token {step}, margin {margin}{', WRONG' if wrong else ''}")
        print(f"| {checkpoint.name} | {' | '.join(cells)} |", flush=True)
        for note in notes:
            print(note, flush=True)
    sys.exit(failed or not compared)


main()
