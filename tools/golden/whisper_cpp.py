#!/usr/bin/env python3
"""Texts by whisper.cpp of the files that we write for it.

    cargo build -p brasa-convert --example quantize
    python tools/golden/whisper_cpp.py target/debug/examples/quantize

converts `models/tiny-whisper` to files of whisper.cpp, transcribes the six wavs with them (greedily, in English), and writes the texts by type and wav to
`models/tiny-whisper/whisper_cpp.json`. Says where they differ from transformers'.

Needs `pywhispercpp` and `numpy`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import wave

import numpy as np
from pywhispercpp.model import Model

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-whisper"
TYPES = ["F16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"]


def samples(path: pathlib.Path) -> np.ndarray:
    with wave.open(str(path)) as sound:
        assert sound.getframerate() == 16000 and sound.getsampwidth() == 2
        return np.frombuffer(sound.readframes(sound.getnframes()), dtype=np.int16).astype(np.float32) / 32768


def main() -> None:
    cases = json.loads((FOLDER / "reference.json").read_text())["cases"]
    made = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in TYPES:
            file = f"{scratch}/{kind}.bin"
            subprocess.run([sys.argv[1], str(FOLDER), file, kind], check=True)
            model = Model(file, n_threads=2, print_realtime=False, print_progress=False, language="en", temperature_inc=0.0,
                          redirect_whispercpp_logs_to=os.devnull)
            made[kind] = {}
            for case in cases:
                text = " ".join(segment.text.strip() for segment in model.transcribe(samples(FOLDER / case["wav"])))
                made[kind][case["wav"]] = text
                if text != case["no_timestamps"]["text"].strip():
                    print(f"{kind}, {case['wav']}: {text}")
    (FOLDER / "whisper_cpp.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
