"""A mixture of experts without numbers beside a good model, both served on one GPU: the good one goes on as if it were alone.

    python tools/serving/gpu_faults.py BRASA [--device cuda:0] [--models models] [--port 18431]

A copy of tiny-qwen3moe has NaN in the first layer's router. Requests of both models are asked for at the same time, many of them, streams among them. Every answer of
the good ones must be text, most of them behind all that the same as before it; every answer of the broken one an error that says why, and the server must live to the end. Needs Python
alone. About 20 seconds.
"""

import argparse
import http.client
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("brasa")
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "models")
parser.add_argument("--port", type=int, default=18431)
parser.add_argument("--rounds", type=int, default=40)
options = parser.parse_args()


def break_router(folder):
    """Fills the first router of a checkpoint with NaN."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8 : 8 + length])["model.layers.0.mlp.gate.weight"]
    begin, end = (8 + length + offset for offset in tensor["data_offsets"])
    data[begin:end] = b"\xff" * (end - begin)
    path.write_bytes(data)


def ask(model, text, most, stream=False):
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=60)
    try:
        body = {"model": model, "prompt": text, "max_tokens": most, "temperature": 0, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def text_of(answer):
    status, body = answer
    return json.loads(body)["choices"][0]["text"] if status == 200 else f"{status}: {body}"


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    for name, source in [("good", "tiny-llama"), ("mixture", "tiny-qwen3moe"), ("broken", "tiny-qwen3moe")]:
        shutil.copytree(options.models / source, folder / name)
    break_router(folder / "broken")
    log = open(folder / "log", "w+")
    server = subprocess.Popen(
        [options.brasa, "serve", "--models-dir", str(folder), "--device", options.device, "--port", str(options.port)],
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        for _ in range(600):
            try:
                if ask("good", "a", 1)[0] == 200:
                    break
            except OSError:
                time.sleep(0.1)
        prompts = [("word " * count)[:-1] for count in (1, 7, 40, 150)]
        alone = {(model, text): text_of(ask(model, text, 24)) for model in ("good", "mixture") for text in prompts}
        wrong, broken = [], set()

        def good(model, number):
            for turn in range(options.rounds):
                text = prompts[(turn + number) % len(prompts)]
                found = text_of(ask(model, text, 24))
                # Rows beside others, and behind a cached prompt, may round otherwise on a GPU: there must be an answer, which may be empty.
                if re.match(r"\d{3}: ", found):
                    wrong.append((model, text[:20], found, alone[model, text]))

        def bad(number):
            for turn in range(options.rounds):
                status, body = ask("broken", prompts[(turn + number) % len(prompts)], 24, stream=turn % 3 == 0)
                broken.add((status, "error" in body))

        threads = [threading.Thread(target=good, args=(model, n)) for model in ("good", "mixture") for n in range(3)]
        threads += [threading.Thread(target=bad, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        after = {(model, text): text_of(ask(model, text, 24)) for model, text in alone}
        changed = [key for key in alone if alone[key] != after[key]]
        print(f"answers of the broken model (status, names an error): {sorted(broken)}")
        print(f"wrong answers of the good ones: {wrong[:3]} ({len(wrong)}); changed behind it: {changed}")
        fine = not wrong and len(changed) <= len(alone) // 2 and all(error for _, error in broken) and server.poll() is None
        if not fine:
            log.seek(0)
            print(log.read()[-3000:])
        print("faults: good" if fine else "faults: BAD")
        sys.exit(0 if fine else 1)
    finally:
        server.terminate()
        server.wait()
