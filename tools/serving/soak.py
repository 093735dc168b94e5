"""Mixed load on a server for a time: streams, whole answers, chats, clients that hang up, wrong requests, reloads of the model.

    brasa serve --deterministic --port 8137 & python tools/serving/soak.py http://127.0.0.1:8137 --pid $! --minutes 30

Every answer is compared with the answer to the same request alone, which is asked for at the start; a difference, a wrong status or a
connection that breaks fails the run. At the end nothing may run any more, and resident memory may not have grown: neither the lowest nor
the median of the last third may lie above those of the middle third. The highest is reported alone, for it depends on how many
reloads begin while the model before still answers. Only Brasa's server with --deterministic promises all of this.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time

from client import Server, request

WRONG = [
    (b"{", 400),
    (b"[]", 400),
    ({"prompt": "x", "temperature": -1}, 400),
    ({"prompt": 7}, 400),
    ({"prompt": "x", "n_predict": "many"}, 400),
    ({"prompt": [99999999]}, 400),
    ({"prompt": "x " * 200_000}, 400),
    ({}, 400),
]


def resident_mib(pid):
    """Resident memory of a process."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


class Soak:
    """A run and what went wrong in it."""

    def __init__(self, options):
        self.options, self.server = options, Server(options.url)
        self.counts, self.problems, self.memory = {}, [], []
        self.solo = {}
        self.reloading = asyncio.Lock()
        self.deadline = 0.0

    def problem(self, text):
        """Notes a failure."""
        self.problems.append(text)
        print(f"problem: {text}", file=sys.stderr)

    def body(self, number):
        """One of the requests whose answers are known. Some begin alike."""
        prefix = "Once upon a time there was a long beginning. " * 4 if number % 3 == 0 else ""
        return request(number, (5, 60), (8, 48), prefix=prefix)

    async def alone(self):
        """Asks every request once, with nothing beside it."""
        for number in range(self.options.prompts):
            answer = await self.server.ask("/completion", self.body(number))
            if answer.status != 200 or answer.error or not answer.text:
                sys.exit(f"the server does not answer alone: {answer.status} {answer.error} {answer.last}")
            self.solo[number] = answer.text

    async def act(self, rng):
        """One random act of a client."""
        kind = rng.choices(
            ["stream", "whole", "hang_up", "wrong", "tokenize", "look", "reload"], [40, 15, 15, 10, 10, 8, 0.3]
        )[0]
        number = rng.randrange(self.options.prompts)
        ask = self.server.ask
        if kind in ("stream", "whole"):
            answer = await ask("/completion", {**self.body(number), "stream": kind == "stream"})
            if answer.status != 200 or answer.error:
                self.problem(f"{kind} {number}: {answer.status} {answer.error} {answer.last}")
            elif answer.text != self.solo[number] and not self.options.may_differ:
                self.problem(f"{kind} {number} differs from the answer alone: {answer.text!r}, alone {self.solo[number]!r}")
        elif kind == "hang_up":
            await ask("/completion", self.body(number), leave_after=rng.randint(0, 6))
        elif kind == "wrong":
            body, status = rng.choice(WRONG)
            answer = await ask("/completion", body)
            error = answer.last.get("error", {}) if isinstance(answer.last, dict) else {}
            if answer.status != status or not {"type", "message", "param", "code"} <= set(error):
                self.problem(f"a wrong request {str(body)[:60]}: {answer.status} {answer.error} {answer.last}")
        elif kind == "tokenize":
            answer = await ask("/tokenize", {"content": self.body(number)["prompt"]})
            if answer.status != 200:
                self.problem(f"tokenize: {answer.status} {answer.error}")
        elif kind == "look":
            answer = await ask(rng.choice(["/slots", "/props", "/metrics", "/v1/models", "/health"]))
            if answer.status != 200:
                self.problem(f"look: {answer.status} {answer.error} {answer.last}")
        else:
            # One at a time: whoever unloads a model while it is loaded takes it from those that wait for it.
            async with self.reloading:
                model = (await ask("/v1/models")).last["data"][0]["id"]
                for path in ("/models/unload", "/models/load"):
                    answer = await ask(path, {"model": model})
                    if answer.status != 200:
                        self.problem(f"{path}: {answer.status} {answer.error} {answer.last}")
        self.counts[kind] = self.counts.get(kind, 0) + 1

    async def client(self, seed):
        """Acts until the end."""
        rng = random.Random(seed)
        while time.monotonic() < self.deadline and len(self.problems) < 20:
            await self.act(rng)

    async def watch(self):
        """Notes resident memory now and then."""
        while time.monotonic() < self.deadline and len(self.problems) < 20:
            self.memory.append(resident_mib(self.options.pid))
            await asyncio.sleep(min(5.0, self.options.minutes * 60 / 20))

    async def run(self):
        """The whole run; returns the exit code."""
        await self.alone()
        self.deadline = time.monotonic() + self.options.minutes * 60
        jobs = [self.client(seed) for seed in range(self.options.clients)]
        await asyncio.gather(*jobs, *([self.watch()] if self.options.pid else []))
        # Clients that hung up just now are noticed with the next token.
        for _ in range(50):
            slots = (await self.server.ask("/slots")).last
            busy = [slot for slot in slots if slot.get("is_processing")]
            if not busy:
                break
            await asyncio.sleep(0.1)
        if busy:
            self.problem(f"something still runs: {busy}")
        report = {"acts": self.counts, "problems": len(self.problems)}
        if self.memory:
            third = max(1, len(self.memory) // 3)
            thirds = self.memory[:third], self.memory[third : 2 * third] or self.memory, self.memory[-third:]
            for name, figure in (("lowest", min), ("median", statistics.median), ("highest", max)):
                first, early, late = (round(figure(part)) for part in thirds)
                report[f"{name}_resident_mib"] = [first, early, late]
                if figure is not max and late > early * 1.03 + 16:
                    self.problem(f"{name} resident memory grew from {early} to {late} MiB between the middle and the last third")
        print(json.dumps(report))
        return 1 if self.problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--pid", type=int, help="process whose resident memory is watched")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--may-differ", action="store_true", help="do not compare answers: the server runs without --deterministic")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=24)
    sys.exit(asyncio.run(Soak(parser.parse_args()).run()))


main()
