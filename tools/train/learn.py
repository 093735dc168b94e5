"""Two small models learn a task from 300 examples, and a running server answers with what they learned.

usage: learn.py [--brasa PATH] [--keep DIR] [--json FILE]     (standard library alone; a few minutes on two cores)

For tiny-llama and lexicon-qwen3, each quantised to Q4_K_M: `brasa train` learns the orders of orders.py, `brasa serve --lora` loads the
adapter, and every held-out order is asked twice, of the base and of `base:orders`. An answer counts if it is the expected one to the letter.
"""

import argparse
import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import orders

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Flags of training: the smaller a model, the more passes and the larger steps it needs.
MODELS = {
    "tiny-llama": ["--epochs", "16", "--lr", "3e-3", "--rank", "16"],
    "lexicon-qwen3": ["--epochs", "8", "--lr", "2e-3", "--rank", "8"],
}


def run(*command: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextlib.contextmanager
def server(brasa: str, model: pathlib.Path, adapter: pathlib.Path):
    """The address of a server of the model with the adapter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [brasa, "serve", "-m", str(model), "--lora", str(adapter), "--port", str(port), "--quiet"]
    print("$", *command, flush=True)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(150):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url + "/health", timeout=5)
                break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def accuracy(url: str, rows: pathlib.Path, **choice) -> tuple[int, int, str]:
    """How many answers are right to the letter, how many were asked for, and the first answer."""
    right, first = 0, ""
    lines = rows.read_text().splitlines()
    for line in lines:
        question, expected = json.loads(line)["messages"]
        body = {"messages": [question], "temperature": 0, "max_tokens": 64, **choice}
        found = post(url + "/v1/chat/completions", body)["choices"][0]["message"]["content"]
        first = first or found
        right += found == expected["content"]
    return right, len(lines), first


def learn(brasa: str, name: str, folder: pathlib.Path) -> dict:
    model, adapter = folder / f"{name}.gguf", folder / name / "orders"
    run(brasa, "quantize", str(ROOT / "models" / name), str(model), "Q4_K_M")
    began = time.monotonic()
    run(brasa, "train", str(model), "--data", str(folder / "orders"), "--out", str(adapter), *MODELS[name])
    result = {"model": name, "seconds": round(time.monotonic() - began, 1)}
    with server(brasa, model, adapter) as url:
        served = next(one["id"] for one in json.load(urllib.request.urlopen(url + "/v1/models"))["data"] if one["id"].endswith(":orders"))
        for who, choice in [("before", {"lora": [{"id": 0, "scale": 0}]}), ("after", {"model": served})]:
            for rows in ["test", "unseen"]:
                right, asked, first = accuracy(url, folder / "orders" / f"{rows}.jsonl", **choice)
                result[f"{rows} {who}"] = right / asked
                print(f"{name}, {rows}.jsonl, {who}: {right} of {asked}; the first answer: {first}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--brasa", default=str(ROOT / "target" / "release" / "brasa"))
    parser.add_argument("--keep", type=pathlib.Path, help="folder of data, models and adapters, which is kept")
    parser.add_argument("--json", type=pathlib.Path, help="file of the results")
    parser.add_argument("--model", choices=list(MODELS), action="append")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        orders.write(folder / "orders")
        results = [learn(arguments.brasa, name, folder) for name in arguments.model or MODELS]
    print("\n| model | training | new orders: before | after | unseen things and names: before | after |\n|---|---|---|---|---|---|")
    for one in results:
        shares = [f"{one[key]:.0%}" for key in ("test before", "test after", "unseen before", "unseen after")]
        print(f"| {one['model']} | {one['seconds']:.0f} s | {' | '.join(shares)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if any(one["test after"] < 0.9 for one in results):
        sys.exit("a model did not learn the task")


if __name__ == "__main__":
    main()
