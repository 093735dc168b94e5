#!/usr/bin/env python3
"""Golden log-mel features, by transformers' WhisperFeatureExtractor (numpy alone, without torch).

    python tools/golden/audio_features.py WAVS crates/brasa-audio/tests/golden

WAVS holds held-1.wav to held-4.wav (16 kHz, mono, 16 bits). The first second and a half of each is copied beside the features.
`log_mel.json` lists the cases: signal, mel bins, frames that were kept, offset in `log_mel.bin`; there each case is f32
[frames, bins], little endian. Synthetic signals are made of a formula that the test repeats. `mel_filters.json` has the
matrices of 80 and of 128 filters: for each filter its first bin of the DFT, and the weights that are not 0.
"""
import json
import pathlib
import sys
import wave

import numpy as np
from transformers import WhisperFeatureExtractor

wavs, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
RATE = 16_000


def noise(count, seed=1):
    """Bits 33 to 48 of Knuth's linear congruential generator, as -1 to 1."""
    values = np.empty(count, np.float32)
    for i in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        values[i] = ((seed >> 33) % 65536) / 32768.0 - 1.0
    return values


def wav(name):
    with wave.open(str(wavs / name)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        frames = file.readframes(24_000)
    with wave.open(str(out / name), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(frames)
    return np.frombuffer(frames, "<i2").astype(np.float32) / 32768.0


t = np.arange(8_000) / RATE
signals = {
    "noise": noise(8_000),
    "quiet_noise": noise(8_000) * np.float32(1e-4),
    "chirp": np.sin(2 * np.pi * (50 * t + 7_900 / 2 * t * t)).astype(np.float32),
    "tone": (0.5 * np.sin(2 * np.pi * 1_000 * t)).astype(np.float32),
    "clipped": np.clip(3 * np.sin(2 * np.pi * 440 * t), -1, 1).astype(np.float32),
    "silence": np.zeros(8_000, np.float32),
    "impulse": np.eye(1, 8_000, 4_321, dtype=np.float32)[0],
    "constant": np.full(8_000, 0.25, np.float32),
    "short": noise(150),
    "longer_than_a_window": noise(481_000) * np.float32(0.1),
} | {name: wav(name) for name in ["held-1.wav", "held-2.wav", "held-3.wav", "held-4.wav"]}

cases, values = [], bytearray()
filters = []
for bins in (80, 128):
    extractor = WhisperFeatureExtractor(feature_size=bins)
    matrix = extractor.mel_filters.T.astype(np.float32)
    runs = [np.flatnonzero(row) for row in matrix]
    filters.append([[int(run[0]), [float(str(weight)) for weight in row[run]]] for row, run in zip(matrix, runs)])
    for name, signal in signals.items():
        features = extractor(signal, sampling_rate=RATE, return_tensors="np").input_features[0]
        assert features.shape == (bins, 3000)
        frames = [0, 1, 2, 13, 21, 27, 32, 44, 48, 49, 50, 51, 60, 77, 90, 101, 119, 140, 149, 150, 151, 1500, 2997, 2998, 2999]
        cases.append({"signal": name, "bins": bins, "frames": frames, "offset_bytes": len(values)})
        values += np.ascontiguousarray(features[:, frames].T, dtype="<f4").tobytes()

(out / "log_mel.json").write_text(json.dumps(cases, indent=1) + "\n")
(out / "log_mel.bin").write_bytes(values)
(out / "mel_filters.json").write_text(json.dumps(filters) + "\n")
