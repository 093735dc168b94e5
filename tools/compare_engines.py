"""Measures Brasa against its peers in alternation on the same files, and writes the table of docs/performance/cpu.md.

    python tools/compare_engines.py --brasa target/release/brasa --peer BUILD/bin/llama-bench --models DIR

A peer is a build of llama.cpp, or any program with the options and the JSON of its llama-bench: tools/candle_bench is one
for candle. One alternation is one run of Brasa and one of every peer (with flash attention off and on), each a process of
its own, each on the same file with the same threads. `brasa bench` reads a buffer of 1 GiB and multiplies in registers before
and after each of its samples: these probes say what memory and arithmetic give at this moment. A run beside a probe that is
more than 5 % off the median of all probes was disturbed and does not count: for a prompt, which is bound by
arithmetic, a probe of products, otherwise one of reads. The ratio is taken within each alternation; of the peers'
variants the one with the best median counts. A cell is done after `--alternations` undisturbed alternations.

Everything measured is kept in the data file after every alternation: a script that is stopped goes on where it was. A cell
begins afresh with another build of Brasa.
Files that are not there are made by random_gguf.py (which needs `gguf` and `numpy`). `--llama-python PYTHON` adds llama.cpp
as the package llama-cpp-python has it.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DISTURBED = 0.05
BEGIN, END = "<!-- compare_engines: begin -->", "<!-- compare_engines: end -->"

# Name: prompt, generated tokens, depth, samples in one run.
CELLS = {
    "prefill": (512, 0, 0, 2),
    "prefill-16": (16, 0, 0, 4),
    "prefill-2048": (2048, 0, 0, 1),
    "prefill-depth": (512, 0, 4096, 2),
    "decode": (0, 48, 0, 2),
    "depth": (0, 24, 4096, 1),
    "depth-q8": (0, 24, 4096, 1),
}
CELL_TITLES = {
    "prefill": "pp512",
    "prefill-16": "pp16",
    "prefill-2048": "pp2048",
    "prefill-depth": "pp512 @ d4096",
    "decode": "tg48",
    "depth": "tg24 @ d4096",
    "depth-q8": "tg24 @ d4096, q8 KV",
}
# Cells with a cache of Q8_0, which llama.cpp only has with flash attention.
Q8_CELLS = {"depth-q8"}


class Broken(Exception):
    """A program that did not do what it was asked for."""


def output_of(command, deadline=None, **environment):
    timeout = None if deadline is None else max(5.0, deadline - time.monotonic())
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment})
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    except OSError as error:
        raise Broken(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Broken(f"{' '.join(map(str, command))}\n  ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def round_all(values):
    return [float(f"{value:.5g}") for value in values]


def run_brasa(options, path, cell, deadline):
    prompt, generate, depth, samples = CELLS[cell]
    command = [options.brasa, "bench", "-m", path, "-p", prompt, "-n", generate, "-d", depth, "-r", samples]
    command += ["-t", options.threads, "-o", "json", "--probe-mib", options.probe_mib]
    command += ["-ctk", "q8_0", "-ctv", "q8_0"] if cell in Q8_CELLS else []
    rows = json.loads(output_of([str(part) for part in command], deadline))
    row = rows[0]
    return {
        "samples": round_all(row["samples_ts"]),
        "probes": round_all(row["probes_read"]),
        "read_bytes_per_token": row["read_bytes"] / (prompt + generate),
        "operations_per_token": row["operations"] / (prompt + generate),
        "matrix_probes": round_all(row["probes_matrix"]),
        "commit": row["build_commit"],
        "isa": row["isa"],
    }


def run_peer(options, binary, path, cell, deadline):
    """Samples by variant; one process measures both kinds of attention."""
    prompt, generate, depth, samples = CELLS[cell]
    command = [binary, "-m", path, "-p", prompt, "-n", generate, "-d", depth, "-r", samples, "-t", options.threads]
    command += ["-fa", "1", "-ctk", "q8_0", "-ctv", "q8_0"] if cell in Q8_CELLS else ["-fa", "0,1"]
    command += ["-o", "json"]
    rows = json.loads(output_of([str(part) for part in command], deadline))
    return {f"fa {int(bool(row['flash_attn']) and row['flash_attn'] != 'off')}": round_all(row["samples_ts"]) for row in rows}, (
        f"{rows[0]['build_commit']} ({rows[0]['build_number']})"
    )


def run_llama_python(options, path, cell, deadline):
    found = {}
    if cell in Q8_CELLS:
        return found
    for attention in (0, 1):
        command = [options.llama_python, __file__, "--worker", json.dumps([str(path), *CELLS[cell], options.threads, attention])]
        found[f"fa {attention}"] = round_all(json.loads(output_of(command, deadline).splitlines()[-1]))
    return found


def worker(model, prompt, generate, depth, samples, threads, attention):
    """Runs inside a Python that has llama-cpp-python; prints tokens per second of each sample."""
    import llama_cpp

    length = depth + prompt + generate
    llama = llama_cpp.Llama(
        model, n_ctx=length + 64, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
        flash_attn=bool(attention), verbose=False,
    )  # fmt: skip
    vocabulary = llama.n_vocab()
    tokens = [(index * 7919 + 13) % vocabulary for index in range(length)]
    rates = []
    for _ in range(samples + 1):
        llama.reset()
        llama._ctx.kv_cache_clear()
        if depth:
            llama.eval(tokens[:depth])
        started = time.perf_counter()
        if prompt:
            llama.eval(tokens[depth:])
        for token in tokens[depth:] if generate else []:
            llama.eval([token])
        rates.append((prompt + generate) / (time.perf_counter() - started))
    print(json.dumps(rates[1:]))


class Store:
    """What has been measured, by cell, on disk after every alternation."""

    def __init__(self, path):
        self.path = path
        self.data = json.loads(path.read_text()) if path.exists() else {}
        self.data.setdefault("cells", {})

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(compact(self.data))
        part.replace(self.path)

    def alternations(self, key):
        return self.data["cells"].setdefault(key, [])


def compact(data):
    """One alternation a line."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if key != "cells"]
    cells = []
    for key, alternations in data["cells"].items():
        rows = ",\n".join(f"   {json.dumps(row)}" for row in alternations)
        cells.append(f"  {json.dumps(key)}: [\n{rows}\n  ]")
    lines.append(' "cells": {\n' + ",\n".join(cells) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def alternate(options, path, cell, labels, deadline):
    """One run of each engine; labels receive what the builds call themselves."""
    row = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "brasa": run_brasa(options, path, cell, deadline), "peers": {}}
    for number, binary in enumerate(options.peers):
        name = options.peer_names[number]
        found, labels[name] = run_peer(options, binary, path, cell, deadline)
        row["peers"].update({f"{name}, {variant}": rates for variant, rates in found.items()})
    if options.llama_python:
        found = run_llama_python(options, path, cell, deadline)
        row["peers"].update({f"llama-cpp-python, {variant}": rates for variant, rates in found.items()})
    # What disturbed the rivals after our own last probe shows in one more.
    row["probe_after"] = run_brasa_probe(options, deadline)
    return row


def run_brasa_probe(options, deadline):
    """The probe alone, on the built-in model's smallest cell."""
    command = [options.brasa, "bench", "-p", "1", "-n", "0", "-r", "1", "-t", options.threads, "-o", "json"]
    row = json.loads(output_of([str(part) for part in [*command, "--probe-mib", options.probe_mib]], deadline))[0]
    return float(f"{max(row['probes_read']):.5g}")


def read_probes(row):
    return [*row["brasa"]["probes"], row["probe_after"]]


def is_prompt(cell):
    return cell.startswith("prefill")


def undisturbed(rows, cell):
    """The alternations all of whose probes are near the median of all: of reads, or for a prompt of products."""
    probes = (lambda row: row["brasa"]["matrix_probes"]) if is_prompt(cell) else read_probes
    all_probes = [probe for row in rows for probe in probes(row)]
    if not all_probes:
        return []
    usual = statistics.median(all_probes)
    near = lambda probe: abs(probe / usual - 1) <= DISTURBED
    return [row for row in rows if all(near(probe) for probe in probes(row))]


def summary(rows, cell):
    """Medians, ratio and share of a cell, of what was undisturbed or else of all; None where nothing was measured."""
    if not rows:
        return None
    quiet = undisturbed(rows, cell)
    rows = quiet or rows
    variants = set.intersection(*(set(row["peers"]) for row in rows))
    rates = lambda name: [statistics.median(row["peers"][name]) for row in rows]
    best = max(sorted(variants), key=lambda name: statistics.median(rates(name)), default=None)
    ours = [statistics.median(row["brasa"]["samples"]) for row in rows]
    ceiling = max(probe for row in rows for probe in read_probes(row))
    peak = max((probe for row in rows for probe in row["brasa"]["matrix_probes"]), default=None)
    found = {
        "count": len(quiet),
        "brasa": statistics.median(ours),
        "read": statistics.median(ours) * rows[0]["brasa"]["read_bytes_per_token"] / ceiling,
        "peak": statistics.median(ours) * rows[0]["brasa"]["operations_per_token"] / peak if peak else None,
        "ceiling": ceiling,
        "variant": best,
    }
    if best:
        theirs = rates(best)
        ratios = [our / their for our, their in zip(ours, theirs)]
        found |= {"peer": statistics.median(theirs), "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return found


def table(store, threads):
    lines = [
        "| model | type | test | brasa t/s | peer t/s | ratio | spread | of read | of peak | alternations | peer |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for key, rows in store.data["cells"].items():
        shape, kind, cell, its_threads = key.split("/")
        found = summary(rows, cell)
        if found is None or its_threads != f"t{threads}":
            continue
        # A prompt is bound by arithmetic, a single row by memory: the other share says little.
        strength = "**" if found["count"] else ""
        rival = [f"{found['peer']:.2f}", f"{strength}{found['ratio']:.2f}{strength}", f"{found['least']:.2f}–{found['most']:.2f}"] if "ratio" in found else ["–"] * 3
        shares = ["–", f"{found['peak']:.0%}" if found["peak"] else "–"] if is_prompt(cell) else [f"{found['read']:.0%}", "–"]
        count = f"{found['count']} of {len(rows)}" if found["count"] else f"{len(rows)}, disturbed"
        cells = [shape, kind, CELL_TITLES[cell], f"{found['brasa']:.2f}", *rival, *shares, count, found["variant"] or "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def write_page(page, store, options):
    machine = store.data["machine"]
    commits = sorted({str(row["brasa"]["commit"]) for rows in store.data["cells"].values() for row in rows})
    builds = ", ".join(f"{name} {label}" for name, label in sorted(store.data.get("peers", {}).items())) or "none"
    ceilings = [found["ceiling"] for key, rows in store.data["cells"].items() if (found := summary(rows, key.split("/")[2]))]
    ceiling = f"{min(ceilings) / 1e9:.1f} to {max(ceilings) / 1e9:.1f} GB/s" if ceilings else "not measured"
    text = [
        BEGIN,
        "",
        f"{machine['cpu']}, {options.threads} threads, {machine['system']}. Brasa {', '.join(commits)}; peers: {builds}.",
        f"Reads by the probe of {options.probe_mib} MiB: {ceiling}. Measured {store.data['date']}; raw figures: [{options.data.name}](data/{options.data.name}).",
        "",
        *table(store, options.threads),
        "",
        END,
    ]
    before, after = "# Speed on the CPU\n\n", "\n"
    if page.exists():
        old = page.read_text()
        if BEGIN in old and END in old:
            before, after = old[: old.index(BEGIN)], old[old.index(END) + len(END) :]
        else:
            before = old.rstrip() + "\n\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(before + "\n".join(text) + after)


def machine():
    name = platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        name = f"{names[0]} ({len(names)} processors)" if names else name
    return {"cpu": name, "system": f"{platform.system()} {platform.release()}"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brasa", default=ROOT / "target/release/brasa", help="the release binary")
    parser.add_argument("--peer", action="append", default=[], metavar="[NAME=]PATH", help="a llama-bench binary, or one that acts like it (may be repeated)")
    parser.add_argument("--llama-python", metavar="PYTHON", help="a Python that has llama-cpp-python")
    parser.add_argument("--models", type=pathlib.Path, required=True, help="folder of the files SHAPE-TYPE.gguf; missing ones are made")
    parser.add_argument("--shapes", default="qwen3-0.6b,llama-3.2-1b")
    parser.add_argument("--types", default="Q4_0,Q8_0,Q4_K_M,Q6_K,F16")
    parser.add_argument("--cells", default="decode,depth,prefill", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--alternations", type=int, default=7, help="undisturbed ones that a cell needs")
    parser.add_argument("--attempts", type=int, help="alternations after which a cell is given up [default: three times as many]")
    parser.add_argument("--budget-seconds", type=float, help="stop when this time is over; what was measured is kept")
    parser.add_argument("--probe-mib", type=int, default=1024)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "docs/performance/data/cpu.json")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance/cpu.md")
    parser.add_argument("--fresh", action="store_true", help="forget what the data file holds of the chosen cells")
    parser.add_argument("--table-only", action="store_true", help="measure nothing, write the page again")
    options = parser.parse_args()
    options.cells = options.cells.split(",")
    for cell in options.cells:
        if cell not in CELLS:
            parser.error(f"no cell {cell}; there are {', '.join(CELLS)}")
    options.attempts = options.attempts or 3 * options.alternations
    named = [text.partition("=") if "=" in text else (f"build {number + 1}", "=", text) for number, text in enumerate(options.peer)]
    options.peer_names = [name for name, _, _ in named]
    options.peers = [path for _, _, path in named]
    return options


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*json.loads(sys.argv[2]))
    options = arguments()
    store = Store(options.data)
    deadline = None if options.budget_seconds is None else time.monotonic() + options.budget_seconds
    cells = [(shape, kind, cell) for cell in options.cells for shape in options.shapes.split(",") for kind in options.types.split(",")]
    keys = {(shape, kind, cell): f"{shape}/{kind}/{cell}/t{options.threads}" for shape, kind, cell in cells}
    if options.fresh:
        for key in keys.values():
            store.data["cells"].pop(key, None)
    failed = set()
    labels = store.data.setdefault("peers", {})
    if not options.table_only:
        store.data["machine"] = machine()
    # One alternation of every cell, then the next: a budget that ends early leaves all cells equally far.
    try:
        for _ in range(0 if options.table_only else options.attempts):
            waiting = [
                cell
                for cell in cells
                if cell not in failed
                and len(undisturbed(store.alternations(keys[cell]), cell[2])) < options.alternations
                and len(store.alternations(keys[cell])) < options.attempts
            ]
            for cell in waiting:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
                measure(options, store, cell, keys[cell], labels, failed, deadline)
            if not waiting:
                break
    except TimeoutError:
        print("the time is over; start again to go on", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; start again to go on", file=sys.stderr)
    store.data["cells"] = {key: rows for key, rows in store.data["cells"].items() if rows}
    if store.data["cells"]:
        store.save()
        write_page(options.page, store, options)
    return 1 if failed else 0


def measure(options, store, cell, key, labels, failed, deadline):
    shape, kind, test = cell
    path = options.models / f"{shape}-{kind}.gguf"
    if not path.exists():
        import random_gguf

        part = path.with_suffix(".part")
        random_gguf.write(str(part), shape, kind)
        part.rename(path)
    try:
        row = alternate(options, path, test, labels, deadline)
    except Broken as error:
        print(f"{key}: {error}", file=sys.stderr)
        failed.add(cell)
        return
    rows = store.alternations(key)
    # Another build of Brasa begins its cell afresh.
    rows[:] = [old for old in rows if old["brasa"]["commit"] == row["brasa"]["commit"]]
    rows.append(row)
    store.data["date"] = row["time"][:10]
    store.save()
    found = summary(rows, test)
    ratio = f"{found['ratio']:.3f} × {found['variant']}" if found and "ratio" in found else "no ratio"
    rate = f"{found['brasa']:.2f} t/s" if found else "disturbed"
    print(f"{key}: {len(undisturbed(rows, test))} of {len(rows)} undisturbed, {rate}, {ratio}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
