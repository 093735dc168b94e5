"""Random requests to a running server, valid, odd and hostile ones, beside attacks, clients that leave and models that are loaded again.

    brasa serve --port 8137 & python tools/serving/storm.py http://127.0.0.1:8137 --requests 10000 --seed 1
    python tools/serving/storm.py http://127.0.0.1:8137 --seconds 300 --no-attacks

A request fails if its answer is a fault of the server (500), also inside a stream, or does not come in time. Further checks: /health within
--health-ms all the time, nothing runs behind it, and resident memory (by /metrics) is back within 20 % of that before. The last line is
`N passed, N failed`. Standard library only; the same seed sends the same requests.
"""

import argparse
import collections
import contextlib
import http.client
import json
import random
import socket
import sys
import threading
import time
import urllib.parse

ODD = [
    None, True, False, 0, 1, -1, 0.5, -0.5, 1e308, 1e-320, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**22, "", "a", "\0", "😀", "é" * 50, "nan",
    [], [None], [[]], [1, "a", None], {}, {"a": 1}, {"type": "x"}, [{}], "x" * 5000, [0] * 300, {"": ""},
]
SCHEMAS = [
    {}, True, {"type": "object"}, {"type": "string", "maxLength": 5}, {"enum": ["a", 1, None]}, {"$ref": "#"}, {"$ref": "#/nope"}, {"type": "nope"},
    {"type": "string", "pattern": "("}, {"type": "string", "pattern": "a{99999}"}, {"anyOf": []}, {"not": {}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"oneOf": [{"type": "string"}, {"type": "integer"}]},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}
TEXTS = ["a", "", "The word ember means", " ", "\n", "<|im_end|>" * 3, "é漢字😀", "x" * 3000, "a\0b", "word " * 250]
MESSAGES = [
    [{"role": "user", "content": "hi"}], [{"role": "system", "content": "s"}, {"role": "user", "content": "What is a river?"}], [], [{"role": "user"}],
    [{"role": "nope", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "t"}]}], [{"role": "assistant", "content": "I am"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], [{"role": "user", "content": "w " * 900}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "r"}],
]
FIELDS = {
    "temperature": [0, 0.7, 2, -1, 1e10], "top_p": [0, 0.5, 1, 1.1, -1], "top_k": [0, 40, -1, 10**9], "min_p": [0, 0.1, 2], "repeat_penalty": [1, 1.2, 0, 1e30],
    "repeat_last_n": [-1, 0, 64, 10**12], "frequency_penalty": [0, 2, -2, 1e20], "presence_penalty": [0, 1, -5], "seed": [-1, 0, 5, 2**64 - 1],
    "logit_bias": [{}, {"5": 1}, {"5": 101}, {"99999999": 1}, [[5, False]], [["a", 1]], [[5]], [[" long text" * 9000, 1]]], "samplers": [["top_k"], ["dry"], ["x"], []],
    "min_tokens": [0, 2, 5000], "stop": ["a", ["e", "the"], [""], ["x"] * 65, "y" * 5000], "ignore_eos": [True, False], "priority": [0, 1],
    "cache_prompt": [True, False], "cache_salt": ["a", ""], "stream": [True, False], "json_schema": SCHEMAS, "guided_regex": ["[ab]{3}", "(", "\\d+"],
    "grammar": ['root ::= "a" | "b"', "root ::=", 'x ::= "a"', "root ::= root", 'root ::= "a"*', "%llguidance"], "guided_choice": [["a", "b"], []],
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}, {"type": "json_schema"}],
    "structured_outputs": [{"regex": "a+"}, {"choice": ["x"]}, {"json": {}}, {}], "lora": [[], [{"id": 0, "scale": 1}]], "n": [1, 2, 0, 257], "logprobs": [True, False, 0, 3, 21],
    "top_logprobs": [0, 5, 21], "n_probs": [0, 3, 21], "echo": [True, False], "suffix": ["s", ""], "tools": [[TOOL], [], [{}], [TOOL] * 3], "best_of": [1, 5],
    "tool_choice": ["auto", "none", "required", {"type": "any"}, "x"], "stop_sequences": [["a"], [""]], "system": ["s"], "thinking": [{"type": "disabled"}],
    "reasoning_effort": ["low", "none", "x"], "stream_options": [{"include_usage": True}, {}], "chat_template_kwargs": [{"enable_thinking": True}, {"messages": []}],
    "text": [{"format": {"type": "text"}}], "instructions": ["i"], "id_slot": [0, -1, 99], "unknown_thing": [1, [{}] * 2000], "user": ["u"],
}
GETS = ["/props", "/slots", "/metrics", "/v1/metrics", "/v1/models", "/v1/models/%2e%2e%2f", "/health", "/slots?fail_on_no_slot=1", "/props?model=%ff", "/", "/nope", "/lora-adapters", "/slots/0", "/v1/models/%"]
POSTS = {
    "/v1/chat/completions": 5, "/v1/completions": 3, "/completion": 4, "/v1/messages": 2, "/v1/responses": 2, "/infill": 1, "/v1/embeddings": 1, "/embedding": 1,
    "/v1/rerank": 1, "/tokenize": 1, "/detokenize": 1, "/apply-template": 1, "/v1/chat/completions/input_tokens": 1, "/v1/messages/count_tokens": 1,
    "/v1/responses/input_tokens": 1, "/slots/0?action=save": 1, "/slots/x?action=nope": 1, "/models/load": 1, "/v1/models/load": 1, "/lora-adapters": 1, "/props": 1,
}
# Codes of errors that a server may have although nothing is wrong with it.
ALLOWED = ("model_unloaded", "queue_full", "out_of_request_memory", "timeout", "loading_model", "no_slot_available", "models_busy", "slot_busy", "not_supported", "shutting_down", "grammar_busy")


def prompt(draw):
    """A prompt of a raw completion."""
    return draw.choice([*TEXTS, [1, 2, 3], [], ["a", "b"], [[1, 2], "c"], [99999999], [-1], [1.5], [[]], 5, {"a": 1}, ["a"] * 5])


def request(draw, models):
    """A random request: method, path and body."""
    if draw.random() < 0.06:
        return "GET", draw.choice(GETS), None
    path = draw.choices(list(POSTS), list(POSTS.values()))[0]
    if "chat" in path or "messages" in path or "template" in path:
        body = {"messages": draw.choice(MESSAGES), "max_tokens": draw.choice([0, 1, 3, 8])}
    elif "responses" in path:
        body = {"input": draw.choice(TEXTS + MESSAGES), "max_output_tokens": draw.choice([1, 4, 16])}
    elif "complet" in path:
        body = {"prompt": prompt(draw), "max_tokens": draw.choice([0, 1, 4]), "n_predict": draw.choice([0, 1, 4])}
    else:
        body = {
            "input_prefix": "a", "input_suffix": "b", "n_predict": 2, "input": prompt(draw), "content": draw.choice(TEXTS), "query": draw.choice(TEXTS), "filename": draw.choice(["a.bin", "../a", "", "a\0b"]),
            "documents": draw.choice([["a", "b"], [], [{"text": "a"}], "a"]), "tokens": draw.choice([[1, 2], [], [99999999], [-1], "a"]), "path": draw.choice(["../x", "/etc/passwd", "", "x\0y"]),
        }
    for name in draw.sample(list(FIELDS), draw.choice([0, 0, 1, 2, 3, 5])):
        body[name] = draw.choice(FIELDS[name]) if draw.random() < 0.8 else draw.choice(ODD)
    if "unload" not in path:
        body["model"] = draw.choice([*models, *models, "nope"])
    if draw.random() < 0.08:
        body[draw.choice(list(body))] = draw.choice(ODD)
    text = json.dumps(body).encode()
    if draw.random() < 0.02:
        text = text[: draw.randrange(len(text) + 1)] + draw.choice([b"", b"\xff", b"}", b",", b'"', b"[" * 200])
    return "POST", path, text


class Storm:
    """A run, and what failed in it."""

    def __init__(self, options):
        address = urllib.parse.urlsplit(options.url)
        self.host, self.port, self.options = address.hostname, address.port, options
        self.over, self.lock = threading.Event(), threading.Lock()
        self.left, self.passed, self.failures, self.statuses = options.requests, 0, [], collections.Counter()
        listed = json.loads(self.ask("GET", "/v1/models")[1])["data"]
        self.models = [model["id"] for model in listed if model.get("kind", "text") == "text"]

    def connect(self, timeout=None):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout or self.options.patience)

    def ask(self, method, path, body=None):
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def fail(self, what):
        with self.lock:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print("FAILED ", what[:700], flush=True)

    def take(self):
        """True while another request is to be sent."""
        with self.lock:
            self.left -= 1
            return self.left >= 0 and not self.over.is_set()

    def client(self, seed):
        """Sends random requests one after the other, on connections that are kept."""
        draw, connection = random.Random(seed), None
        while self.take():
            method, path, body = request(draw, self.models)
            for attempt in range(2):
                try:
                    connection = connection or self.connect()
                    connection.request(method, path, body)
                    answer = connection.getresponse()
                    status, data = answer.status, answer.read()
                    break
                except (ConnectionError, http.client.RemoteDisconnected) as error:
                    # A kept connection may have been closed for its silence.
                    connection, status, data = None, 0, repr(error).encode()
                except (OSError, http.client.HTTPException) as error:
                    connection, status, data = None, 0, repr(error).encode()
                    break
            self.judge(f"{method} {path} {(body or b'')[:300]!r}", status, data)

    def judge(self, what, status, data):
        """Counts an answer."""
        fault = status == 0 or status >= 500 and not any(code.encode() in data for code in ALLOWED)
        inner = status == 200 and any(code in data for code in (b'"internal_error"', b'"device_error"'))
        if fault or inner:
            self.fail(f"{what} -> {status} {data[-300:]!r}")
        with self.lock:
            self.statuses[status] += 1
            self.passed += not (fault or inner)

    def leaver(self, seed):
        """Begins long answers and goes away."""
        draw = random.Random(seed)
        while not self.over.is_set():
            body = json.dumps({"model": draw.choice(self.models), "prompt": "x " * draw.choice([1, 300]), "n_predict": 500, "ignore_eos": True, "stream": draw.random() < 0.7}).encode()
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 10) as connection:
                connection.sendall(self.head("/completion", len(body)) + body)
                time.sleep(draw.choice([0, 0.001, 0.02, 0.2]))
                if draw.random() < 0.5:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            time.sleep(0.02)

    def head(self, path, length):
        return f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-length: {length}\r\n\r\n".encode()

    def attacker(self, seed):
        """Holds bodies back, sends huge values, reads nothing, breaks heads."""
        draw, held = random.Random(seed), []
        bombs = [b"1,", b'{"a":1},', b'{"a":{"a":1}},', b"[],", b'"a",']
        while not self.over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                kind = draw.randrange(4)
                if kind == 0:
                    connection = socket.create_connection((self.host, self.port), 10)
                    connection.sendall(self.head("/completion", 8 << 20) + b" " * (1 << 20) * draw.randrange(1, 8))
                    held.append(connection)
                elif kind == 1:
                    status, data = self.ask("POST", "/completion", b'{"prompt":"a","n_predict":1,"nothing":[' + draw.choice(bombs) * draw.choice([10_000, 300_000, 1_000_000]) + b"1]}")
                    if status == 500:
                        self.fail(f"a bomb -> {status} {data[:200]!r}")
                elif kind == 2:
                    body = json.dumps({"model": self.models[0], "prompt": "a", "n_predict": 900, "ignore_eos": True, "stream": True, "n_probs": 20}).encode()
                    connection = socket.create_connection((self.host, self.port), 10)
                    connection.sendall(self.head("/completion", len(body)) + body)
                    held.append(connection)
                else:
                    with socket.create_connection((self.host, self.port), 10) as connection:
                        connection.sendall(bytes(draw.randrange(256) for _ in range(300)))
            while len(held) > 6:
                held.pop(0).close()
            time.sleep(0.2)
        for connection in held:
            connection.close()

    def reloader(self, seed):
        """Unloads a model now and then; the next request loads it again."""
        draw = random.Random(seed)
        while not self.over.wait(self.options.reload_every):
            model = json.dumps({"model": draw.choice(self.models)}).encode()
            for path in ("/models/unload", "/models/load"):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    status, data = self.ask("POST", path, model)
                    self.judge(path, status, data)

    def health(self):
        """Asks for /health all the time."""
        connection, slowest, late = self.connect(), 0, 0
        while not self.over.is_set():
            began = time.monotonic()
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.fail(f"/health: {error!r}")
                connection = self.connect()
                continue
            took = time.monotonic() - began
            slowest, late = max(slowest, took), late + (took > self.options.health_ms / 1000)
            time.sleep(0.01)
        print(f"/health took {slowest * 1000:.0f} ms at most")
        if late:
            self.fail(f"/health took more than {self.options.health_ms} ms {late} times, {slowest * 1000:.0f} ms at most")

    def figure(self, name):
        """The sum of a figure of /metrics."""
        lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split(" ")[0].split("{")[0] == name)

    def resident_mib(self):
        return self.figure("process_resident_memory_bytes") / (1 << 20)

    def run(self):
        """Runs everything; returns the status of the process."""
        options = self.options
        for seed in range(2 * len(self.models)):
            # What grows once, such as caches, has grown before it counts.
            body = json.dumps({"model": self.models[seed % len(self.models)], "prompt": "word " * 200, "n_predict": 64, "ignore_eos": True}).encode()
            self.ask("POST", "/completion", body)
        time.sleep(2)
        before, began = self.resident_mib(), time.monotonic()
        clients = [threading.Thread(target=self.client, args=(options.seed * 1000 + at,)) for at in range(options.clients)]
        others = [threading.Thread(target=self.health), threading.Thread(target=self.leaver, args=(options.seed,))]
        if options.attacks:
            others += [threading.Thread(target=self.attacker, args=(options.seed + at,)) for at in range(2)]
        if options.reload_every:
            others.append(threading.Thread(target=self.reloader, args=(options.seed,)))
        for thread in clients + others:
            thread.start()
        for thread in clients:
            thread.join(None if not options.seconds else max(0, began + options.seconds - time.monotonic()))
        self.over.set()
        for thread in clients + others:
            thread.join(options.patience + 10)
            if thread.is_alive():
                self.fail("a thread hangs: a request has no end")
        print(f"{sum(self.statuses.values())} answers in {time.monotonic() - began:.0f} s, by status {dict(self.statuses)}")
        self.settle(before)
        print(f"{self.passed} passed, {len(self.failures)} failed")
        return int(bool(self.failures))

    def settle(self, before):
        """Fails unless nothing runs any more, and memory is back."""
        limit, deadline = before * 1.2 + self.options.cache_mib, time.monotonic() + 30
        while time.monotonic() < deadline:
            running, resident = self.figure("llamacpp:requests_processing"), self.resident_mib()
            if not running and resident <= limit:
                break
            time.sleep(0.5)
        print(f"resident memory {before:.0f} MiB before, {resident:.0f} MiB behind")
        if running:
            self.fail(f"{running:.0f} requests still run")
        if resident > limit:
            self.fail(f"resident memory is {resident:.0f} MiB, expected at most {limit:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=None, help="requests in all [default: 10000, or any number with --seconds]")
    parser.add_argument("--seconds", type=float, default=None, help="longest time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--patience", type=float, default=60, help="longest time of a request in seconds")
    parser.add_argument("--health-ms", type=float, default=50)
    parser.add_argument("--reload-every", type=float, default=5, help="seconds between two reloads; 0 for none")
    parser.add_argument("--cache-mib", type=float, default=0, help="memory that caches may take beside the 20 %% (--cache-ram of the server)")
    parser.add_argument("--no-attacks", dest="attacks", action="store_false")
    options = parser.parse_args()
    options.requests = options.requests or (10**12 if options.seconds else 10_000)
    return Storm(options).run()


if __name__ == "__main__":
    sys.exit(main())
