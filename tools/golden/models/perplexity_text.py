#!/usr/bin/env python3
"""Writes models/lexicon-qwen3/perplexity.txt: what perplexities are measured on.

    python perplexity_text.py WORDNET_DICT_DIR

The two King James passages of reference.json, then every n-th of the first senses of WordNet 3.0 that were met
at least twice in its tagged texts, as lines that the model was trained on ("summer (noun): the warmest season of
the year; ..."). About 48 kB. The model knows most of it by heart, so quantisation has something to spoil.
"""

import json
import pathlib
import sys

MODEL = pathlib.Path(__file__).resolve().parents[3] / "models" / "lexicon-qwen3"
PARTS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
SIZE_BYTES = 48_000


def frequent_senses(folder: pathlib.Path, part: str) -> dict:
    """Offset of a synset -> the word that most often means it, for first senses only."""
    found = {}
    for line in (folder / f"index.{part}").read_text().splitlines():
        if line.startswith("  "):
            continue
        field = line.split()
        pointers = int(field[3])
        tagged, offset = int(field[5 + pointers]), field[6 + pointers]
        if tagged >= 2 and tagged > found.get(offset, (0,))[0]:
            found[offset] = (tagged, field[0].replace("_", " "))
    return {offset: word for offset, (_, word) in found.items()}


def entries(folder: pathlib.Path):
    for part, name in PARTS.items():
        words = frequent_senses(folder, part)
        for line in (folder / f"data.{part}").read_text().splitlines():
            head, _, gloss = line.partition(" | ")
            if head[:8] in words:
                definition = gloss.split('"')[0].strip().rstrip(";: ")
                yield f"{words[head[:8]]} ({name}): {definition}."


if __name__ == "__main__":
    prompts = {p["name"]: p["text"] for p in json.loads((MODEL / "reference.json").read_text())["prompts"]}
    text = prompts["plain-600"] + "\n" + prompts["plain-200"] + "\n"
    lines = list(entries(pathlib.Path(sys.argv[1])))
    step = len(lines) * (sum(map(len, lines)) // len(lines) + 1) // (SIZE_BYTES - len(text))
    text += "\n".join(lines[::step]) + "\n"
    (MODEL / "perplexity.txt").write_text(text)
    print(f"{len(text.encode())} bytes, {len(lines[::step])} of {len(lines)} entries")
