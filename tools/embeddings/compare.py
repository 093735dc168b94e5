"""Times Brasa and its peers in turn on the same texts: the table of docs/performance/embeddings.md.

    python tools/embeddings/compare.py FOLDER --work DIR --brasa BRASA --speed EMBEDDING_SPEED --llama LLAMA_SPEED

FOLDER is a BERT's, e.g. of random_bert.py. BRASA is the command, which makes the GGUF files; EMBEDDING_SPEED is the example of that name (cargo build --release
-p brasa --example embedding_speed), and LLAMA_SPEED is llama_speed.cpp, whose head says how it is compiled. Each line that is printed is one run, the best
of several repetitions; the table at the end has the best of all rounds, since whatever else runs on the machine only adds to a time. Files that
are in DIR already are not made again.
"""

import argparse
import pathlib
import random
import re
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent / "peers.py"
# Tokens that the made-up vocabulary has for words, and the two around a text.
WORDS, BEGIN, END = range(57, 30522), 2, 3


def texts(kind, count):
    made = random.Random(0)
    lengths = [512 if kind == "fixed" else made.randint(16, 512) for _ in range(count)]
    return [[BEGIN, *(made.choice(WORDS) for _ in range(length - 2)), END] for length in lengths]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name in ("work", "brasa", "speed", "llama"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--texts", choices=("fixed", "mixed"), nargs="+", default=["fixed", "mixed"])
    parser.add_argument("--count", type=int, default=8, help="texts of 512 tokens; three times as many mixed ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1], help="texts together, for ONNX Runtime and CTranslate2")
    parser.add_argument("--llama-batches", type=int, nargs="+", default=[512], help="tokens together, for llama.cpp")
    options = parser.parse_args()
    work, shape = options.work, options.folder.name
    work.mkdir(parents=True, exist_ok=True)
    for kind in ("F16", "Q8_0"):
        file = work / f"{shape}-{kind}.gguf"
        if not file.exists():
            subprocess.run([options.brasa, "quantize", options.folder, file, kind], check=True)
    peers = work / f"{shape}-peers"
    if not (peers / "ct2").exists():
        subprocess.run([sys.executable, PEERS, "make", options.folder, peers], check=True)

    best = {}
    for kind in options.texts:
        file = work / f"{kind}.txt"
        count = options.count * (1 if kind == "fixed" else 3)
        file.write_text("".join(" ".join(map(str, text)) + "\n" for text in texts(kind, count)))
        numbers = [file, options.threads, options.repetitions]
        runs = []
        for stored in ("F16", "Q8_0"):
            model = work / f"{shape}-{stored}.gguf"
            runs.append((f"brasa {stored}", [options.speed, model, *numbers]))
            for batch in options.llama_batches:
                runs.append((f"llama.cpp {stored} of {batch}", [options.llama, model, *numbers, batch]))
        for batch in options.batches:
            runs.append((f"onnxruntime int8 of {batch}", [sys.executable, PEERS, "onnx", peers / "int8.onnx", *numbers, batch]))
            runs.append((f"ctranslate2 int8 of {batch}", [sys.executable, PEERS, "ct2", peers / "ct2", *numbers, batch]))
        for number in range(options.rounds):
            for name, command in runs:
                done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
                speed = int(re.search(r"(\d+) tokens/s", done.stdout).group(1))
                print(f"{shape} {kind} round {number + 1}: {name}: {done.stdout.strip()}", flush=True)
                best[kind, name] = max(speed, best.get((kind, name), 0))
    print("\n| tokens/s |", " | ".join(options.texts), "|")
    for name in dict.fromkeys(name for _, name in best):
        print(f"| {shape}: {name} |", " | ".join(f"{best[kind, name]:,}" for kind in options.texts), "|")


if __name__ == "__main__":
    main()
