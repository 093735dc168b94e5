"""Makes models/silero-vad/silero_vad_16k.safetensors and crates/brasa-audio/tests/golden/voice_activity.json.

    pip install --no-deps silero-vad==6.2.3
    pip install onnxruntime onnx numpy
    python tools/golden/voice_activity.py

The weights are those of the package's silero_vad_16k_op15.onnx (its own .safetensors is of an older version) but for the first convolution, which is a
discrete Fourier transform behind a Hann window: that is proven here, and it is left out. The golden values are the package's: probabilities of its streaming network in ONNX Runtime, and spans by its
get_speech_timestamps_from_probs, which needs no torch but imports it.
"""

import json
import pathlib
import struct
import sys
import unittest.mock
import wave

sys.modules["torch"] = unittest.mock.MagicMock()

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "crates/brasa-audio/tests/golden"
SOUNDS = ROOT / "models/tiny-whisper"
DATA = next(pathlib.Path(path) / "silero_vad/data" for path in sys.path if (pathlib.Path(path) / "silero_vad/data").exists())
RULES = [
    {},
    {"threshold": 0.3, "min_speech_duration_ms": 0, "min_silence_duration_ms": 32, "speech_pad_ms": 0},
    {"threshold": 0.8, "neg_threshold": 0.75, "min_speech_duration_ms": 100, "min_silence_duration_ms": 64, "speech_pad_ms": 90},
    {"threshold": 0.5, "min_silence_duration_ms": 300, "speech_pad_ms": 200},
]
NAMES = {"model.stft.forward_basis_buffer": "stft_conv.weight"}
for kind in ("weight", "bias"):
    NAMES |= {f"model.encoder.{n}.reparam_conv.{kind}": f"conv{n + 1}.{kind}" for n in range(4)}
    NAMES |= {f"model.decoder.rnn.{kind}_{end}": f"lstm_cell.{kind}_{end}" for end in ("ih", "hh")}
    NAMES[f"model.decoder.decoder.2.{kind}"] = f"final_conv.{kind}"


def weights():
    graph = onnx.load(str(DATA / "silero_vad_16k_op15.onnx")).graph
    tensors = {NAMES[tensor.name]: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in NAMES}
    basis = tensors.pop("stft_conv.weight")[:, 0]
    bins, samples = np.arange(129)[:, None], np.arange(256)[None]
    turn = 2 * np.pi * bins * samples / 256
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * samples / 256)
    assert np.abs(basis - np.concatenate([np.cos(turn) * hann, -np.sin(turn) * hann])).max() < 1e-7
    header, body = {"__metadata__": {"source": "silero-vad 6.2.3, silero_vad_16k_op15.onnx", "license": "MIT"}}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + tensor.nbytes]}
        body += tensor.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (ROOT / "models/silero-vad/silero_vad_16k.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def noise(count):
    """Knuth's generator, as in the tests."""
    seed, found = 1, []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append(((seed >> 33) % 65536) / 32768.0 - 1.0)
    return np.array(found, np.float32)


def signal(name):
    if name == "noise":
        return noise(16000)
    if name == "silence":
        return np.zeros(5000, np.float32)
    if name == "sentences":
        pieces = []
        for number in range(1, 7):
            pieces += [signal(f"held-{number}.wav"), np.zeros(24000, np.float32), noise(8000) * np.float32(0.01)]
        return np.concatenate(pieces)
    with wave.open(str(SOUNDS / name)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def probabilities(session, samples):
    state, context, found = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
    for start in range(0, len(samples), 512):
        frame = samples[start : start + 512]
        frame = np.concatenate([frame, np.zeros(512 - len(frame), np.float32)])
        out, state = session.run(None, {"input": np.concatenate([context, frame])[None], "state": state, "sr": np.array(16000, np.int64)})
        context = frame[-64:]
        found.append(float(out[0, 0]))
    return found


def main():
    from silero_vad.utils_vad import get_speech_timestamps_from_probs

    weights()
    session = onnxruntime.InferenceSession(str(DATA / "silero_vad.onnx"), providers=["CPUExecutionProvider"])
    cases = []
    for name in ["held-1.wav", "held-4.wav", "held-6.wav", "noise", "silence", "sentences"]:
        samples = signal(name)
        found = probabilities(session, samples)
        spans = []
        for rule in RULES:
            stamps = get_speech_timestamps_from_probs(found, audio_length_samples=len(samples), **rule)
            spans.append([[int(stamp["start"]), int(stamp["end"])] for stamp in stamps])
        print(name, len(samples), f"{min(found):.3f} {max(found):.3f}", spans)
        cases.append({"signal": name, "probabilities": [round(value, 7) for value in found], "spans": spans})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (GOLDEN / "voice_activity.json").write_text(f'{{"rules": {json.dumps(RULES)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
