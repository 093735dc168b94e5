"""Draws docs/performance/speed.svg from the committed measurements in docs/performance/data.

    python tools/speed_chart.py            # writes the picture
    python tools/speed_chart.py --check    # fails if the committed picture is another one

Needs nothing but Python. Medians are those that compare_engines.py writes into the tables of docs/performance. A star marks a
cell whose alternations were all disturbed, as the tables mark it.
"""

import argparse
import json
import pathlib
import statistics
import sys
from xml.sax.saxutils import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare_engines

FOLDER = compare_engines.ROOT / "docs" / "performance"
PICTURE = FOLDER / "speed.svg"
MODEL = "qwen3-0.6b"
TYPES = ["Q4_0", "Q4_K_M", "Q8_0", "F16"]
# Title, data file, whether disturbed alternations count too (as docs/performance/cpu-xeon-amx.md counts them).
MACHINES = [
    ("AMD EPYC (Zen 4), 2 cores", "cpu.json", False),
    ("Intel Xeon with AMX, 2 cores", "cpu-xeon-amx-6a4a9e7.json", True),
]
TESTS = [("decode", "Generating 48 tokens"), ("prefill", "Reading a prompt of 512 tokens")]
NAMES = ["Brasa", "llama.cpp"]
COLOURS = ["#d9480f", "#868e96"]

BAR, GAP, GROUP = 15, 2, 14
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH = 430, 62, 118
HEAD, PANEL_HEAD, FOOT, MARGIN = 104, 34, 44, 16


def medians(file, everything, kind, cell):
    """Tokens a second of Brasa and of llama.cpp's best variant, their ratio, and whether no alternation was undisturbed."""
    rows = json.loads((FOLDER / "data" / file).read_text())["cells"][f"{MODEL}/{kind}/{cell}/t2"]
    if not everything:
        found = compare_engines.summary(rows, cell)
        return found["brasa"], found["peer"], found["ratio"], not found["count"]
    ours = [statistics.median(row["brasa"]["samples"]) for row in rows]
    variants = set.intersection(*(set(row["peers"]) for row in rows))
    theirs = max(([statistics.median(row["peers"][name]) for row in rows] for name in sorted(variants)), key=statistics.median)
    ratio = statistics.median(our / their for our, their in zip(ours, theirs))
    return statistics.median(ours), statistics.median(theirs), ratio, False


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.0f}"


class Drawing:
    """SVG elements, one a line."""

    def __init__(self):
        self.lines = []

    def text(self, x, y, content, size=12, colour="#343a40", weight="normal", anchor="start"):
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}">{escape(content)}</text>'
        )

    def bar(self, x, y, width, height, colour):
        self.lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{colour}"/>')

    def svg(self, width, height):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img">'
        )
        title = "<title>Tokens a second of Brasa and llama.cpp on two machines</title>"
        ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
        return "\n".join([head, title, ground, *self.lines, "</svg>"]) + "\n"


def panel(drawing, x, y, title, values):
    """Draws two bars for each type."""
    drawing.text(x, y + 14, title, 12, "#868e96")
    most = max(max(ours, theirs) for ours, theirs, *_ in values)
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    top = y + PANEL_HEAD - 8
    for kind, (ours, theirs, ratio, disturbed) in zip(TYPES, values):
        drawing.text(x + LABEL_WIDTH - 8, top + BAR + 5, kind, 12, anchor="end")
        for index, value in enumerate([ours, theirs]):
            bar_y, width = top + index * (BAR + GAP), room * value / most
            drawing.bar(x + LABEL_WIDTH, bar_y, width, BAR, COLOURS[index])
            label = number(value) + ("" if index else f"  ({ratio:.1f} ×{' *' if disturbed else ''})")
            drawing.text(x + LABEL_WIDTH + width + 6, bar_y + BAR - 3, label, 12, weight="normal" if index else "600")
        top += 2 * BAR + GAP + GROUP


def chart():
    drawing = Drawing()
    panel_height = PANEL_HEAD + len(TYPES) * (2 * BAR + GAP + GROUP)
    width = 2 * PANEL_WIDTH + 3 * MARGIN
    height = HEAD + len(TESTS) * panel_height + FOOT
    drawing.text(MARGIN, 28, "Tokens a second, Qwen3-0.6B's shape, 2 threads (longer is better)", 16, weight="600")
    x = MARGIN
    for name, colour in zip(NAMES, COLOURS):
        drawing.bar(x, 44, 12, 12, colour)
        drawing.text(x + 18, 55, name, 13)
        x += 40 + 8 * len(name)
    for column, (machine, file, everything) in enumerate(MACHINES):
        left = MARGIN + column * (PANEL_WIDTH + MARGIN)
        drawing.text(left, HEAD - 12, machine, 14, weight="600")
        for line, (cell, title) in enumerate(TESTS):
            values = [medians(file, everything, kind, cell) for kind in TYPES]
            panel(drawing, left, HEAD + line * panel_height, title, values)
    notes = "Medians of alternating runs on the same files, llama.cpp with or without flash attention, whichever is faster. "
    drawing.text(MARGIN, height - 28, notes + "× is the median ratio.", 11, "#868e96")
    drawing.text(MARGIN, height - 12, "* Something else used this machine's memory in every run. Samples and method: docs/performance.", 11, "#868e96")
    return drawing.svg(width, height)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed picture differs")
    options = parser.parse_args()
    picture = chart()
    if not options.check:
        PICTURE.write_text(picture)
    elif PICTURE.read_text() != picture:
        sys.exit(f"{PICTURE}: not the picture of the data; run {pathlib.Path(__file__).name}")


main()
