"""Times a long file in windows that know nothing of each other: Brasa's --batch, whisper.cpp, and faster-whisper's batched pipeline.

    python tools/speech/ten_minutes.py BRASA WHISPER_CPP_FILE FOLDER SHAPE... [--minutes 10] [--rounds 2] [--batch 8] [--type Q8_0]

FOLDER has, for each SHAPE (base, small), SHAPE-TYPE.bin from `brasa quantize` of the folder that random_whisper.py writes, and SHAPE-ct2, the
same folder converted by `ct2-transformers-converter --quantization int8 --copy_files tokenizer.json preprocessor_config.json`.
WHISPER_CPP_FILE is built from whisper_cpp_file.cpp. Needs faster-whisper and numpy. Nothing else should run on the machine.

Random weights write noise, so the work is fixed: every window has 30 s and exactly --tokens tokens (the end of text is suppressed), drawn greedily,
without timestamps, second tries, or the text before a window. The sound is noise with the loudness of syllables, and a pause of 0.6 s before each
half minute, so that everybody's windows are the same. Times are those of the transcription without loading.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import wave

import numpy as np

RATE = 16000
END = 50257


def sound(minutes):
    """Bursts of 29.4 s with four syllables a second, each followed by a pause."""
    rng = np.random.default_rng(3)
    seconds = np.arange(int(29.4 * RATE)) / RATE
    loudness = 10 ** (-2.0 + 1.2 * np.sin(2 * np.pi * 4 * seconds) ** 2)
    pause = np.zeros(int(0.6 * RATE), np.float32)
    parts = [
        np.concatenate([rng.standard_normal(len(seconds), dtype=np.float32) * loudness.astype(np.float32) * 0.2, pause])
        for _ in range(int(minutes * 2))
    ]
    return np.clip(np.concatenate(parts), -1, 1)


def by_brasa(command, model, wav, options):
    arguments = [command, "transcribe", model, wav, "--language", "en", "--beam", "1", "--temperature-inc", "0", "--no-context"]
    arguments += ["--without-timestamps", "--max-tokens", options.tokens, "--suppress-tokens", END, "--batch", options.batch]
    arguments += ["--threads", options.threads, "--format", "verbose_json", "--verbose"]
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=True)
    seconds = float(re.search(r"segments? in ([0-9.]+) s", done.stderr)[1])
    segments = json.loads(done.stdout)["segments"]
    return seconds, len(segments), sum(len(segment["tokens"]) for segment in segments)


def by_whisper_cpp(command, model, raw, options):
    arguments = [str(argument) for argument in (command, model, raw, options.threads, options.tokens)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    seconds, segments, tokens = re.findall(r"[0-9.]+", done.stdout)
    return float(seconds), int(segments), int(tokens)


def by_faster_whisper(model, samples, options):
    starts = range(0, len(samples), 30 * RATE)
    windows = [{"start": start / RATE, "end": min(start + 30 * RATE, len(samples)) / RATE} for start in starts]
    # Half of what is given, with the prompt's four tokens, is what CTranslate2 generates.
    most = 2 * options.tokens - 4
    start = time.time()
    segments, _ = model.transcribe(
        samples, language="en", beam_size=1, temperature=0.0, without_timestamps=True, max_new_tokens=most, suppress_tokens=[END],
        condition_on_previous_text=False, log_prob_threshold=None, no_speech_threshold=None, compression_ratio_threshold=None,
        vad_filter=False, clip_timestamps=windows, batch_size=options.batch,
    )  # fmt: skip
    segments = list(segments)
    return time.time() - start, len(segments), sum(len(segment.tokens) for segment in segments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("whisper_cpp_file")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--skip", nargs="*", default=[], choices=("brasa", "whisper.cpp", "faster-whisper"))
    options = parser.parse_args()
    samples = sound(options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        wav, raw = pathlib.Path(folder) / "sound.wav", pathlib.Path(folder) / "sound.f32"
        raw.write_bytes(samples.astype(np.float32).tobytes())
        with wave.open(str(wav), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((samples * 32767).astype(np.int16).tobytes())
        for shape in options.shapes:
            model = options.folder / f"{shape}-{options.type}.bin"
            engines = {
                "brasa": lambda: by_brasa(options.brasa, model, wav, options),
                "whisper.cpp": lambda: by_whisper_cpp(options.whisper_cpp_file, model, raw, options),
            }
            if "faster-whisper" not in options.skip:
                from faster_whisper import BatchedInferencePipeline, WhisperModel

                ct2 = options.folder / f"{shape}-ct2"
                whisper = WhisperModel(str(ct2), device="cpu", compute_type="int8", cpu_threads=options.threads, num_workers=1)
                pipeline = BatchedInferencePipeline(model=whisper)
                engines["faster-whisper"] = lambda: by_faster_whisper(pipeline, samples, options)
            for _ in range(options.rounds):
                for name, run in engines.items():
                    if name in options.skip:
                        continue
                    seconds, segments, tokens = run()
                    print(f"{shape}-{options.type} {name:14s} {seconds:7.2f} s, {segments} windows, {tokens} tokens", flush=True)


sys.exit(main())
