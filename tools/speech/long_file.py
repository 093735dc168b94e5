"""A file of half an hour, transcribed by Brasa and by whisper.cpp: words that are wrong, times that run backwards, loops, memory.

    python tools/speech/long_file.py BRASA GGML_BIN [--minutes 30] [--batch 1] [--vad HOW] [--memory-alone]

The file is made of the wavs of models/tiny-whisper in random order, with silences of up to eight seconds and stretches of noise between them, so that
what was said is known. GGML_BIN is that model as whisper.cpp's file (`brasa quantize models/tiny-whisper OUT.bin F16`). Needs numpy and pywhispercpp.
Memory is that of files of a sixth, a half and the whole of the minutes. Exits with 1 if times of segments run backwards, if a text comes again and again
where it was not said, or if memory grows with the file by more than 12 MiB.
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

TINY = pathlib.Path(__file__).parent.parent.parent / "models/tiny-whisper"
RATE = 16000


def sentences():
    """Samples and words of each wav."""
    for case in json.loads((TINY / "reference.json").read_text())["cases"]:
        with wave.open(str(TINY / case["wav"])) as file:
            yield np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768, case["expected_text"]


def assembled(minutes):
    """Samples of the whole file, and all that is said in it."""
    rng = np.random.default_rng(7)
    spoken, parts, said, length = list(sentences()), [], [], 0
    while length < minutes * 60 * RATE:
        samples, text = spoken[rng.integers(len(spoken))]
        gap = int(rng.uniform(0.3, 8.0) * RATE)
        loudness = rng.choice([0.0, 0.0005, 0.003])
        parts += [samples, rng.standard_normal(gap, dtype=np.float32) * loudness]
        said.append(text)
        length += len(samples) + gap
    return np.concatenate(parts), " ".join(said)


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def errors(found, expected):
    """Substitutions, insertions and deletions, by dynamic programming over words."""
    row = np.arange(len(expected) + 1)
    for number, word in enumerate(found, 1):
        change = row[:-1] + np.array([word != other for other in expected])
        best = np.minimum(change, row[1:] + 1)
        # Each word may also be one more than in the row's field before.
        steps = np.concatenate([[number], best]) - np.arange(len(expected) + 1)
        row = np.minimum.accumulate(steps) + np.arange(len(expected) + 1)
    return int(row[-1])


def most_repeated(segments):
    """The most segments in a row with one text."""
    most, run, last = 0, 0, None
    for segment in segments:
        text = segment["text"].strip()
        run = run + 1 if text and text == last else 1
        last, most = text, max(most, run)
    return most


def by_brasa(command, wav, extra=()):
    start = time.time()
    arguments = [command, "transcribe", TINY, wav, "--format", "verbose_json", "--language", "en", *extra]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([str(argument) for argument in arguments], stdout=out)
        peak = 0
        # The system's own count of a child's peak has the parent's memory in it, as it was when the child was made.
        while process.poll() is None:
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")))
            except (OSError, TypeError):
                pass
            time.sleep(0.05)
        if process.returncode != 0:
            sys.exit(f"{arguments}: exit code {process.returncode}")
        out.seek(0)
        return json.loads(out.read())["segments"], time.time() - start, peak / 1024


def by_whisper_cpp(path, samples):
    from pywhispercpp.model import Model

    model = Model(str(path), n_threads=2, language="en", print_progress=False, print_realtime=False)
    start = time.time()
    found = model.transcribe(samples)
    return [{"start": s.t0 / 100, "end": s.t1 / 100, "text": s.text} for s in found], time.time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brasa")
    parser.add_argument("ggml_bin")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--vad", choices=("model", "energy", "off"), help="how Brasa finds pauses")
    parser.add_argument("--memory-alone", action="store_true", help="leave whisper.cpp out")
    options = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        peaks = []
        for minutes in (options.minutes / 6, options.minutes / 2, options.minutes):
            samples, said = assembled(minutes)
            wav = pathlib.Path(folder) / f"{minutes}.wav"
            with wave.open(str(wav), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes((np.clip(samples, -1, 1) * 32767).astype(np.int16).tobytes())
            segments, seconds, peak = by_brasa(options.brasa, wav, ("--batch", options.batch, *(["--vad", options.vad] if options.vad else [])))
            peaks.append(peak)
        expected = words(said)
        times = [time for segment in segments for time in (segment["start"], segment["end"])]
        if times != sorted(times) or times[-1] > len(samples) / RATE + 0.02:
            problems.append("times run backwards or beyond the end")
        if most_repeated(segments) > 4:
            problems.append(f"one text {most_repeated(segments)} times in a row")
        # Windows of the longer file, and its segments; the sound itself does not show.
        if peaks[-1] - peaks[0] > 12:
            problems.append(f"memory grew from {peaks[0]:.0f} to {peaks[-1]:.0f} MiB")
        found = words(" ".join(segment["text"] for segment in segments))
        report = {"minutes": options.minutes, "words": len(expected), "segments": len(segments), "peak_mib": [round(p) for p in peaks]}
        report["brasa"] = {"errors": errors(found, expected), "seconds": round(seconds, 1)}
        if not options.memory_alone:
            segments, seconds = by_whisper_cpp(options.ggml_bin, samples)
            found = words(" ".join(segment["text"] for segment in segments))
            report["whisper.cpp"] = {"errors": errors(found, expected), "seconds": round(seconds, 1)}
    print(json.dumps(report))
    for problem in problems:
        print(f"problem: {problem}")
    sys.exit(1 if problems else 0)


main()
