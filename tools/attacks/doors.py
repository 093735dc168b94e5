"""The doors in front of all handlers: names, heads, bodies that nobody reads, the log."""

import http.client
import json
import os
import signal
import time

from target import LLAMA, Server, expect, soon

ASK = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2}'


def rebound_names():
    """A page whose name was rebound to 127.0.0.1 is refused, whatever it asks for."""
    with Server("--cache-ram", "64") as server:
        own = f"127.0.0.1:{server.port}"

        def ask(host, origin, method="POST", path="/v1/chat/completions", body=ASK):
            head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n" + (f"Origin: {origin}\r\n" if origin else "")
            head += f"Content-Type: text/plain\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            return int(server.raw(head.encode() + body, 20).split(b" ")[1])

        expect(ask(own, None) == 200, "a program is refused")
        expect(ask(own, f"http://{own}") == 200, "the own page is refused")
        expect(ask(f"localhost:{server.port}", None) == 200, "localhost is refused")
        evil = f"evil.example:{server.port}"
        for host, origin in [(own, "http://evil.example"), (evil, f"http://{evil}"), ("evil.example", None), (own, f"file://{own}"), (f"127.0.0.1.evil.example:{server.port}", None)]:
            expect(ask(host, origin) == 403, f"{host} with the origin {origin} is served")
        for path, method in [("/models/load", "POST"), ("/models/unload", "POST"), ("/slots", "GET"), ("/", "GET"), ("/v1/models", "GET")]:
            expect(ask(evil, f"http://{evil}", method, path, b"") == 403, f"{path} is served under a rebound name")


def odd_heads():
    """Heads that smuggle, lie or grow get one answer or none; nothing needs no key that should need one."""
    with Server("--cache-ram", "0", "-np", "1", "-m", LLAMA, "--api-key", "k", "--client-timeout", "3") as server:
        key, body = "Authorization: Bearer k\r\n", '{"content":"a b"}'
        length = len(body)
        second = f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{key}Connection: close\r\n\r\n"
        post, get = f"POST /tokenize HTTP/1.1\r\nHost: x\r\n{key}", f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{key}"
        close = "Connection: close\r\n\r\n"
        cases = {
            "plain": (f"{post}Content-Length: {length}\r\n{close}{body}", [200]),
            "two lengths": (f"{post}Content-Length: {length}\r\nContent-Length: 1\r\n{close}{body}", [400]),
            "a list of lengths": (f"{post}Content-Length: {length}, {length}\r\n{close}{body}", [200, 400]),
            "a signed length": (f"{post}Content-Length: +{length}\r\n{close}{body}", [400]),
            "a length below zero": (f"{post}Content-Length: -1\r\n{close}{body}", [400]),
            "a huge length": (f"{post}Content-Length: {10**23}\r\n{close}{body}", [400, 413]),
            "an unknown encoding": (f"{post}Content-Length: {length}\r\nTransfer-Encoding: xchunked\r\n{close}{body}", [400, 501]),
            "a huge chunk": (f"{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{body}\r\n0\r\n\r\n", [400, 408, 413]),
            "a chunk below zero": (f"{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n{body}\r\n0\r\n\r\n", [400]),
            "a long extension": (f"{post}Transfer-Encoding: chunked\r\n{close}{length:x};{'a' * 20000}\r\n{body}\r\n0\r\n\r\n", [200, 400]),
            "many trailers": (f"{post}Transfer-Encoding: chunked\r\n{close}{length:x}\r\n{body}\r\n0\r\n" + "X-a: b\r\n" * 3000 + "\r\n", [200, 400]),
            "a space in front of the colon": (f"{post}Content-Length : {length}\r\n{close}{body}", [400]),
            "a folded line": (f"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization:\r\n Bearer k\r\nContent-Length: {length}\r\n{close}{body}", [400, 401]),
            "200 headers": (get + "".join(f"X-{at}: y\r\n" for at in range(200)) + close, [431]),
            "a header of 600 kB": (f"{get}X: {'y' * 600_000}\r\n{close}", [431]),
            "a path of 70 kB": (f"GET /{'a' * 70_000} HTTP/1.1\r\nHost: x\r\n{key}{close}", [404, 414, 431]),
            "a NUL": (f"GET /v1/models\0 HTTP/1.1\r\nHost: x\r\n{key}{close}", [400]),
            "another target": (f"GET http://other/v1/models HTTP/1.1\r\nHost: x\r\n{key}{close}", [200, 403]),
            "a tunnel": (f"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n{key}{close}", [400, 404, 405]),
            "a key in the target": (f"GET /v1/models?api_key=k HTTP/1.1\r\nHost: x\r\n{close}", [401]),
            "a body without a key": ("POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + "a" * 1_000_000, [401]),
        }
        for path in ["/health/../v1/models", "//v1/models", "/assets/../v1/models", "/assets/%2e%2e/%2e%2e/etc/passwd", "/v1/models"]:
            cases[f"no key, {path}"] = (f"GET {path} HTTP/1.1\r\nHost: x\r\n{close}", [401, 404])
        cases["no key, OPTIONS"] = (f"OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n{close}", [401])
        for name, (text, statuses) in cases.items():
            answers = [int(part[2:5]) for part in server.raw(text.encode("latin1")).split(b"HTTP/1.")[1:]]
            expect(all(answer in statuses for answer in answers) and len(answers) <= 1, f"{name}: {answers}, expected {statuses}")
        both = f"{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n{second}"
        answers = [int(part[2:5]) for part in server.raw(both.encode()).split(b"HTTP/1.")[1:]]
        expect(answers in ([200, 200], [200], [400]), f"length and chunks: {answers}")


def unread_bodies():
    """An answer before the body is read leaves its connection usable, or says that it closes."""
    with Server("--cache-ram", "0", "-np", "1", "-m", LLAMA) as server:
        small, large = b'{"a":1}', json.dumps({"pad": "y" * 300_000}).encode()
        evil = {"Origin": "http://evil.example"}
        for method, path, body, headers in [
            ("POST", "/nope", small, {}), ("POST", "/nope", large, {}), ("DELETE", "/completion", small, {}), ("POST", "/props", small, {}),
            ("POST", "/props", large, {}), ("POST", "/slots/0?action=erase", small, {}), ("POST", "/completion", small, evil),
            ("POST", "/completion", large, evil), ("GET", "/health", small, {}), ("GET", "/health", large, {}), ("POST", "/completion", small, {}),
            ("POST", "/completion", b"x" * (17 << 20), {}), ("POST", "/completion", b"{", {}), ("POST", "/nope", iter([small, b"x"]), {"Transfer-Encoding": "chunked"}),
        ]:
            case = f"{method} {path}, {len(body) if isinstance(body, bytes) else 'chunked'} bytes"
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            time.sleep(0.05)
            if answer.getheader("connection") != "close":
                connection.request("GET", "/health")
                expect(connection.getresponse().status == 200, f"{case}: the next request is lost")


def answers_without_bodies():
    """Clients of answers that have no body have not gone away."""
    with Server("--cache-ram", "64", "--cors-origin", "http://mine.example") as server:
        tag = server.request("GET", "/")[2].getheader("etag")
        server.request("GET", "/", headers={"If-None-Match": tag})
        server.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://mine.example", "Access-Control-Request-Method": "POST"})
        server.request("HEAD", "/health")
        server.post("/completion", {"prompt": "a", "n_predict": 2})
        soon(lambda: len(server.requests_logged()) >= 5, "requests are missing in the log")
        gone = [line for line in server.requests_logged() if line.get("client_gone")]
        expect(not gone, f"false client_gone: {gone}")


def full_pipe_of_the_log():
    """A log that nobody reads holds nobody up, neither requests nor the end."""
    reading, writing = os.pipe()
    server = Server("--cache-ram", "64", stderr=writing)
    try:
        for at in range(6000):
            expect(server.get("/health", timeout=5)[0] == 200, f"request {at}")
        expect(server.metrics()["brasa:log_lines_dropped_total"] > 0, "no line is told as dropped")
        expect(server.end_s(10) < 8, "the end waits for the log")
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        os.close(reading)
        os.close(writing)


ATTACKS = [rebound_names, odd_heads, unread_bodies, answers_without_bodies, full_pipe_of_the_log]
