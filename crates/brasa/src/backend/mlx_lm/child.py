"""Runs a model with mlx-lm for a parent process.

Requests come on stdin and replies go to stdout, a JSON object a line, each with the `id` of its request:

    {"id": 1, "command": "probe"}                      {"id": 1, "ok": true, "python": "3.11.7", "mlx_lm": "0.32.2"}
    {"id": 2, "command": "load", "path": "…"}          {"id": 2, "ok": true, "model_type": "qwen3", "vocab_size": 4096}
    {"id": 3, "command": "info"}                       {"id": 3, "ok": true, …, "layers": 8, "hidden_size": 512}
    {"id": 4, "command": "generate", "prompt": "…"}    {"id": 4, "prompt_tokens": 5}
    {"id": 4, "command": "chat", "messages": […]}      {"id": 4, "prefilled": 5}, any number
                                                       {"id": 4, "token": "…", "token_id": 17}, any number
                                                       {"id": 4, "done": "stop"}, "length", "context" or "cancelled"
    {"id": 4, "command": "cancel"}                     that of request 4
    {"id": 5, "command": "quit"}                       {"id": 5, "ok": true}, and the process ends

Any request may be answered by {"id": 4, "error": "…"}, in the middle of a text too. `generate` and `chat` also have `max_tokens`
and `context` (null for no limit), `temperature`, `top_k`, `top_p`, `min_p` and `seed`.
"""

import sys

# The folder that the parent runs in is no place to import modules from.
sys.path[:] = [entry for entry in sys.path if entry]

import importlib.metadata
import importlib.util
import json
import os
import platform
import queue
import signal
import threading

# An interrupt at the terminal is meant for the parent, whose end is the end of stdin.
signal.signal(signal.SIGINT, signal.SIG_IGN)
# Replies alone go to stdout. What libraries print goes to stderr, and they have nothing to read.
requests_file = os.fdopen(os.dup(0), "rb")
replies_file = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

lock = threading.Lock()
requests = queue.Queue()
# Ids of requests that have not been answered, and of those among them that are not wanted any more.
open_ids, cancelled_ids = set(), set()


class Cancelled(Exception):
    """The parent does not want the rest."""


def reply(request_id, **fields):
    # Escapes keep a line in ASCII, whatever the text holds.
    line = json.dumps({"id": request_id, **fields}).encode("ascii") + b"\n"
    with lock:
        replies_file.write(line)
        replies_file.flush()


def read_requests():
    """Reads while the main thread generates, so that a cancellation is seen at once."""
    for line in requests_file:
        try:
            request = json.loads(line)
            request_id, command = request["id"], request["command"]
        except (ValueError, KeyError, TypeError) as error:
            reply(None, error=f"no request: {error!r}")
            continue
        with lock:
            if command == "cancel":
                cancelled_ids.update(open_ids & {request_id})
                continue
            if command == "quit":
                cancelled_ids.update(open_ids)
            open_ids.add(request_id)
        requests.put(request)
    # The parent is gone.
    os._exit(0)


def check(request_id):
    if request_id in cancelled_ids:
        raise Cancelled


def whole(text):
    """Text without halves of characters, which JSON cannot carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


class Session:
    def __init__(self):
        self.model = self.tokenizer = None

    def probe(self, _):
        if importlib.util.find_spec("mlx_lm") is None:
            return {"error": f"Python {platform.python_version()} at {sys.executable} has no module mlx_lm"}
        try:
            version = importlib.metadata.version("mlx-lm")
        except importlib.metadata.PackageNotFoundError:
            version = None
        return {"ok": True, "python": platform.python_version(), "mlx_lm": version}

    def load(self, request):
        from mlx_lm import load

        self.model, self.tokenizer = load(request["path"])
        info = self.info(request)
        return {key: info[key] for key in ("ok", "model_type", "vocab_size")}

    def info(self, _):
        model = self.loaded()
        args = getattr(model, "args", None)
        text = getattr(args, "text_config", None) or {}
        number = lambda name: getattr(args, name, None) or (text.get(name) if isinstance(text, dict) else None)
        layers = getattr(model, "layers", None)
        return {
            "ok": True,
            "model_type": getattr(model, "model_type", None),
            "vocab_size": number("vocab_size"),
            "layers": None if layers is None else len(layers),
            "hidden_size": number("hidden_size"),
        }

    def generate(self, request):
        self.loaded()
        return self.stream(request, self.tokenizer.encode(request["prompt"]))

    def chat(self, request):
        self.loaded()
        text = self.tokenizer.apply_chat_template(request["messages"], tokenize=False, add_generation_prompt=True)
        # The template has written the special tokens that come first.
        return self.stream(request, self.tokenizer.encode(text, add_special_tokens=False))

    def stream(self, request, prompt):
        import mlx.core as mx
        from mlx_lm import stream_generate
        from mlx_lm.sample_utils import make_sampler

        request_id, context = request["id"], request["context"]
        prompt = list(prompt)
        reply(request_id, prompt_tokens=len(prompt))
        if not prompt:
            raise ValueError("the prompt has no tokens")
        # The last token that is drawn needs no place.
        room = None if context is None else context + 1 - len(prompt)
        most = min((limit for limit in (request["max_tokens"], room) if limit is not None), default=-1)
        if most == 0 or room is not None and room <= 0:
            return {"done": "length" if request["max_tokens"] == 0 else "context"}

        def prefilled(tokens, _):
            check(request_id)
            reply(request_id, prefilled=tokens)

        mx.random.seed(request["seed"])
        sampler = make_sampler(
            temp=request["temperature"], top_p=request["top_p"], min_p=request["min_p"], top_k=request["top_k"]
        )
        options = {"max_tokens": most, "sampler": sampler, "prompt_progress_callback": prefilled}
        for response in stream_generate(self.model, self.tokenizer, prompt, **options):
            # The end token is no part of the text; what was held back for an incomplete character is.
            ended = response.finish_reason == "stop"
            if response.text or not ended:
                reply(request_id, token=whole(response.text), token_id=None if ended else int(response.token))
            check(request_id)
        full = response.finish_reason == "length" and most != request["max_tokens"]
        return {"done": "context" if full else response.finish_reason}

    def loaded(self):
        if self.model is None:
            raise ValueError("no model is loaded")
        return self.model


def main():
    threading.Thread(target=read_requests, daemon=True).start()
    session = Session()
    commands = ("probe", "load", "info", "generate", "chat")
    while True:
        request = requests.get()
        request_id, command = request["id"], request["command"]
        if command == "quit":
            reply(request_id, ok=True)
            return
        try:
            check(request_id)
            if command not in commands:
                raise ValueError(f"there is no command {command!r}")
            answer = getattr(session, command)(request)
        except Cancelled:
            answer = {"done": "cancelled"}
        except BaseException as error:
            answer = {"error": whole(f"{type(error).__name__}: {error}")}
        with lock:
            open_ids.discard(request_id)
            cancelled_ids.discard(request_id)
        reply(request_id, **answer)


main()
# Daemon threads wait in a read that nothing ends.
os._exit(0)
