#!/usr/bin/env python3
"""Decisions of openai-whisper's own functions on synthetic logits and texts.

    python tools/golden/speech.py

writes `crates/brasa-speech/tests/golden/speech.json`. Logits are a hash of seed, tokens and token id, which the tests compute too
(`logits` below), so that none has to be stored. Needs openai-whisper 20250625.
"""

import json
import pathlib
import random
import types

import numpy as np
import torch
import whisper.timing
from whisper.decoding import (
    ApplyTimestampRules,
    DecodingOptions,
    DecodingResult,
    DecodingTask,
    SuppressBlank,
    SuppressTokens,
)
from whisper.timing import WordTiming, add_word_timestamps, dtw_cpu, median_filter, merge_punctuations
from whisper.tokenizer import get_tokenizer
from whisper.transcribe import transcribe
from whisper.utils import compression_ratio

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB = 51865
M = 0xFFFFFFFF


def mix(x):
    x = x.astype(np.uint64) if isinstance(x, np.ndarray) else np.uint64(x & M)
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x7FEB352D)) & np.uint64(M)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(0x846CA68B)) & np.uint64(M)
    x ^= x >> np.uint64(16)
    return x


IDS = np.arange(VOCAB, dtype=np.uint64)
SPREAD = (IDS * np.uint64(0x9E3779B9)) & np.uint64(M)


def logits(seed: int, tokens: list[int], sot: int) -> np.ndarray:
    """Numbers in [-4, 4); timestamps are 5 lower; the end becomes likelier with each token behind the start of transcript."""
    h = seed
    for token in tokens:
        h = int(mix((h * 31 + token) & M))
    row = (mix(SPREAD ^ np.uint64(h)) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-21) - np.float32(4)
    row[50364:] -= np.float32(5)
    row[50257] += np.float32(0.25 * (len(tokens) - sot) - 2)
    return row


def mask_hash(row: torch.Tensor) -> int:
    """FNV-1a of the numbers of all tokens that are not forbidden."""
    h = 0x811C9DC5
    for token in torch.nonzero(row > -torch.inf).flatten().tolist():
        h = ((h ^ token) * 0x01000193) & M
    return h


def rules(tokenizer) -> list:
    """Histories, and what the filters leave of the logits behind them."""
    draw = random.Random(7)
    cases = []
    start = list(tokenizer.sot_sequence)
    task = DecodingTask(stub(), DecodingOptions(language="en", fp16=False))
    begin = tokenizer.timestamp_begin
    shapes = ["", "t", "ta", "tab", "tabt", "tabtt", "tabtta", "tabttabt", "a", "tt", "ttt", "abc", "tabab", "tabtb", "tT", "TaT"]
    for number, shape in enumerate(shapes * 2):
        drawn, time = [], 0
        for letter in shape:
            if letter.islower() and letter != "t":
                drawn.append(draw.randrange(300, 50000))
            else:
                time += draw.randrange(0, 60) if letter == "t" else 1400
                drawn.append(begin + min(time, 1500))
        for timestamps in [True, False]:
            row = torch.tensor(logits(number, start + drawn, 0))[None]
            # The logits of some cases make the timestamps win, of others the text.
            row[0, begin:] += number % 4 * 2 - 3
            tokens = torch.tensor([start + drawn])
            filters = [SuppressBlank(tokenizer, len(start)), SuppressTokens(task._get_suppress_tokens())]
            if timestamps:
                filters.append(ApplyTimestampRules(tokenizer, len(start), 50))
            for each in filters:
                each.apply(row, tokens)
            cases.append(
                {"seed": number, "drawn": drawn, "timestamps": timestamps, "lift": number % 4 * 2 - 3,
                 "allowed": int((row > -torch.inf).sum()), "hash": mask_hash(row[0]), "best": int(row[0].argmax())}
            )
    return cases


def stub():
    dims = types.SimpleNamespace(n_text_ctx=448, n_audio_ctx=1500, n_audio_state=4, n_vocab=VOCAB, n_mels=80)
    decoder = types.SimpleNamespace(blocks=[])
    return types.SimpleNamespace(
        dims=dims, decoder=decoder, is_multilingual=True, num_languages=99, device=torch.device("cpu")
    )


class Synthetic:
    """Inference by `logits`."""

    def __init__(self, seed: int, sot: int):
        self.seed, self.sot, self.first = seed, sot, True

    def logits(self, tokens, _):
        rows = []
        for text in tokens.tolist():
            ends = range(1, len(text) + 1) if self.first else [len(text)]
            rows.append([logits(self.seed, text[:end], self.sot) for end in ends])
        self.first = False
        return torch.tensor(np.array(rows))

    def rearrange_kv_cache(self, _):
        pass

    def cleanup_caching(self):
        pass


def searches(tokenizer) -> list:
    cases = []
    recipes = [
        {},
        {"beam_size": 2},
        {"beam_size": 5},
        {"beam_size": 5, "patience": 2.0},
        {"beam_size": 3, "length_penalty": 0.6},
        {"beam_size": 4, "patience": 0.5},
        {"without_timestamps": True},
        {"without_timestamps": True, "beam_size": 5},
        {"prompt": list(range(1000, 1300)), "beam_size": 2},
        {"prompt": [400, 500]},
        {"sample_len": 7},
        {"sample_len": 7, "beam_size": 3},
        {"max_initial_timestamp": None},
        {"suppress_tokens": "300,301,302"},
        {"suppress_blank": False, "beam_size": 2},
    ]
    for number, recipe in enumerate(recipes + recipes[:6]):
        options = DecodingOptions(language="en", fp16=False, **{"sample_len": 60, **recipe})
        task = DecodingTask(stub(), options)
        task.inference = Synthetic(number, task.sot_index)
        result = task.run(torch.zeros(1, 1500, 4))[0]
        cases.append(
            {"seed": number, "recipe": recipe, "tokens": result.tokens, "text": result.text, "avg_logprob": result.avg_logprob,
             "no_speech_prob": result.no_speech_prob, "compression_ratio": result.compression_ratio}
        )
        print("search", number, recipe, len(result.tokens), result.avg_logprob)
    return cases


def random_result(draw, tokenizer, duration: float, options) -> DecodingResult:
    """A text of one of the shapes that windows have."""
    begin = tokenizer.timestamp_begin
    steps = int(min(duration, 30.0) * 50)
    words = [" red", " blue", " seven", " o'clock", ".", " yes", ",", " lion", " the"]
    text = lambda: [t for _ in range(draw.randrange(1, 5)) for t in tokenizer.encode(draw.choice(words))]
    shape = draw.randrange(9)
    times = sorted(draw.sample(range(1, max(steps, 8)), 5))
    if shape == 0:
        tokens = text()
    elif shape == 1:
        tokens = [begin, *text()]
    elif shape == 2:
        tokens = [begin, *text(), begin + times[1]]
    elif shape == 3:
        tokens = [begin, *text(), begin + times[1], begin + times[1], *text(), begin + times[3]]
    elif shape == 4:
        tokens = [begin, *text(), begin + times[1], begin + times[2], *text(), begin + times[3], begin + times[3]]
    elif shape == 5:
        tokens = [begin, *text(), begin + times[1], begin + times[2], *text()]
    elif shape == 6:
        tokens = [begin + times[0], begin + times[0]]
    elif shape == 7:
        tokens = [begin, *tokenizer.encode(" "), begin + times[1], begin + times[1], *text(), begin + times[4]]
    else:
        tokens = [begin + times[0], *text(), begin + times[1], begin + times[1], begin + times[2]]
    return DecodingResult(
        audio_features=None,
        language="en",
        tokens=tokens,
        text=tokenizer.decode(tokens).strip(),
        avg_logprob=draw.choice([-0.3, -0.5, -0.9, -1.2, -2.0]),
        no_speech_prob=draw.choice([0.01, 0.2, 0.7, 0.9]),
        temperature=options.temperature,
        compression_ratio=draw.choice([0.8, 1.5, 2.3, 2.6]),
    )


def windows(tokenizer) -> list:
    """Whole transcriptions whose texts are made up."""
    cases = []
    recipes = [
        {},
        {"condition_on_previous_text": False},
        {"initial_prompt": "Emma, Peter"},
        {"initial_prompt": "Emma, Peter", "carry_initial_prompt": True},
        {"no_speech_threshold": None},
        {"logprob_threshold": None},
        {"compression_ratio_threshold": None, "logprob_threshold": None},
    ]
    # Pauses left out: parts of the sound in seconds, from an end to the next start.
    clips = [
        {"clip_timestamps": [1.0, 2.5, 3.0, 4.25]},
        {"clip_timestamps": [0.5, 40.0, 41.0, 41.5, 60.0, 179.0], "initial_prompt": "Emma, Peter"},
        {"clip_timestamps": [10.0, 12.0, 12.02, 50.0, 95.0], "condition_on_previous_text": False},
    ]
    for number, recipe in enumerate(recipes * 2 + clips * 3):
        draw = random.Random(number)
        # openai-whisper goes round in circles where a clip begins behind the end.
        seconds = 180.0 if "clip_timestamps" in recipe else draw.choice([5.5, 42.0, 95.3, 180.0])
        calls = []

        def decode(mel, options):
            result = random_result(draw, tokenizer, seconds, options)
            calls.append(
                {"prompt": list(options.prompt or []), "temperature": options.temperature, "tokens": result.tokens,
                 "avg_logprob": result.avg_logprob, "no_speech_prob": result.no_speech_prob,
                 "compression_ratio": result.compression_ratio}
            )
            return result

        model = stub()
        model.decode = decode
        audio = np.zeros(int(seconds * 16000), np.float32)
        found = transcribe(
            model, audio, language="en", fp16=False, verbose=None, temperature=(0.0, 0.4, 0.8), **recipe
        )
        segments = [s for s in found["segments"] if s["text"].strip()]
        keys = ["seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "no_speech_prob"]
        cases.append(
            {"frames": len(audio) // 160, "recipe": recipe, "calls": calls,
             "segments": [{key: segment[key] for key in keys} for segment in segments]}
        )
    return cases


def word_timings(tokenizer) -> list:
    """Made-up times of words, before and after they are mended."""
    cases = []
    texts = [
        (" Call Emma at four o'clock.", " No, said the \"lion\"."),
        (" Yes.", " (Hello) world - ok, \"quoted\" text!", " What?"),
        (" One two three", " four"),
    ]
    for number in range(12):
        draw = random.Random(100 + number)
        parts = [tokenizer.encode(text) for text in texts[number % 3]]
        words, groups = tokenizer.split_to_word_tokens([t for part in parts for t in part] + [tokenizer.eot])
        time, alignment = draw.random(), []
        for word, group in zip(words[:-1], groups[:-1]):
            start = time + draw.choice([0, 0, 0, 0.3, 2.0])
            time = start + draw.choice([0, 0.1, 0.14, 0.22, 0.3, 2.5])
            alignment.append(WordTiming(word, group, round(start, 2), round(time, 2), draw.random()))
        given = [{"word": w.word, "tokens": w.tokens, "start": w.start, "end": w.end} for w in alignment]
        seek = draw.choice([0, 500, 3000])
        begin, segments, place = tokenizer.timestamp_begin, [], 0.0
        for part in parts:
            end = place + draw.choice([0.5, 1.0, 3.0])
            segments.append({"seek": seek, "start": seek / 100 + place, "end": seek / 100 + end,
                             "tokens": [begin, *part, begin + 9], "text": ""})
            place = end
        before = json.loads(json.dumps(segments))
        last = draw.choice([0.0, seek / 100, seek / 100 - 4.0])
        whisper.timing.find_alignment = lambda *_, **__: alignment
        add_word_timestamps(
            segments=segments, model=None, tokenizer=tokenizer, mel=None, num_frames=3000, last_speech_timestamp=last
        )
        for segment in segments:
            for word in segment["words"]:
                del word["probability"]
        cases.append({"words": given, "segments": before, "spoken_until": last, "expected": segments})
    return cases


def small_functions(tokenizer) -> dict:
    rng = np.random.default_rng(3)
    paths = []
    for rows, columns in [(1, 1), (1, 6), (5, 5), (4, 20), (13, 70)]:
        weights = rng.standard_normal((rows, columns)).astype(np.float32).round(3)
        text, time = dtw_cpu(-weights.astype(np.float64))
        paths.append({"columns": columns, "weights": weights.flatten().tolist(), "rows": text.tolist(), "times": time.tolist()})
    medians = []
    for length in [2, 4, 8, 30]:
        row = torch.tensor(rng.standard_normal((1, 1, length)).astype(np.float32).round(3))
        medians.append({"row": row.flatten().tolist(), "expected": median_filter(row, 7).flatten().tolist()})
    splits = []
    for text, language in [
        (" Call Emma, now! It's 4 o'clock - isn't it?", "en"), (" Zażółć gęślą jaźń", "pl"), ("今日は良い天気です", "ja"),
        (" naïve café 😀 ok", "fr"), ("你好，世界", "zh"), (" 안녕하세요 여러분", "ko"),
    ]:
        tokens = tokenizer.encode(text) + [tokenizer.eot]
        tokenizer.language = language
        words, groups = tokenizer.split_to_word_tokens(tokens)
        splits.append({"language": language, "tokens": tokens, "words": words[:-1], "groups": groups})
    tokenizer.language = "en"
    merges = []
    for words in [[" Hello", ",", " (", "world", ")", "."], [" \"", "A", "\"", " -", " b"], [" x"], [], [" [", " {", "y", "}", "]"]]:
        alignment = [WordTiming(word, [place], 0, 0, 0) for place, word in enumerate(words)]
        merge_punctuations(alignment, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
        merges.append({"words": words, "expected": [[w.word, w.tokens] for w in alignment]})
    ratios = [{"text": text, "ratio": compression_ratio(text)} for text in
              ["Yes.", "Call Emma at four o'clock.", "the lion " * 30, "One two three four five six. " * 4, "ありがとう" * 12,
               "Please open the door in the hall. Please open the window in the hall. Please close the door in the hall. " * 2]]
    return {"paths": paths, "medians": medians, "splits": splits, "merges": merges, "ratios": ratios}


def main() -> None:
    torch.manual_seed(0)
    tokenizer = get_tokenizer(True, num_languages=99, language="en", task="transcribe")
    special = {key: getattr(tokenizer, key) for key in
               ["eot", "sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps", "timestamp_begin"]}
    golden = {
        "special": special | {"non_speech": list(tokenizer.non_speech_tokens)},
        "rules": rules(tokenizer),
        "searches": searches(tokenizer),
        "windows": windows(tokenizer),
        "words": word_timings(tokenizer),
        **small_functions(tokenizer),
    }
    target = ROOT / "crates/brasa-speech/tests/golden/speech.json"
    target.write_text(json.dumps(golden, separators=(",", ":"), default=float) + "\n")
    print(target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
