"""Bodies that take memory, time or threads. Beside each of them /health answers at once, and behind it memory is back."""

import contextlib
import struct
import time

from sounds import form, slow_grammar, slow_schema, wav
from target import WHISPER, Server, expect, folder, health_stays, soon, together

TEXT = " fire and ice, 77 times"
MOST = 16 << 20


def warm(server):
    """Resident memory behind the first requests, which fill what is filled once."""
    for _ in range(3):
        server.post("/completion", {"prompt": "a", "n_predict": 1})
    time.sleep(1.5)
    return server.resident()


def held_bodies():
    """Sixty bodies of 16 MiB whose last bytes never come take a bounded share of memory."""
    with Server("--cache-ram", "0", "-np", "1") as server:
        before, held = warm(server), []
        with health_stays(server):
            for _ in range(60):
                with contextlib.suppress(OSError):
                    connection = server.send_raw(server.head("/completion", MOST - 64))
                    held.append(connection)
                    for _ in range(15):
                        connection.sendall(b" " * (1 << 20))
            expect(server.resident() - before < 800, f"{server.resident() - before:.0f} MiB are held")
            expect(server.post("/completion", {"prompt": "a", "n_predict": 1})[0] == 200, "a short request is refused")
            for connection in held:
                connection.close()
        server.memory_back(before)


def grown_bodies():
    """Bodies whose values would take many times as much memory as their text."""
    with Server("--cache-ram", "0", "-np", "1") as server:
        before = warm(server)
        kinds = [(b"1,", 8 << 20), (b'{"a":1},', 2 << 20), (b'{"a":{"a":{"a":1}}},', 800_000), (b"[],", 5 << 20), (b'"a",', 4 << 20)]
        bodies = [(b'{"prompt":"a","n_predict":1,"nothing":[' + item * (count - 64) + b"1]}")[: MOST + 64] for item, count in kinds]
        with health_stays(server):
            for body in bodies:
                status = server.request("POST", "/completion", body, timeout=120)[0]
                expect(status in (200, 400, 413, 503), f"{body[40:60]}: {status}")
            statuses = together(*[lambda body=body: server.request("POST", "/completion", body, timeout=120)[0] for body in bodies * 2])
            expect(all(status in (200, 400, 413, 503) for status in statuses), f"{statuses}")
        expect(server.status("VmHWM") / 1024 - before < 1500, f"the peak is {server.status('VmHWM') / 1024:.0f} MiB")
        server.memory_back(before)


def unknown_fields():
    """Fields that nobody reads are not kept while a request runs or waits."""
    body = b'{"prompt":"a","n_predict":%d,"ignore_eos":true,"stream":%s,"nothing":[' + b'{"a":{"a":{"a":1}}},' * 40_000 + b"1]}"
    for stream in (b"false", b"true"):
        with Server("--cache-ram", "0", "-np", "1") as server:
            server.request("POST", "/completion", body % (1, b"false"))
            before = warm(server)
            with health_stays(server):
                held = [server.begin("/completion", body % (3000, stream)) for _ in range(6)]
                soon(lambda: server.metrics()["llamacpp:requests_processing"] == 1, "nothing runs")
                soon(lambda: server.resident() - before < 60, f"{server.resident() - before:.0f} MiB are kept")
                for connection in held:
                    connection.close()
            server.memory_back(before)


def long_texts():
    """A text of six megabytes is cut into pieces."""
    with Server("--cache-ram", "0", "-np", "1") as server:
        before = warm(server)
        with health_stays(server):
            text = TEXT * (6_000_000 // len(TEXT))
            status, _ = server.post("/tokenize", {"content": text, "with_pieces": True}, timeout=200)
            expect(status == 200, f"{status}")
        expect(server.status("VmHWM") / 1024 < 1500, f"the peak is {server.status('VmHWM') / 1024:.0f} MiB")
        server.memory_back(before)


def biased_texts():
    """A text as a key of `logit_bias` counts by its tokens."""
    with Server("--cache-ram", "0") as server:
        before = warm(server)
        with health_stays(server):
            for count in (3000, 1_000_000 // len(TEXT), 15_000_000 // len(TEXT)):
                ask = {"prompt": "a", "n_predict": 4, "logit_bias": [[TEXT * count, 1.0]]}
                statuses = together(*[lambda: server.post("/completion", ask, timeout=100)[0]] * 4)
                expect(all(status in (400, 503) for status in statuses), f"{count}: {statuses}")
        server.memory_back(before)


def dripping_bodies():
    """A body that drips has a deadline, however steadily it comes."""
    with Server("--cache-ram", "0", "-np", "1", "--client-timeout", "2") as server:
        connection = server.send_raw(server.head("/completion", 10 << 20))
        began, answer = time.monotonic(), b""
        connection.settimeout(0.2)
        while time.monotonic() - began < 20 and not answer:
            with contextlib.suppress(TimeoutError, BrokenPipeError):
                connection.sendall(b" " * 2000)
                answer = connection.recv(100)
        expect(b" 408 " in answer, f"{answer} behind {time.monotonic() - began:.0f} s")


def slow_grammars():
    """Grammars that cannot be compiled in time hold up neither others nor the end, and their threads end."""
    with Server("--cache-ram", "64") as server:
        server.post("/completion", {"prompt": "a", "n_predict": 1, "grammar": 'root ::= "a"'})
        with health_stays(server):
            asks = [lambda at=at: server.post("/completion", {"prompt": "a", "n_predict": 1, "json_schema": slow_schema(str(at))}, timeout=120)[0] for at in range(6)]
            statuses = together(*asks, lambda: server.post("/completion", {"prompt": "b", "n_predict": 4}, timeout=8)[0])
        expect(statuses[-1] == 200, f"somebody else: {statuses[-1]}")
        expect(all(status in (400, 503) for status in statuses[:-1]), f"{statuses}")

        def rests():
            began = server.cpu_s()
            time.sleep(1)
            return server.cpu_s() - began < 0.2

        soon(rests, "threads of grammars go on", 30)
        expect(server.end_s() < 8, "grammars hold up the end")


def slow_grammars_of_transcriptions():
    """Slow grammars in forms with a sound hold up nobody either."""
    with Server("--cache-ram", "64", "-m", WHISPER) as server, health_stays(server):
        bodies = [form({"grammar": slow_grammar("q" * at)}, wav()) for at in range(1, 4)]
        statuses = together(*[lambda body=body, kind=kind: server.request("POST", "/v1/audio/transcriptions", body, kind, 120)[0] for body, kind in bodies])
        expect(all(status in (200, 400, 503) for status in statuses), f"{statuses}")


def odd_forms():
    """Forms that blow up, and sounds that lie about their size."""
    with folder() as slots, Server("--cache-ram", "0", "-m", WHISPER, "--slot-save-path", slots) as server:
        plain, kind = form({}, wav())
        server.request("POST", "/v1/audio/transcriptions", plain, kind)
        time.sleep(1.5)
        before, path = server.resident(), "/v1/audio/transcriptions"
        tone = wav()
        sounds = [
            tone[:40] + b"\xff" * 4 + tone[44:], tone[:24] + struct.pack("<I", 1) + tone[28:], tone[:24] + b"\xff" * 4 + tone[28:],
            tone[:22] + b"\xff\xff" + tone[24:], tone[:22] + b"\0\0" + tone[24:], b"fLaC" + tone, b"OggS" + tone, b"ID3\4\0\0" + b"\x7f" * 4 + tone,
            b"\0\0\0\x18ftypM4A " + tone, b"\x1aE\xdf\xa3" + tone,
        ]
        part = b'--x\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        forms = [
            b"".join(part % (b"a%d" % at, b"v") for at in range(100_000)) + b"--x--", part % (b"n" * 20_000_000, b"v") + b"--x--",
            b"--x\r\n" + b"A: b\r\n" * 3_000_000 + b"\r\n\r\n--x--", b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + b"\r\n--" * 4_000_000,
            part % (b"prompt", b"word " * 4_000_000) + plain, b"".join(part % (b"a" + b"[b]" * 3000, b"v") for _ in range(10)) + b"--x--",
        ]
        with health_stays(server):
            for sound in sounds:
                body, kind = form({}, sound)
                status = server.request("POST", path, body, kind)[0]
                expect(status in (200, 400), f"{sound[:30]}: {status}")
            for body in forms:
                status = server.request("POST", path, body, kind)[0]
                expect(status in (400, 413), f"{body[:60]}: {status}")
        server.memory_back(before)


ATTACKS = [
    held_bodies, grown_bodies, unknown_fields, long_texts, biased_texts, dripping_bodies, slow_grammars, slow_grammars_of_transcriptions, odd_forms,
]
