"""Measures whether the default of `--parallel` suits the device: tokens per second of 1, 16, 64 and 256 clients, by default and with each `-np`.

    python tools/serving/parallel.py BRASA MODEL.gguf [--device cuda] [--np 16 64 256] [--clients 1 16 64 256] [--rounds 2]

It starts `BRASA serve` once for each setting and round, in turn, and prints one line of JSON a row, then a table. Exit code 1 if a request
failed, or the default has less than 95 % of the best `-np` for some number of clients. Python alone is needed; random weights will do
(`tools/random_gguf.py`).
"""

import argparse
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.request

LOAD = pathlib.Path(__file__).with_name("load.py")


class Serving:
    """A running server of one setting."""

    def __init__(self, options, parallel):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [options.brasa, "serve", "-m", options.model, "--device", options.device, "--port", str(port), "-c", str(options.context)]
        command += ["--max-queue", "1024"] + (["--parallel", str(parallel)] if parallel else [])
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        # A log that nobody reads would hold the server up.
        for line in self.process.stderr:
            self.lines = self.lines[-20:] + [line.rstrip()]

    def wait(self, seconds=300):
        """Waits until the model is loaded; the number of its slots."""
        end = time.time() + seconds
        while time.time() < end:
            if self.process.poll() is not None:
                sys.exit("the server has ended:\n" + "\n".join(self.lines))
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                return json.load(urllib.request.urlopen(self.url + "/props", timeout=5))["total_slots"]
            except OSError:
                time.sleep(0.2)
        sys.exit("the server is not ready")

    def load(self, clients, requests, words, tokens, seed):
        """The figures of `load.py`."""
        command = [sys.executable, str(LOAD), self.url, "--clients", str(clients), "--requests", str(requests), "--seed", str(seed)]
        command += ["--prompt-words", *map(str, words), "--answer-tokens", *map(str, tokens)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and not done.stdout.strip():
            sys.exit(done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--np", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--words", type=int, nargs=2, default=(20, 60))
    parser.add_argument("--tokens", type=int, nargs=2, default=(128, 128))
    options = parser.parse_args()
    best, slots, failures = {}, {}, 0
    for round_ in range(options.rounds):
        for parallel in [0, *options.np]:
            name = f"-np {parallel}" if parallel else "default"
            server = Serving(options, parallel)
            try:
                slots[name] = server.wait()
                server.load(min(16, max(options.clients)), 16, (20, 60), (16, 16), 90)
                for clients in options.clients:
                    # As many answers each that short rows last as long as the others.
                    requests = clients * (2 if clients > 16 else 3)
                    found = server.load(clients, requests, options.words, options.tokens, 10 + round_)
                    failures += found["failures"]
                    row = {"setting": name, "slots": slots[name], "clients": clients, "round": round_, **found}
                    print(json.dumps(row), flush=True)
                    best[name, clients] = max(best.get((name, clients), 0), found["tokens_per_s"])
            finally:
                server.stop()
    names = list(slots)
    print("\n| clients | " + " | ".join(f"{name} ({slots[name]})" for name in names) + " | default / best |")
    print("|---|" + "---|" * (len(names) + 1))
    behind = []
    for clients in options.clients:
        row = [best[name, clients] for name in names]
        share = row[0] / max(row)
        behind += [clients] if share < 0.95 else []
        print(f"| {clients} | " + " | ".join(f"{value:,.0f}" for value in row) + f" | {share:.1%} |")
    if failures:
        print(f"{failures} requests failed")
    if behind:
        print("the default is more than 5 % slower than the best for " + ", ".join(map(str, behind)) + " clients")
    sys.exit(1 if failures or behind else 0)


if __name__ == "__main__":
    main()
