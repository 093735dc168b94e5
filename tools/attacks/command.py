"""The command line: signals, closed pipes, odd arguments."""

import json
import os
import signal
import subprocess
import time

from target import BRASA, expect, folder


def ctrl_c():
    """Ctrl-C at any moment ends the command without an answer behind it."""
    with folder() as path:
        schema = {"enum": [f"the word {at * 7919 % 100003} of {at} and more words behind it" for at in range(30_000)]}
        with open(f"{path}/schema.json", "w") as file:
            json.dump(schema, file)
        ask = [BRASA, "run", "-p", "What does ember mean?", "--temp", "0", "-n", "60"]
        for more in ([], ["-jf", f"{path}/schema.json"]):
            whole = subprocess.run([*ask, *more], capture_output=True, stdin=subprocess.DEVNULL).stdout.strip()
            for ms in (5, 10, 20, 40, 60, 100, 150, 200, 300, 500):
                process = subprocess.Popen([*ask, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                time.sleep(ms / 1000)
                process.send_signal(signal.SIGINT)
                began = time.monotonic()
                out, _ = process.communicate(timeout=30)
                # The process may have ended by itself, or not have begun.
                expect(process.returncode in (0, 130, -2), f"{ms} ms: {process.returncode}")
                expect(process.returncode == 0 or out.strip() != whole, f"{ms} ms: the whole answer, and 130")
                expect(time.monotonic() - began < 5, f"{ms} ms: it went on for {time.monotonic() - began:.1f} s")


def odd_arguments():
    """Odd arguments and outputs are told with a status, never by an abort."""
    for command, statuses in [
        ("$B run -p 'What does ember mean?' --temp 0 | head -c 5 > /dev/null; exit ${PIPESTATUS[0]}", [0]),
        ("$B run -p x --temp 0 -n 4 > /dev/full", [1]), ("$B run -p x --json -n 4 > /dev/full", [1]),
        ("head -c 200000 /dev/urandom | $B run -n 2", [0, 1, 2]), ("printf 'a\\0b' | $B generate -n 4", [0, 1]),
        ("$B run -f /tmp -n 1", [1, 2]), ("$B serve -m /nope --port 0", [1, 2]), ("$B serve --port 0 --host 0.0.0.0", [2]),
        ("$B serve --port 99999", [2]), ("BRASA_PORT=abc $B serve", [2]), ("$B run -p x -m /etc/passwd", [1, 2]),
        ("$B run -p x -c 0", [0, 2]), ("$B run -p x -t 0 -n 2", [0]), ("$B run -p x -t 100000 -n 2", [1, 2]), ("$B run -p x -c 100000000 -n 2", [0, 1, 2]),
        ("$B run -p x --server http://127.0.0.1:1", [1]), ("$B run -p x -n 0", [0, 2]), ("$B embed ''", [0, 1, 2]), ("$B tokenize < /dev/null", [0, 1, 2]),
    ]:
        done = subprocess.run(["bash", "-c", command], env={**os.environ, "B": BRASA}, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
        expect(done.returncode in statuses and b"panicked" not in done.stderr, f"{command}: {done.returncode} {done.stderr[-300:]}")


ATTACKS = [ctrl_c, odd_arguments]
