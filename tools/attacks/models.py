"""Models that come and go."""

import collections
import os
import random
import shutil
import threading
import time

from target import GEMMA, LLAMA, WHISPER, Server, expect, folder, health_stays, soon, together


def copies(path, *names):
    """Copies of a small model under these names."""
    for name in names:
        shutil.copytree(LLAMA, f"{path}/{name}")


def junk_entries():
    """Files that are no models leave no name behind."""
    with folder() as path:
        copies(path, "tiny-llama")
        with open(f"{path}/README.md", "w") as file:
            file.write("words\n")
        with Server("--cache-ram", "64", "--models-dir", path) as server:
            ask = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            expect(server.post("/v1/chat/completions", ask)[0] == 200, "an unknown name of the only model is refused")
            for junk in ["README.md", "tiny-llama/config.json", "tiny-llama/../README.md", "/etc/passwd", "../x", "nothing", ""]:
                status, answer = server.post("/v1/models/load", {"path": junk, "id": "gpt-4"})
                expect(status in (400, 403), f"{junk!r}: {status} {answer}")
            for name in ["y" * 1_000_000, "a\nb", 'x"} 1\nmade_up{a="', ""]:
                expect(server.post("/v1/models/load", {"path": "tiny-llama", "id": name})[0] == 400, f"{name[:20]!r} is a name")
            expect(list(server.models()) == ["tiny-llama"], f"{list(server.models())}")
            expect(server.post("/v1/chat/completions", ask)[0] == 200, "an unknown name is refused behind it")


def more_than_may_be_loaded():
    """No more models are in memory than --models-max, whoever asks for how many at once."""
    with folder() as path:
        copies(path, *"abc")
        with Server("--cache-ram", "16", "--models-dir", path, "--models-max", "1", "-np", "2") as server:
            most, over = [0], threading.Event()

            def watch():
                while not over.is_set():
                    most[0] = max(most[0], list(server.models().values()).count("loaded"))

            watcher = threading.Thread(target=watch)
            watcher.start()
            with health_stays(server):
                ask = {"prompt": "a", "n_predict": 200, "ignore_eos": True}
                for _ in range(3):
                    statuses = together(*[lambda name=name: server.post("/completion", {"model": name, **ask})[0] for name in "abc"])
                    expect(statuses == [200] * 3, f"{statuses}")
            over.set()
            watcher.join()
            expect(most[0] <= 1, f"{most[0]} were loaded at once")


def unloading_while_loading():
    """A model that is unloaded while it is loaded does not come back by itself."""
    with folder() as path:
        copies(path, "a")
        with Server("--cache-ram", "16", "--models-dir", path) as server:
            asked = threading.Thread(target=lambda: server.post("/completion", {"model": "a", "prompt": "a", "n_predict": 1}))
            asked.start()
            for _ in range(500):
                if server.models()["a"] != "unloaded":
                    break
            server.post("/models/unload", {"model": "a"})
            asked.join()
            time.sleep(0.3)
            expect(server.models()["a"] == "unloaded", f"{server.models()}")


def sleep_and_unload():
    """Models fall asleep, are loaded and unloaded while requests come; nobody fails but by being unloaded."""
    with Server("--cache-ram", "16", "-np", "4", "-m", LLAMA, "-m", GEMMA, "-m", WHISPER, "--sleep-idle-seconds", "1") as server:
        over, odd, texts = threading.Event(), [], {}
        counts = collections.Counter()

        def client(seed):
            draw = random.Random(seed)
            while not over.is_set():
                model = draw.choice(["tiny-llama", "tiny-gemma4"])
                status, answer = server.post("/completion", {"model": model, "prompt": "the river", "n_predict": 12, "temperature": 0})
                counts[status] += 1
                if status == 200 and texts.setdefault(model, answer["content"]) != answer["content"]:
                    odd.append((model, answer["content"]))
                elif status != 200 and answer["error"]["code"] != "model_unloaded":
                    odd.append((status, answer))
                time.sleep(draw.choice([0, 0.1, 1.0, 1.25]))

        def admin():
            draw = random.Random(9)
            while not over.is_set():
                model = draw.choice(["tiny-llama", "tiny-gemma4", "tiny-whisper"])
                server.post(draw.choice(["/models/load", "/models/unload"]), {"model": model})
                time.sleep(draw.choice([0, 0.2, 0.6]))

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)] + [threading.Thread(target=admin)]
        with health_stays(server):
            for thread in threads:
                thread.start()
            time.sleep(15)
            over.set()
            for thread in threads:
                thread.join()
        expect(not odd and counts[200] > 10, f"{odd[:3]} {counts}")
        soon(lambda: "loaded" not in server.models().values(), "idle models stay loaded")


def other_paths():
    """Adapters and slots' files lead out of their folders by no name."""
    with folder() as path:
        loras, slots, outside = f"{path}/loras", f"{path}/slots", f"{path}/outside"
        for each in (loras, slots, f"{loras}/fifo", f"{loras}/mixed"):
            os.makedirs(each)
        for link, target in [(f"{loras}/out", "/etc"), (f"{loras}/up", ".."), (f"{loras}/loop", f"{loras}/loop"), (f"{loras}/mixed/adapter_model.safetensors", "/etc/passwd"), (f"{slots}/link.bin", outside), (f"{slots}/dangling", outside)]:
            os.symlink(target, link)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            os.mkfifo(f"{loras}/fifo/{name}")
        os.mkfifo(f"{slots}/pipe")
        with Server("--cache-ram", "16", "--lora-dir", loras, "--slot-save-path", slots) as server:
            with health_stays(server):
                for name in ["out", "up", "loop", "mixed", "../loras2", "/etc", "", "\0", "fifo"]:
                    status, answer = server.post("/v1/load_lora_adapter", {"lora_name": "n", "lora_path": name}, timeout=10)
                    expect(status in (400, 403, 404), f"{name!r}: {status} {answer}")
                server.post("/completion", {"prompt": "some text", "n_predict": 4})
                for action in ("save", "restore"):
                    for name in ["link.bin", "dangling", "pipe", "../x", "/tmp/x", "a/b", "..", ".", "a\n", "a" * 300]:
                        status, answer = server.post(f"/slots/0?action={action}", {"filename": name}, timeout=10)
                        expect(status in (400, 403, 404), f"{action} {name!r}: {status} {answer}")
            expect(not os.path.exists(outside), "a file was written outside")
            expect(server.post("/slots/0?action=save", {"filename": "good.bin"})[0] == 200, "a good name is refused")
            good, draw = open(f"{slots}/good.bin", "rb").read(), random.Random(1)
            for _ in range(200):
                bad = bytearray(good)
                for _ in range(draw.choice([1, 3])):
                    bad[draw.randrange(min(len(bad), 400))] = draw.randrange(256)
                with open(f"{slots}/bad.bin", "wb") as file:
                    file.write(bad[: draw.randrange(1, len(bad))] if draw.random() < 0.3 else bad)
                status, answer = server.post("/slots/0?action=restore", {"filename": "bad.bin"})
                expect(status in (200, 400), f"a damaged file: {status} {answer}")


ATTACKS = [junk_entries, more_than_may_be_loaded, unloading_while_loading, sleep_and_unload, other_paths]
