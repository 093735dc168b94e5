"""Times two builds of Brasa in turn and prints the ratio of their times: above 1 the second is faster.

    python tools/compare_builds.py bench OLD NEW [--rounds 7] 'FLAGS OF brasa bench' …
    python tools/compare_builds.py rows OLD NEW [--rounds 7] ISA ROWS [FORMAT …]

`bench` takes two `brasa` programs, `rows` two builds of the example `linear_rows` of brasa-cpu (for commits before it, copy the
example there). Odd rounds begin with the new build, so that a machine that changes speed serves both alike. Medians and minima
are of all samples of all rounds. Nothing else should run on the machine.
"""

import argparse
import json
import statistics
import subprocess


def bench(program, flags):
    """Samples in nanoseconds by cell."""
    out = subprocess.run([program, "bench", *flags.split(), "-o", "json"], capture_output=True, text=True, check=True)
    for number, row in enumerate(json.loads(out.stdout)):
        yield f"{flags} #{number}" if number else flags, row["samples_ns"]


def startup(program, flags):
    out = subprocess.run([program, "bench", *flags.split(), "-o", "json"], capture_output=True, text=True, check=True)
    yield flags, [ms * 1e6 for ms in json.loads(out.stdout)["first_byte_ms"]["samples"]]


def rows(program, arguments):
    out = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    for line in out.stdout.splitlines():
        name, count, nanoseconds = line.split()
        yield f"{name}, {count} rows", [float(nanoseconds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["bench", "rows"])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.98, help="mark ratios of medians and minima below this")
    parser.add_argument("what", nargs="+")
    arguments = parser.parse_args()
    programs = {"old": arguments.old, "new": arguments.new}
    samples = {}
    for round in range(arguments.rounds):
        for cell in arguments.what if arguments.kind == "bench" else [arguments.what]:
            take = rows if arguments.kind == "rows" else startup if "--startup" in cell else bench
            for build in ["old", "new"] if round % 2 == 0 else ["new", "old"]:
                for name, found in take(programs[build], cell):
                    samples.setdefault(name, {"old": [], "new": []})[build] += found
    print(f"{'':48} {'old ms':>10} {'new ms':>10} {'medians':>8} {'minima':>8} {'samples':>8}")
    ratios = []
    for name, times in samples.items():
        medians = {build: statistics.median(times[build]) for build in times}
        median, least = medians["old"] / medians["new"], min(times["old"]) / min(times["new"])
        ratios.append(least)
        mark = "  <" if max(median, least) < arguments.least else ""
        print(f"{name[-48:]:48} {medians['old'] / 1e6:10.4f} {medians['new'] / 1e6:10.4f} {median:8.3f} {least:8.3f} {len(times['new']):8}{mark}")
    print(f"geometric mean of minima {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
