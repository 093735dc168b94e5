"""A server to attack: starts `brasa serve`, asks it, and looks at its process. Standard library only."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(REPOSITORY, "models")
LLAMA, GEMMA, WHISPER = (os.path.join(MODELS, name) for name in ("tiny-llama", "tiny-gemma4", "tiny-whisper"))
LEXICON = os.path.join(MODELS, "lexicon-qwen3")
BRASA = os.environ.get("BRASA", os.path.join(REPOSITORY, "target/release/brasa"))
# A busy machine answers later than an idle one.
HEALTH_S = float(os.environ.get("HEALTH_MS", "50")) / 1000


class Wrong(Exception):
    """An attack had an effect that it must not have."""


def expect(condition, what):
    """Fails the attack unless `condition` holds."""
    if not condition:
        raise Wrong(what)


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server on a port of its own, from its start to its end."""

    def __init__(self, *flags, stderr=None, env=None):
        self.port = free_port()
        self.log_file = tempfile.TemporaryFile()
        command = [BRASA, "serve", "--host", "127.0.0.1", "--port", str(self.port), "-t", "2", *flags]
        environment = {**os.environ, **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=stderr or self.log_file, env=environment
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    return
            ended = self.process.poll() is not None
            expect(not ended and time.monotonic() < deadline, f"the server did not start: {self.log()[-1000:]}")
            time.sleep(0.02)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, body and answer of a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer

    def get(self, path, timeout=10):
        """Status and body."""
        return self.request("GET", path, timeout=timeout)[:2]

    def json(self, path):
        """The body of a GET as JSON."""
        return json.loads(self.get(path)[1])

    def post(self, path, body, timeout=60, headers=None):
        """Status and JSON body."""
        status, data, _ = self.request("POST", path, body, headers, timeout)
        try:
            return status, json.loads(data)
        except ValueError:
            return status, data

    def begin(self, path, body, receive_buffer=None):
        """A connection that has sent a request and reads nothing yet."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send_raw(self.head(path, len(data)) + data, receive_buffer)

    def head(self, path, length):
        """The head of a POST."""
        return f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-length: {length}\r\n\r\n".encode()

    def send_raw(self, data, receive_buffer=None):
        """A connection that has sent these bytes."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(data)
        return connection

    def raw(self, data, timeout=5):
        """Everything that comes back for these bytes until the connection ends or falls silent."""
        out = b""
        with contextlib.suppress(OSError):
            connection = self.send_raw(data)
            connection.settimeout(timeout)
            while part := connection.recv(65536):
                out += part
        return out

    def status(self, name):
        """A number of the process's status, e.g. kibibytes of VmRSS."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))

    def resident(self):
        """Resident memory in MiB."""
        return self.status("VmRSS") / 1024

    def cpu_s(self):
        """Seconds of processors so far."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self):
        """Prometheus's figures."""
        lines = self.get("/metrics")[1].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def busy_slots(self, model=""):
        """Slots in which something runs."""
        query = f"?model={model}" if model else ""
        return sum(slot["is_processing"] for slot in self.json("/slots" + query))

    def models(self):
        """The state of every model."""
        return {model["id"]: model["status"]["value"] for model in self.json("/v1/models")["data"]}

    def log(self):
        """The log so far."""
        self.log_file.seek(0)
        return self.log_file.read().decode(errors="replace")

    def requests_logged(self):
        """Lines of requests in the log."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if "method" in line]

    def memory_back(self, before, patience_s=15):
        """Fails unless resident memory comes back to within a fifth of `before` MiB."""
        soon(lambda: self.resident() <= before * 1.2, f"resident memory stays above {before:.0f} MiB + 20 %: {self.resident():.0f} MiB", patience_s)

    def end_s(self, patience_s=20):
        """Seconds from SIGTERM to the end of the process."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(patience_s)
        return time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            if kind is None:
                expect(self.get("/health")[0] == 200, "the server is not in health behind the attack")
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if kind is None:
            expect("panicked" not in self.log(), "something panicked")


def soon(condition, what, patience_s=15):
    """Fails unless `condition` holds within some seconds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        expect(time.monotonic() < deadline, what)
        time.sleep(0.1)


def together(*works):
    """Runs works at once and returns their results."""
    results = [None] * len(works)

    def run(at):
        try:
            results[at] = works[at]()
        except OSError as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextlib.contextmanager
def health_stays(server, limit_s=None):
    """Fails if /health takes longer than the limit while the block runs."""
    limit_s = limit_s or HEALTH_S
    program = os.path.join(os.path.dirname(__file__), "health.py")
    watch = subprocess.Popen([sys.executable, program, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first = watch.stdout.readline().strip()
    expect(first == "began", first or "/health cannot be asked")
    try:
        yield
    finally:
        last = watch.communicate()[0].strip()
    expect(watch.returncode == 0, last or "/health could be asked no more")
    expect(float(last) <= limit_s, f"/health took {float(last) * 1000:.0f} ms, expected at most {limit_s * 1000:.0f}")


def events(connection):
    """The data of a stream of events, to its end."""
    out, reader = [], connection.makefile("rb")
    with contextlib.suppress(OSError):
        for line in reader:
            if line.startswith(b"data: "):
                out.append(line[6:].decode(errors="replace").strip())
                if out[-1] == "[DONE]" or '"stop":true' in out[-1] or '"error"' in out[-1]:
                    break
    return out


@contextlib.contextmanager
def folder():
    """An empty folder for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="brasa-attack-") as path:
        yield path
