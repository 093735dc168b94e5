"""Runs the cases of issue reports from other engines against a program of Brasa, and prints what each expects and what came.

    cargo build --release && python3 tools/cases/run.py            # cases 01 to 15, about 1 minute
    BRASA=/path/to/brasa python3 tools/cases/run.py 04 13          # some of them
    python3 tools/cases/run.py server                              # the attacks of tools/attacks
    python3 tools/cases/run.py storm                               # 10,000 random requests beside the attacks

The last line is `N passed, N failed`; the status is 1 if one failed. Standard library only.
"""

import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../attacks"))

from target import GEMMA, LLAMA, REPOSITORY, Server  # noqa: E402

import cases  # noqa: E402

# The longest time of /health where two programs share few processors.
BUSY_MS = os.environ.get("HEALTH_MS", "2000")


def storm():
    """Random requests to one server, 10,000 and again 10,000, while the attacks run on servers of their own."""
    os.environ["HEALTH_MS"] = BUSY_MS
    with Server("--cache-ram", "64", "-m", LLAMA, "-m", GEMMA) as server:
        command = [sys.executable, os.path.join(REPOSITORY, "tools/serving/storm.py"), f"http://127.0.0.1:{server.port}"]
        command += ["--requests", "10000", "--health-ms", BUSY_MS, "--cache-mib", "64", "--seed"]
        over, storms = threading.Event(), []

        def blow():
            while not over.is_set():
                storms.append(subprocess.run([*command, str(len(storms) + 1)], capture_output=True, text=True))

        wind = threading.Thread(target=blow)
        wind.start()
        try:
            yield from cases.served([])
        finally:
            over.set()
            wind.join()
        for seed, storm in enumerate(storms, 1):
            if storm.returncode:
                print(storm.stdout, storm.stderr)
            yield f"10,000 random requests beside the attacks, seed {seed}", 0, storm.returncode


def met(expected, got):
    return expected(got) if callable(expected) else expected == got


def shown(value):
    """A value in one short line."""
    text = value.__doc__ if callable(value) else str(value)
    text = text.strip().replace("\n", "⏎")
    return text if len(text) <= 76 else text[:75] + "…"


def main(wanted):
    all_cases = {**cases.CASES, "server": lambda: cases.served([]), "storm": storm}
    names = [name for name in all_cases if name.split()[0] in wanted] if wanted else list(cases.CASES)
    unknown = set(wanted) - {name.split()[0] for name in all_cases}
    if unknown:
        sys.exit(f"no case {', '.join(sorted(unknown))}: {', '.join(name.split()[0] for name in all_cases)}")
    passed = failed = 0
    for name in names:
        print(f"\n{name}: {(all_cases[name].__doc__ or 'attacks on servers').strip().splitlines()[0]}", flush=True)
        began, checks = time.monotonic(), all_cases[name]()
        while True:
            try:
                what, expected, got = next(checks)
            except StopIteration:
                break
            except Exception as error:  # A case that breaks has failed; the others go on.
                what, expected, got = "it runs to its end", "", f"{type(error).__name__}: {error}"
            is_met = met(expected, got)
            passed, failed = passed + is_met, failed + (not is_met)
            print(f"  {'passed' if is_met else 'FAILED'} | {what} | expected {shown(expected)} | got {shown(got)}", flush=True)
        print(f"  ({time.monotonic() - began:.1f} s)")
    print(f"\n{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
