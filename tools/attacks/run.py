"""Attacks a server, each attack one of its own, and says how many had no effect that they must not have.

    cargo build --release && python tools/attacks/run.py            # all
    BRASA=/path/to/brasa python tools/attacks/run.py doors models.junk_entries

The last line is `N passed, N failed`; the status is 1 if one failed.
"""

import importlib
import subprocess
import sys
import time

from target import Wrong

MODULES = ["doors", "memory", "streams", "models", "texts", "command"]
LONGEST_S = 300


def main(wanted):
    attacks = {f"{module}.{attack.__name__}": attack for module in MODULES for attack in importlib.import_module(module).ATTACKS}
    if wanted[:1] == ["--one"]:
        try:
            attacks[wanted[1]]()
        except Wrong as wrong:
            print(wrong)
            return 1
        return 0
    names = [name for name in attacks if not wanted or any(name == each or name.startswith(each + ".") for each in wanted)]
    passed = 0
    for name in names:
        began = time.monotonic()
        try:
            done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=LONGEST_S)
            said = (done.stdout + done.stderr).strip()
        except subprocess.TimeoutExpired:
            done, said = None, f"not done after {LONGEST_S} s"
        held = done is not None and done.returncode == 0
        passed += held
        print(f"{'passed' if held else 'FAILED'}  {name} ({time.monotonic() - began:.0f} s)  {said[-600:]}", flush=True)
    print(f"{passed} passed, {len(names) - passed} failed")
    return int(passed < len(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
