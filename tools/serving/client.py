"""A small HTTP client over asyncio for measuring servers of `/completion`: Brasa's and llama.cpp's. Python alone is needed."""

import asyncio
import json
import random
import time
import urllib.parse


# Seconds between tokens below which nobody sees them apart.
TOGETHER = 2e-3


class Answer:
    """What came back for a request, and when. Times are seconds after the request was sent.

    It is kept as it came and read when it is first looked at, so that a client that shares the server's cores takes little of them while it measures.
    """

    FIELDS = ("status", "text", "last", "times", "counts", "error")

    def __init__(self, failure=""):
        self.pieces, self.failure, self.end = [], failure, 0.0  # (seconds, bytes) as they came

    def __getattr__(self, name):
        """`status`, `text`, the last event, the times of parts, the tokens until then, and what went wrong."""
        if name not in self.FIELDS:
            raise AttributeError(name)
        self.read()
        return self.__dict__[name]

    def read(self):
        """Reads what has come so far."""
        self.status, self.text, self.last, self.times, self.counts, self.error = 0, "", {}, [], [], self.failure
        try:
            self._read()
        except ValueError as error:
            self.error = self.error or f"{type(error).__name__}: {error}"

    def _read(self):
        come = b"".join(piece for _, piece in self.pieces)
        head, found, body = come.partition(b"\r\n\r\n")
        if not found:
            self.error = self.error or "no head came"
            return
        head = head.decode().lower()
        self.status = int(head.split(" ")[1])
        body = self._chunks(body) if "transfer-encoding: chunked" in head else body
        if self.status != 200 or "text/event-stream" not in head:
            self.last = json.loads(body) if body.startswith((b"{", b"[")) else {}
            self.text = self.last.get("content", "") if isinstance(self.last, dict) else ""
            return
        ends = self._event_ends()
        for line in body.split(b"\n")[:-1]:
            if not line.startswith(b"data: "):
                continue
            time_of_event = next(ends, self.end)
            if line == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self.error = str(event["error"])
                continue
            self.last = event
            if event.get("content"):
                self.times.append(time_of_event)
                self.counts.append(event.get("tokens_predicted", len(self.times)))
                self.text += event["content"]

    def _chunks(self, body):
        """The bytes of a chunked body; that it ends early is an error."""
        parts, at = [], 0
        while True:
            size, found, _ = body[at : at + 20].partition(b"\r\n")
            if not found:
                self.error = self.error or "the answer ends early"
                break
            length = int(size, 16)
            if length == 0:
                break
            at += len(size) + 2
            parts.append(body[at : at + length])
            at += length + 2
        return b"".join(parts)

    def _event_ends(self):
        """When each event had come whole, as far as pieces tell: with the piece in which its line ends."""
        tail = b""
        for when, piece in self.pieces:
            tail += piece
            *lines, tail = tail.split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield when

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
        """Seconds between tokens as a reader sees them.

        A part may come with several tokens. If they took longer than `TOGETHER` each, those before the last ended within a character, and all have equal
        gaps. Faster ones are seen together, as are parts that arrive in one piece.
        """
        gaps, last, before = [], None, 0
        for when, count in zip(self.times, self.counts):
            if last is not None and when > last:
                gap, tokens = when - last, max(1, count - before)
                gaps += [gap / tokens] * tokens if gap / tokens > TOGETHER else [gap]
            last, before = when, count
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
            return Answer(f"no connection: {error}")
        try:
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(self.head("GET" if body is None else "POST", path, len(data)) + data)
            await writer.drain()
            # The connection is closed behind the answer, as its head asks.
            while piece := await reader.read(1 << 16):
                answer.pieces.append((time.perf_counter() - started, piece))
                if leave_after is not None:
                    answer.read()
                    if len(answer.times) >= leave_after:
                        break
        except OSError as error:
            answer.failure = f"{type(error).__name__}: {error}"
            answer.read()
        finally:
            answer.end = time.perf_counter() - started
            writer.close()
        return answer


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
