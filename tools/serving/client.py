"""A small HTTP client over asyncio for measuring servers of `/completion`: Brasa's and llama.cpp's. Python alone is needed."""

import asyncio
import dataclasses
import json
import random
import time
import urllib.parse


@dataclasses.dataclass
class Answer:
    """What came back for a request, and when. Times are seconds after the request was sent."""

    status: int = 0
    text: str = ""
    error: str = ""
    last: dict = dataclasses.field(default_factory=dict)
    times: list = dataclasses.field(default_factory=list)
    counts: list = dataclasses.field(default_factory=list)
    end: float = 0.0

    @property
    def tokens(self):
        """Tokens of the answer as the server counts them."""
        return self.last.get("tokens_predicted", 0)

    @property
    def first(self):
        """Seconds until the first part."""
        return self.times[0] if self.times else self.end

    @property
    def gaps(self):
        """Seconds between tokens. A part that came with several, since those before it ended within a character, has as many equal gaps."""
        gaps = []
        for place in range(1, len(self.times)):
            tokens = max(1, self.counts[place] - self.counts[place - 1])
            gaps += [(self.times[place] - self.times[place - 1]) / tokens] * tokens
        return gaps


class Server:
    """Where a server listens."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80

    async def connect(self):
        """A connection: reader and writer."""
        return await asyncio.open_connection(self.host, self.port, limit=1 << 24)

    def head(self, method, path, length):
        """The head of a request on a connection of its own."""
        return (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    async def ask(self, path, body=None, leave_after=None):
        """Asks for a whole answer, GET without a body. `leave_after` parts of a stream the client hangs up."""
        answer, started = Answer(), time.perf_counter()
        try:
            reader, writer = await self.connect()
        except OSError as error:
            answer.error = f"no connection: {error}"
            return answer
        try:
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(self.head("GET" if body is None else "POST", path, len(data)) + data)
            await writer.drain()
            await self._read(reader, answer, started, leave_after)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        finally:
            answer.end = time.perf_counter() - started
            writer.close()
        return answer

    async def _read(self, reader, answer, started, leave_after):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        answer.status = int(head.split(" ")[1])
        is_chunked, is_stream = "transfer-encoding: chunked" in head, "text/event-stream" in head
        rest = b""
        while True:
            if is_chunked:
                size = int(await reader.readline(), 16)
                part = (await reader.readexactly(size + 2))[:-2]
            else:
                part = await reader.read(1 << 16)
            if not part:
                break
            rest += part
            if not is_stream or answer.status != 200:
                continue
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    answer.error = str(event["error"])
                    continue
                answer.last = event
                if event.get("content"):
                    answer.times.append(time.perf_counter() - started)
                    answer.counts.append(event.get("tokens_predicted", len(answer.times)))
                    answer.text += event["content"]
                    if leave_after is not None and len(answer.times) >= leave_after:
                        return
        if not is_stream or answer.status != 200:
            try:
                answer.last = json.loads(rest)
            except ValueError:
                answer.last = {}
            answer.text = answer.last.get("content", "") if isinstance(answer.last, dict) else ""


WORDS = (
    "the of and to in is was for on that with as his they at be this from have or by one had not but what all were when we there can an "
    "your which their said if do will each about how up out them then she many some so these would other into has more her two like him "
    "see time could no make than first been its who now people my made over did down only way find use may water long little very after"
).split()


def words(rng, count):
    """A text of so many common words, about a token each."""
    return " ".join(rng.choices(WORDS, k=count))


def request(seed, prompt_words, answer_tokens, prefix="", **fields):
    """A sampled request whose prompt, length and answer depend on `seed` alone."""
    rng = random.Random(seed)
    return {
        "prompt": prefix + words(rng, rng.randint(*prompt_words)),
        "n_predict": rng.randint(*answer_tokens),
        "ignore_eos": True,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "seed": seed,
        "stream": True,
        "cache_prompt": True,
        **fields,
    }


def share(values, part):
    """The value below which `part` of the values lie; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
