#!/usr/bin/env python3
"""How far llama.cpp, given a GGUF file, is from golden values.

    python llama_cpp_check.py FILE.gguf REFERENCE [--kv f32|f16] [--json OUT.json]

REFERENCE is a trained checkpoint's reference.json (with reference_logits.npz beside it), a random one's
golden.safetensors, or an output of decoded_oracle.py (last logits of the decoded weights; give the
checkpoint's reference.json as --prompts for the ids).

Per prompt: whether llama.cpp's ids are the reference's (the text with its specials parsed; chats without a
second BOS), relative L2 and worst element of the last logits, the difference in mean NLL, and greedy text
under the margin rule: equal up to the first step at which the oracle's two best logits are closer than
the worst element found. `greedy 48/48` is full agreement, `31 of 48 (margin 0.0021 < 0.0034)` a permitted
difference, `31 of 48 WRONG` none. Exits with 1 if a text is wrong.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file

from llama_engine import Engine, mean_nll, relative_l2, worst


def trained(path: pathlib.Path) -> list:
    logits = np.load(path.with_name("reference_logits.npz"))
    return [{"name": p["name"], "kind": p["kind"], "text": p["text"], "ids": p["input_ids"], "last": logits[f"{p['name']}:last"],
             "nll": p["mean_nll"], "greedy_ids": p["greedy_ids"], "margins": p["greedy_margins"]}
            for p in json.loads(path.read_text())["prompts"]]


def tensors(path: pathlib.Path, prompts: pathlib.Path = None) -> list:
    golden = load_file(path)
    texts = {p["name"]: p for p in json.loads(prompts.read_text())["prompts"]} if prompts else {}
    cases = []
    for name in sorted({key.rsplit(".", 1)[0] for key in golden}):
        last = golden.get(f"{name}.last")
        last = golden[f"{name}.logits"][-1] if last is None else last
        cases.append({"name": name, "kind": texts.get(name, {}).get("kind"), "text": texts.get(name, {}).get("text"),
                      "ids": golden[f"{name}.ids"].tolist(), "last": last, "nll": float(golden[f"{name}.nll"][0]),
                      "greedy_ids": golden[f"{name}.greedy_ids"].tolist(), "margins": golden[f"{name}.greedy_margins"].tolist()})
    return cases


def agreement(found: list, expected: list, margins: list, error: float) -> dict:
    for step, (a, b, margin) in enumerate(zip(found, expected, margins)):
        if a != b:
            return {"steps": step, "of": len(expected), "margin": margin, "permitted": margin < error}
    return {"steps": len(expected), "of": len(expected), "permitted": True}


def check(engine: Engine, case: dict) -> dict:
    result = {"name": case["name"]}
    if case["text"] is not None:
        # A rendered chat holds its own BOS; a plain text gets the model's, and has no specials in it.
        chat = case["kind"] == "chat"
        result["ids_equal"] = engine.tokenize(case["text"], not chat, chat) == case["ids"]
    logits = engine.logits(case["ids"])
    result["relative_l2"] = relative_l2(logits[-1], case["last"])
    result["worst"] = worst(logits[-1], case["last"])
    result["worst_of_max"] = result["worst"] / float(np.abs(case["last"]).max())
    result["nll_difference"] = mean_nll(logits, case["ids"]) - case["nll"]
    result["greedy"] = agreement(engine.greedy(case["ids"], len(case["greedy_ids"])), case["greedy_ids"], case["margins"], result["worst"])
    return result


def describe(result: dict) -> str:
    greedy = result["greedy"]
    text = f"{greedy['steps']}/{greedy['of']}"
    if greedy["steps"] < greedy["of"]:
        text = f"{greedy['steps']} of {greedy['of']} " + (f"(margin {greedy['margin']:.4f} < {result['worst']:.4f})" if greedy["permitted"] else "WRONG")
    ids = {True: "ids equal", False: "IDS DIFFER", None: ""}[result.get("ids_equal")]
    return (f"{result['name']:14} {ids:10} rel L2 {result['relative_l2']:.2e}  worst {result['worst']:.2e}"
            f"  nll {result['nll_difference']:+.1e}  greedy {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("--prompts", type=pathlib.Path)
    parser.add_argument("--kv", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    cases = trained(args.reference) if args.reference.suffix == ".json" else tensors(args.reference, args.prompts)
    engine = Engine(args.gguf, max(len(c["ids"]) + len(c["greedy_ids"]) for c in cases) + 8, args.kv, args.threads)
    results = [check(engine, case) for case in cases]
    engine.close()
    for result in results:
        print(describe(result))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(r["greedy"]["permitted"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
