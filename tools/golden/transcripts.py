#!/usr/bin/env python3
"""Golden transcripts by openai-whisper's writers, for which its utils.py is enough.

    python tools/golden/transcripts.py whisper/utils.py crates/brasa-audio/tests/golden/transcripts.json
"""
import importlib.util
import io
import json
import sys

spec = importlib.util.spec_from_file_location("utils", sys.argv[1])
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)


def words(start, *texts):
    return [{"word": text, "start": start + i * 0.31, "end": start + i * 0.31 + 0.2807} for i, text in enumerate(texts)]


plain = [
    {"start": 0.0, "end": 2.3985, "text": " Wake me up at \"quarter\" to eleven."},
    {"start": 2.3985, "end": 59.9996, "text": " An arrow --> and a\ttab, Ünïcödé 東京 "},
    {"start": 3600.0005, "end": 36001.5, "text": ""},
    {"start": 0.0625, "end": 0.0015, "text": "  half"},
]
timed = [
    {"start": 0.0, "end": 3.0, "text": " Hello, big -->world.", "words": words(0.12, " Hello,", " big", " -->", "world.")},
    {"start": 3.0, "end": 4.0, "text": " ...", "words": []},
    {"start": 4.0, "end": 90.0, "text": "", "words": words(4.0, *[f" number{i}" for i in range(250)])},
    {"start": 90.0, "end": 91.0, "text": " 東京", "words": words(90.5, " 東", "京", " ")},
]
cases = []
for segments in ([], plain, timed):
    written = {}
    for name, writer in {"text": utils.WriteTXT, "srt": utils.WriteSRT, "vtt": utils.WriteVTT, "tsv": utils.WriteTSV}.items():
        file = io.StringIO()
        writer(".").write_result({"segments": segments}, file, {})
        written[name] = file.getvalue()
    cases.append({"segments": segments, "written": written})
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(cases, file, ensure_ascii=False, indent=1)
    file.write("\n")
