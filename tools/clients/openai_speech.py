"""OpenAI's Python client against a server with a model of speech: all forms of answers, streams, errors.

usage: openai_speech.py URL FOLDER

The folder is that of the served checkpoint; `reference.json` in it holds the expected texts of the wavs beside it.
"""

import json
import pathlib
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
folder = pathlib.Path(sys.argv[2])
model = folder.name
assert [model.id for model in client.models.list().data] == [model]
texts = {case["wav"]: case["with_timestamps"]["text"].strip()
         for case in json.loads((folder / "reference.json").read_text())["cases"]}

for wav, text in texts.items():
    with (folder / wav).open("rb") as file:
        answer = client.audio.transcriptions.create(model=model, file=file, extra_body={"beam_size": 1})
    assert answer.text == text, (wav, answer.text)
    assert answer.usage.type == "duration" and answer.usage.seconds > 1

wav = folder / "held-5.wav"
for form in ("text", "srt", "vtt"):
    answer = client.audio.transcriptions.create(model=model, file=wav, response_format=form, language="en")
    assert isinstance(answer, str) and "The happy sheep waited" in answer, answer
verbose = client.audio.transcriptions.create(
    model=model, file=wav, response_format="verbose_json", timestamp_granularities=["word", "segment"], temperature=0)
assert verbose.language == "english" and abs(float(verbose.duration) - 7.95) < 0.2, verbose
assert len(verbose.segments) == 3 and verbose.segments[1].text.startswith(" The happy sheep")
assert verbose.words[0].word == "The" and all(word.start <= word.end for word in verbose.words)
translated = client.audio.translations.create(model=model, file=wav)
assert translated.text

# A pause of three seconds in front, which a network of voice activity leaves out.
sound = wav.read_bytes()
behind = sound[:4] + (len(sound) + 95_992).to_bytes(4, "little") + sound[8:40] + (len(sound) + 95_956).to_bytes(4, "little") + bytes(96_000) + sound[44:]
paused = client.audio.transcriptions.create(
    model=model, file=("paused.wav", behind), response_format="verbose_json",
    chunking_strategy={"type": "server_vad", "silence_duration_ms": 400, "prefix_padding_ms": 200, "threshold": 0.5})
assert len(paused.segments) == 3 and paused.segments[0].seek > 280 and paused.segments[0].start > 2.8, paused
likely = client.audio.transcriptions.create(model=model, file=wav, include=["logprobs"])
assert likely.logprobs and all(token.logprob <= 0 for token in likely.logprobs), likely

events = list(client.audio.transcriptions.create(model=model, file=wav, stream=True))
deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
assert events[-1].type == "transcript.text.done" and "".join(deltas) == events[-1].text and len(deltas) == 3, events
usage = events[-1].usage
assert usage.type == "tokens" and usage.output_tokens > 10 and usage.total_tokens == usage.input_tokens + usage.output_tokens, usage

for wrong, code in (
    ({"language": "klingon"}, "invalid_value"),
    ({"include": ["words"]}, "invalid_value"),
    ({"chunking_strategy": {"type": "server_vad", "threshold": 7}}, "invalid_value"),
    ({"response_format": "diarized_json"}, "unsupported_field"),
    ({"file": ("speech.wav", b"no sound")}, "invalid_audio"),
):
    try:
        client.audio.transcriptions.create(**{"model": model, "file": wav, **wrong})
    except openai.BadRequestError as error:
        assert error.code == code, (wrong, error)
    else:
        raise AssertionError(f"{wrong} was not refused")
try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
except openai.BadRequestError as error:
    assert error.code == "wrong_model_kind", error
else:
    raise AssertionError("a model of speech chats")
print("the OpenAI client is content with speech")
