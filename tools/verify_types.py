#!/usr/bin/env python3
"""Our logits and perplexity on lexicon-qwen3 in every GGUF type, beside llama.cpp's, against one oracle.

    python tools/verify_types.py [--threads N] BRASA WORK_DIR OUT_DIR [TYPE ...]

BRASA is the command. WORK_DIR is what tools/golden/models/lexicon_types.py filled: lexicon-TYPE.gguf by llama.cpp's
quantiser and lexicon-TYPE.safetensors, what transformers makes of its publicly decoded weights in float32. llama.cpp's figures
come from tools/golden/models/lexicon_types.json, which that script wrote too. OUT_DIR keeps TYPE.json, so that a stopped run goes on where it was.

Compared with the oracle are the logits after the last token of every reference prompt, by relative L2: fast (int8 activations
where weights are quantised, bf16 where they are floats and the processor multiplies bf16 fast, float16 KV), in reference precision, and llama.cpp's with float16 KV, its default. Perplexity is llama-perplexity's: models/lexicon-qwen3/perplexity.txt in windows of 512.

Prints the table of docs/dev/verification.md. Says beside a row, and exits with 1, where
    reference precision is off by more than 1e-4 on any prompt,
    the fast way by more than the bound of its path (3e-2 quantised, 1e-2 float) on any prompt,
    the same, where weights are quantised, by more than 1.2 times llama.cpp's mean in the mean,
    perplexity by more than 0.5 % from that of llama.cpp built with GGML_BLAS, which multiplies prompts in float32, float16 KV.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
TEXT = REPOSITORY / "models" / "lexicon-qwen3" / "perplexity.txt"
RECORD = REPOSITORY / "tools" / "golden" / "models" / "lexicon_types.json"
TYPES = ("F32", "BF16", "F16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
         "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_K_S")
FLOAT = ("F32", "BF16", "F16")


def safetensors(path: pathlib.Path) -> dict:
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    kinds = {"F32": np.float32, "I32": np.int32}
    return {name: np.frombuffer(data[8 + size :][slice(*entry["data_offsets"])], kinds[entry["dtype"]]) for name, entry in header.items()}


def relative_l2(found: np.ndarray, expected: np.ndarray) -> float:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def measure(brasa: str, threads: int, path: pathlib.Path, oracle: dict) -> dict:
    def run(command: str, *arguments: str) -> dict:
        command = [brasa, command, "-m", str(path), *arguments, "--json"]
        done = subprocess.run(command, check=True, capture_output=True)
        return json.loads(done.stdout)

    about = run("inspect")
    found = run("perplexity", "-f", str(TEXT), "-c", "512", "-t", str(threads))
    result = {"bytes": about["size_bytes"], "bits": sum(t["size_bytes"] for t in about["types"].values()) * 8 / about["parameters"],
              "perplexity": found["perplexity"], "scored": found["scored_tokens"], "fast": {}, "reference": {}}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits.npy"
        for name in sorted(key.removesuffix(".ids") for key in oracle if key.endswith(".ids")):
            ids = ",".join(map(str, oracle[f"{name}.ids"]))
            for precision in ("fast", "reference"):
                run("logits", "--ids", ids, "--out", str(out), "--force", "--precision", precision, "-t", str(threads))
                result[precision][name] = relative_l2(np.load(out)[-1], oracle[f"{name}.last"])
    return result


def theirs(record: dict) -> tuple:
    perplexity = record["perplexity"]["llama.cpp f16 kv"]
    return perplexity, record["perplexity"]["llama.cpp blas"], {prompt["name"]: prompt["relative_l2"] for prompt in record["prompts"]["f16 kv"]}


def judge(name: str, ours: dict, record: dict) -> list:
    perplexity, blas, errors = theirs(record)
    assert ours["scored"] == perplexity["scored"] and ours["fast"].keys() == errors.keys(), f"{name}: the same text and prompts"
    fast, is_float = list(ours["fast"].values()), name in FLOAT
    return [message for failed, message in (
        (max(ours["reference"].values()) > 1e-4, "reference precision"),
        (max(fast) > (1e-2 if is_float else 3e-2), "bound of the path"),
        (not is_float and np.mean(fast) > 1.2 * np.mean(list(errors.values())), "1.2 times llama.cpp's error"),
        (abs(ours["perplexity"] / blas["perplexity"] - 1) > 5e-3, "perplexity")) if failed]


def row(name: str, ours: dict, record: dict) -> str:
    perplexity, blas, errors = theirs(record)
    cell = lambda found: f"{np.mean(list(found.values())):.4f} ({max(found.values()):.4f})"
    oracle = record["perplexity"]["oracle"]["perplexity"]
    change = lambda value: f"{value['perplexity']:.3f} ({(value['perplexity'] / oracle - 1) * 100:+.2f} %)"
    return (f"| {name} | {ours['bits']:.2f} | {ours['bytes'] / 1e6:.2f} | {oracle:.3f} | {change(ours)} | {change(perplexity)} "
            f"| {change(blas)} | {(ours['perplexity'] / perplexity['perplexity'] - 1) * 100:+.2f} %, {(ours['perplexity'] / blas['perplexity'] - 1) * 100:+.2f} % | {cell(ours['fast'])} | {cell(errors)} | {max(ours['reference'].values()):.1e} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("types", nargs="*", help="all that WORK_DIR has")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    record, rows, failed = json.loads(RECORD.read_text()), {}, False
    for name in args.types or TYPES:
        path, kept = args.work / f"lexicon-{name}.gguf", args.out / f"{name}.json"
        if name not in record or not path.exists():
            print(f"{name}: not in WORK_DIR", file=sys.stderr)
            continue
        if not kept.exists():
            result = measure(args.brasa, args.threads, path, safetensors(path.with_suffix(".safetensors")))
            kept.write_text(json.dumps(result, indent=1) + "\n")
        ours = json.loads(kept.read_text())
        problems = judge(name, ours, record[name])
        failed |= bool(problems)
        rows[name] = row(name, ours, record[name])
        print(rows[name], "; ".join(problems), file=sys.stderr, flush=True)
    print("| type | bits a weight | MB | perplexity, oracle | ours | llama.cpp | the same with BLAS | ours to both | logits, ours | logits, llama.cpp | reference precision |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows[name] for name in TYPES if name in rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
