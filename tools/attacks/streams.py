"""Streams whose readers are slow, silent or gone, and the end of the server beside them."""

import random
import socket
import threading
import time

from sounds import form, wav
from target import LLAMA, WHISPER, Server, events, expect, health_stays, soon


def parked_streams():
    """Streams that wait for their reader end at --timeout, and do not hold up the end."""
    with Server("--cache-ram", "64", "--timeout", "12", "-np", "8", "-m", LLAMA, "-c", "8192") as server:
        ask = {"prompt": ["a"] * 4, "n_predict": 8000, "ignore_eos": True, "stream": True, "n_probs": 20}
        connection = server.begin("/completion", ask, 65536)
        over = threading.Event()

        def drip():
            while not over.is_set():
                try:
                    if not connection.recv(4000):
                        return
                except OSError:
                    return
                time.sleep(0.05)

        reader = threading.Thread(target=drip)
        reader.start()
        try:
            with health_stays(server):
                soon(lambda: server.busy_slots() > 0, "nothing runs")
                soon(lambda: server.busy_slots() == 0, "streams outlive --timeout", 20)
            expect(server.end_s() < 8, "slow readers hold up the end")
        finally:
            over.set()
            reader.join()


def end_beside_a_long_answer():
    """An answer that would take long has its time to finish, then an error; the server ends."""
    with Server("--cache-ram", "64", "--shutdown-timeout", "1", "-m", LLAMA, "-c", "65536") as server:
        connection = server.begin("/completion", {"prompt": "a", "n_predict": 60_000, "ignore_eos": True, "stream": True})
        connection.recv(300)
        reader = threading.Thread(target=lambda: ends.extend(events(connection)[-1:]))
        ends = []
        reader.start()
        took = server.end_s()
        reader.join()
        expect(took < 6, f"{took:.1f} s behind SIGTERM")
        expect(ends and "shutting_down" in ends[0], f"the stream ended with {ends}")


def waiting_or_running(server):
    metrics = server.metrics()
    return metrics["llamacpp:requests_processing"] + metrics["llamacpp:requests_deferred"]


def unread_streams():
    """A hundred clients ask for long streams and never read; somebody else is served, and everything is freed."""
    with Server("--cache-ram", "64", "-np", "16", "-m", LLAMA, "--client-timeout", "5") as server:
        for _ in range(3):
            server.post("/completion", {"prompt": "a", "n_predict": 400, "ignore_eos": True})
        before = server.resident()
        with health_stays(server):
            ask = {"max_tokens": 900, "n": 2, "stream": True, "logprobs": 20, "ignore_eos": True}
            held = [server.begin("/v1/completions", {"prompt": f"a {at}", **ask}, 4096) for at in range(100)]
            soon(lambda: waiting_or_running(server) > 16, "nobody's request has come")
            soon(lambda: waiting_or_running(server) == 0, "silent readers keep their places", 90)
            status, _ = server.post("/completion", {"prompt": "somebody else", "n_predict": 4}, timeout=10)
            expect(status == 200, f"somebody else: {status}")
            for connection in held:
                connection.close()
        # The cache has grown to what it may have.
        server.memory_back(before + 64)


def clients_that_leave():
    """Clients leave at random moments; who stays has the right answer, and nothing is left running."""
    with Server("--cache-ram", "64", "-np", "8", "-m", LLAMA, "-m", WHISPER, "--max-queue", "64") as server:
        stay = {"model": "tiny-llama", "prompt": "the river is", "n_predict": 24, "temperature": 0}
        reference, sound, wrong = server.post("/completion", stay)[1]["content"], wav(5), []

        def storm(seed):
            draw = random.Random(seed)
            for _ in range(100):
                schema = {"type": "object", "properties": {f"k{draw.randrange(40)}": {"type": "string"}}}
                path, ask = draw.choice([
                    ("/completion", {"prompt": "x " * draw.choice([1, 400]), "n_predict": 300, "ignore_eos": True, "stream": True}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 200, "stream": draw.random() < 0.5}),
                    ("/v1/embeddings", {"input": ["y " * 300] * 4}),
                    ("/completion", {"prompt": "j", "json_schema": schema, "stream": True}),
                ])
                try:
                    if draw.random() < 0.05:
                        body, kind = form({"model": "tiny-whisper"}, sound)
                        head = server.head("/v1/audio/transcriptions", len(body))[:-2]
                        connection = server.send_raw(head + f"content-type: {kind['content-type']}\r\n\r\n".encode() + body)
                    else:
                        connection = server.begin(path, {**ask, "model": "tiny-llama"})
                    time.sleep(draw.choice([0, 0, 0.001, 0.01, 0.05]))
                    if draw.random() < 0.5:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.close()
                except OSError:
                    pass

        def company():
            for _ in range(20):
                status, answer = server.post("/completion", stay, timeout=120)
                if status not in (200, 503) or status == 200 and answer["content"] != reference:
                    wrong.append((status, answer))

        threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(8)] + [threading.Thread(target=company)]
        with health_stays(server):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        expect(not wrong, f"{wrong[:3]}")
        soon(lambda: server.busy_slots("tiny-llama") == 0, "slots stay busy")


ATTACKS = [parked_streams, end_beside_a_long_answer, unread_streams, clients_that_leave]
