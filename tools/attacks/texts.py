"""Texts beside other texts: adapters, scores, slots, stops, company."""

import os
import random
import shutil
import threading
import time

import adapter
from target import GEMMA, LEXICON, Server, events, expect, folder, health_stays, soon, together

WORDS = "ember river stone quiet lantern meadow orbit raven timber velvet".split()


def question(word):
    """A prompt of the built-in model."""
    return f"<|im_start|>user\nWhat does {word} mean?<|im_end|>\n<|im_start|>assistant\n"


def adapters_beside_embeddings():
    """A change of adapters ends no stream, also beside an embedding."""
    with folder() as path:
        for seed, name in enumerate(("zero", "one")):
            adapter.make(f"{path}/{name}", seed)
        for slots in ("4", "1"):
            with Server("--cache-ram", "64", "-np", slots, "--lora-dir", path) as server:
                server.post("/v1/load_lora_adapter", {"lora_name": "zero", "lora_path": "zero"})
                ask = {"n_predict": 600, "ignore_eos": True, "stream": True, "temperature": 0}
                chats = [server.begin("/completion", {"prompt": f"ember {at}", **ask}) for at in range(2)]
                embed = lambda: server.post("/v1/embeddings", {"input": ["a hot fragment of wood " * 100] * 4})[0]
                change = lambda: [server.post("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": "one"})[0], server.post("/v1/unload_lora_adapter", {"lora_name": "zero"})[0]]
                embedded, changed = together(embed, change)
                expect(embedded == 200 and changed == [200, 200], f"{embedded} {changed}")
                ends = [events(chat)[-1] for chat in chats]
                expect(not any('"error"' in end for end in ends), f"{ends}")


def many_scales():
    """Scales of adapters that nobody uses any more make room for new ones."""
    with folder() as path:
        adapter.make(f"{path}/one", 1)
        with Server("--cache-ram", "64", "--lora", f"{path}/one", "-np", "16", "-q") as server:
            import http.client
            import json

            def worker(first):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                for at in range(first, 65_700, 4):
                    ask = {"prompt": [], "n_predict": 0, "lora": [{"id": 0, "scale": 1 + at / 65536}]}
                    connection.request("POST", "/completion", json.dumps(ask))
                    connection.getresponse().read()

            together(*[lambda first=first: worker(first) for first in range(4)])
            for scale in (0.123, 0.5):
                status, answer = server.post("/completion", {"prompt": "a", "n_predict": 1, "lora": [{"id": 0, "scale": scale}]})
                expect(status == 200, f"a new scale: {status} {answer}")


def adapters_come_and_go():
    """Texts of those who stay are the same while adapters come and go."""
    with folder() as path:
        for seed, name in enumerate(("one", "two", "three"), 1):
            adapter.make(f"{path}/{name}", seed)
        with Server("--cache-ram", "64", "-np", "8", "--deterministic", "--lora-dir", path) as server:
            load = lambda folder, name: server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})[0]
            load("one", "one")
            kinds = {"base": {}, "one": {"model": "lexicon-qwen3:one"}, "half": {"lora": [{"id": 0, "scale": 0.5}]}}

            def ask(kind, at):
                asked = {"prompt": question(WORDS[at % 4]), "n_predict": 24, "temperature": 0, "ignore_eos": True, **kinds[kind]}
                status, answer = server.post("/completion", asked, timeout=90)
                return answer["content"] if status == 200 else (status, answer)

            reference = {(kind, at): ask(kind, at) for kind in kinds for at in range(4)}
            wrong, over = [], threading.Event()

            def client(kind):
                at = 0
                while not over.is_set():
                    at = (at + 1) % 4
                    text = ask(kind, at)
                    if text != reference[kind, at]:
                        wrong.append((kind, at, text))

            threads = [threading.Thread(target=client, args=(kind,)) for kind in kinds]
            for thread in threads:
                thread.start()
            statuses, began = set(), time.monotonic()
            while time.monotonic() - began < 10:
                statuses |= {load("two", "two"), load("three", "two"), server.post("/v1/unload_lora_adapter", {"lora_name": "two"})[0]}
            over.set()
            for thread in threads:
                thread.join()
            expect(statuses == {200} and not wrong, f"{statuses} {wrong[:3]}")


def scores_of_prompts():
    """`echo` with log-probabilities has a deadline, ends with its client, and has the request's adapter."""
    long = "a hot fragment of wood or coal that is left from a fire " * 100
    with folder() as path:
        adapter.make(f"{path}/one", 1)
        with Server("--cache-ram", "64", "--timeout", "3", "--lora", f"{path}/one=0", "-np", "2") as server:
            score = {"echo": True, "logprobs": 0, "max_tokens": 0}
            with health_stays(server):
                began = time.monotonic()
                status, _ = server.post("/v1/completions", {"prompt": [long + str(at) for at in range(40)], **score}, timeout=120)
                expect(time.monotonic() - began < 6 and status in (200, 504), f"{status} after {time.monotonic() - began:.1f} s at --timeout 3")
                server.begin("/v1/completions", {"prompt": [long + str(at) for at in range(40)], **score}).close()

            def rests():
                spent = server.cpu_s()
                time.sleep(0.5)
                return server.cpu_s() - spent < 0.1

            soon(rests, "scoring goes on without its client", 10)

            def logprobs(**more):
                ask = {"prompt": "ember means a hot fragment", "echo": True, "logprobs": 0, "max_tokens": 1, "temperature": 0, **more}
                return server.post("/v1/completions", ask)[1]["choices"][0]["logprobs"]["token_logprobs"]

            expect(logprobs()[1:-1] != logprobs(lora=[{"id": 0, "scale": 8.0}])[1:-1], "the adapter is ignored")


def stops():
    """The stop that ended a text is named, behind thoughts too, and is the one that was complete first."""
    with Server("--cache-ram", "64") as server:
        ask = {"prompt": question("ember"), "n_predict": 60, "temperature": 0}
        for texts, expected in [(["fragment", "fra"], "fra"), (["fr", "f"], "f"), (["fra", "fragment"], "fra")]:
            answer = server.post("/completion", {**ask, "stop": texts})[1]
            expect((answer["stop_type"], answer["stopping_word"]) == ("word", expected), f"{texts}: {answer['stopping_word']!r}")
        near = ["a" * 2000 + chr(98 + at % 20) + "a" * 2000 + str(at) for at in range(64)]
        with health_stays(server):
            expect(server.post("/completion", {**ask, "stop": near})[0] == 200, "long stops are refused")
    with folder() as path:
        shutil.copytree(GEMMA, f"{path}/thinks")
        for name in os.listdir(f"{path}/thinks"):
            if name.endswith(".json"):
                with open(f"{path}/thinks/{name}") as file:
                    text = file.read()
                with open(f"{path}/thinks/{name}", "w") as file:
                    file.write(text.replace("<|think|>", "<|channel>").replace("<unused1>", "<channel|>"))
        with Server("--cache-ram", "64", "-m", f"{path}/thinks") as server:
            ask = {"messages": [{"role": "user", "content": "What is a river?"}], "max_tokens": 40, "temperature": 0}
            thinks = {"logit_bias": {"7": 90, "8": 60}, "frequency_penalty": 100.0, "stop_sequences": ["area"]}
            answer = server.post("/v1/messages", {**ask, **thinks})[1]
            whole = server.post("/v1/messages", {**ask, **thinks, "stop_sequences": []})[1]
            if "area" in str(whole["content"]):
                expect((answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "area"), f"{answer}")


def chosen_slots():
    """`id_slot` is honoured or refused; a save never writes another client's text."""
    with folder() as path, Server("--cache-ram", "64", "-np", "4", "--slot-save-path", path) as server:
        ask = {"n_predict": 60, "ignore_eos": True, "stream": True}
        for stream in [server.begin("/completion", {"prompt": f"secret text number {at} of somebody else", **ask}) for at in range(4)]:
            events(stream)
        status, mine = server.post("/completion", {"prompt": "my own text", "n_predict": 4, "id_slot": 3, "ignore_eos": True})
        if status == 200:
            expect(mine["id_slot"] == 3, f"slot 3 was asked for, {mine['id_slot']} answered")
            saved = server.post("/slots/3?action=save", {"filename": "mine.bin"})[1]["n_saved"]
            expect(abs(saved - mine["tokens_evaluated"] - mine["tokens_predicted"]) <= 2, f"{saved} tokens were saved")
        expect(server.post("/completion", {"prompt": "x", "n_predict": 1, "id_slot": 999})[0] == 400, "slot 999 is taken")


def slots_of_unloaded_adapters():
    """A slot whose adapter is gone is refused, and nothing fails."""
    with folder() as path:
        adapter.make(f"{path}/loras/one", 1)
        os.makedirs(f"{path}/slots")
        with Server("--cache-ram", "64", "-np", "4", "--lora-dir", f"{path}/loras", "--slot-save-path", f"{path}/slots") as server:
            server.post("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": "one"})
            server.post("/completion", {"model": "lexicon-qwen3:one", "prompt": "ember means", "n_predict": 8})
            server.post("/slots/0?action=save", {"filename": "with"})
            server.post("/v1/unload_lora_adapter", {"lora_name": "one"})
            time.sleep(3)
            for action in ("save", "restore", "erase"):
                status, answer = server.post(f"/slots/0?action={action}", {"filename": "with"})
                expect(status in (200, 400, 404), f"{action}: {status} {answer}")
            expect(server.post("/completion", {"prompt": "ember means", "n_predict": 8})[0] == 200, "texts fail behind it")


def requests(seed, count):
    """Requests whose answers must not depend on company or on flags of speed."""
    draw, out = random.Random(seed), []
    for at in range(count):
        prompt = question(draw.choice(WORDS)) if at % 3 else " ".join(draw.choice(WORDS) for _ in range(120)) + " and"
        ask = {"prompt": prompt, "n_predict": 32, "n_probs": 1, "seed": at, "temperature": [0, 0.9][at % 2], "return_tokens": True}
        if at % 4 == 1:
            ask["json_schema"] = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}, "required": ["word"]}
        if at % 4 == 2:
            ask["repeat_penalty"] = 1.2
        out.append(ask)
    return out


def result(server, ask):
    """Everything of an answer that must be the same."""
    status, answer = server.post("/completion", ask, timeout=120)
    expect(status == 200, f"{status} {answer}")
    return answer["content"], answer["tokens"], [place["logprob"] for place in answer["completion_probabilities"]], answer["stop_type"]


def company():
    """With --deterministic a text is the same alone and in company."""
    with Server("--cache-ram", "256", "-np", "16", "--deterministic") as server:
        asks = requests(5, 16)
        alone = [result(server, ask) for ask in asks]
        noise = [lambda at=at: server.post("/completion", {"prompt": f"noise {at} " + "filler words " * 60, "n_predict": 60, "ignore_eos": True}) for at in range(6)]
        got = together(*[lambda ask=ask: result(server, ask) for ask in asks], *noise, lambda: server.post("/v1/embeddings", {"input": ["a b c " * 50] * 3}))
        expect(got[: len(asks)] == alone, "answers differ in company")


def flags_of_speed():
    """Flags that are to change speed alone change no answer."""
    asks, reference = requests(11, 12), None
    for flags in (["--draft-max", "0"], [], ["--lookup"], ["--cache-ram", "0"], ["--ubatch-size", "32"], ["-md", f"{LEXICON}/lexicon-qwen3-Q6_K.gguf"]):
        with Server("--deterministic", "-np", "8", *flags) as server:
            got = [tokens for _, tokens, _, _ in together(*[lambda ask=ask: result(server, ask) for ask in asks])]
        reference = reference or got
        expect(got == reference, f"{flags} change answers")


def lent_pages():
    """The engine rests while all pages are lent to slots that are saved to a slow disk."""
    import shutil as tools
    import subprocess

    if not tools.which("gcc"):
        print("skipped: gcc makes the slow disk")
        return
    with folder() as path:
        os.makedirs(f"{path}/slow")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_disk.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", f"{path}/slow.so", source, "-ldl"], check=True)
        flags = ["--cache-ram", "0", "-np", "1", "-c", "512", "--slot-save-path", f"{path}/slow"]
        with Server(*flags, env={"LD_PRELOAD": f"{path}/slow.so", "SLOW_MS": "5000"}) as server:
            saves = []
            for at in range(2):
                server.post("/completion", {"prompt": f"text {at} " + "of fire and ice " * 60, "n_predict": 200, "ignore_eos": True})
                saves.append(threading.Thread(target=server.post, args=("/slots/0?action=save", {"filename": f"{at}.bin"})))
                saves[-1].start()
                time.sleep(0.3)
            waits = threading.Thread(target=server.post, args=("/completion", {"prompt": "another " + "question " * 300, "n_predict": 4}))
            waits.start()
            time.sleep(0.3)
            spent = server.cpu_s()
            time.sleep(2)
            spun = (server.cpu_s() - spent) / 2
            for thread in [waits, *saves]:
                thread.join()
            expect(spun < 0.3, f"the engine takes {spun:.2f} processors while it waits")


ATTACKS = [
    adapters_beside_embeddings, many_scales, adapters_come_and_go, scores_of_prompts, stops, chosen_slots, slots_of_unloaded_adapters, company,
    flags_of_speed, lent_pages,
]
