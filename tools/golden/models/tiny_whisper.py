#!/usr/bin/env python3
"""The trained Whisper of the tests, made small, with golden values by transformers.

    python tools/golden/models/tiny_whisper.py SOURCE

reads the trained folder SOURCE (bf16 safetensors, wavs, `reference.json`) and writes `models/tiny-whisper`.

The tables of published Whisper checkpoints have a row for each of 51,865 tokens. Training has seen 1,430 of them; all
other rows are copies of one another up to noise. Here they are copies without noise, so that the file, which is 26 MB long,
takes 5 MB where files are kept compressed. Nothing else is changed, and every golden value is computed from the written file.

golden.safetensors (f32 unless said otherwise), for the cases NAME = held-1 .. held-6:

    columns              i32 [C]      token ids whose logits are kept: every 97th, and all from 50,257 on
    NAME.ids             i32 [T]      start tokens with timestamps, greedy text by the rules, end token
    NAME.logits          [T, C]       logits of every row
    NAME.logsumexp       [T]          of whole rows
    NAME.mel             [300, 80]    the first three seconds of features
    NAME.encoder         [60, 192]    every 25th row of the encoder's output
    held-1.attention     [3, T, 150]  weights that the alignment heads give to the first three seconds
"""

import json
import pathlib
import shutil
import sys
import wave

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizerFast

TARGET = pathlib.Path(__file__).resolve().parents[3] / "models" / "tiny-whisper"
TABLE = "model.decoder.embed_tokens.weight"
FILES = ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "MODEL_CARD.md"]


def shrink(source: pathlib.Path) -> None:
    """Writes the checkpoint with all rows alike that training has not seen."""
    weights = load_file(source / "model.safetensors")
    table = weights[TABLE].float()
    seen = (table - table.mean(0)).norm(dim=1) > 0.5
    table[~seen] = table[~seen].mean(0)
    weights[TABLE] = table.to(torch.bfloat16)
    save_file(weights, TARGET / "model.safetensors", metadata={"format": "pt"})
    print(f"{int(seen.sum())} rows kept")


def samples(path: pathlib.Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def suppressed(logits: torch.Tensor, ids: list[int], first: int, generation: dict, timestamps: bool) -> torch.Tensor:
    """The rules of generation_config.json on one row, as openai-whisper applies them. `first`: length of the prompt."""
    logits = logits.clone()
    begin = generation["no_timestamps_token_id"] + 1
    logits[generation["suppress_tokens"]] = -torch.inf
    if len(ids) == first:
        logits[generation["begin_suppress_tokens"]] = -torch.inf
    if not timestamps:
        return logits
    logits[begin - 1] = -torch.inf
    drawn = ids[first:]
    last = len(drawn) >= 1 and drawn[-1] >= begin
    before = len(drawn) < 2 or drawn[-2] >= begin
    if last:
        if before:
            logits[begin:] = -torch.inf
        else:
            logits[: generation["eos_token_id"]] = -torch.inf
    times = [token for token in drawn if token >= begin]
    if times:
        least = times[-1] if last and not before else times[-1] + 1
        logits[begin:least] = -torch.inf
    if not drawn:
        logits[:begin] = -torch.inf
        logits[begin + generation["max_initial_timestamp_index"] + 1 :] = -torch.inf
    shares = torch.log_softmax(logits, -1)
    if shares[begin:].logsumexp(-1) > shares[:begin].max():
        logits[:begin] = -torch.inf
    return logits


def greedy(model, encoded, prompt: list[int], generation: dict, timestamps: bool):
    """Ids behind the prompt, with the end token; the smallest gap between the best and the second-best logit."""
    ids, margin = list(prompt), float("inf")
    while len(ids) < 200:
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        two = suppressed(logits, ids, len(prompt), generation, timestamps).topk(2)
        margin = min(margin, float(two.values[0] - two.values[1]))
        ids.append(int(two.indices[0]))
        if ids[-1] == generation["eos_token_id"]:
            break
    return ids[len(prompt) :], margin


@torch.no_grad()
def main() -> None:
    source = pathlib.Path(sys.argv[1])
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in FILES + [path.name for path in source.glob("*.wav")]:
        shutil.copyfile(source / name, TARGET / name)
    shrink(source)
    model = WhisperForConditionalGeneration.from_pretrained(TARGET, dtype=torch.float32, attn_implementation="eager").eval()
    extractor = WhisperFeatureExtractor.from_pretrained(TARGET)
    tokenizer = WhisperTokenizerFast(tokenizer_file=str(TARGET / "tokenizer.json"))
    generation = json.loads((TARGET / "generation_config.json").read_text())
    columns = sorted(set(range(0, 51865, 97)) | set(range(50257, 51865)))
    golden = {"columns": torch.tensor(columns, dtype=torch.int32)}
    cases = []
    for given in json.loads((source / "reference.json").read_text())["cases"]:
        name = pathlib.Path(given["wav"]).stem
        sound = samples(TARGET / given["wav"])
        mel = extractor(sound, sampling_rate=16000, return_tensors="pt").input_features
        encoded = model.model.encoder(mel)
        case = {key: given[key] for key in ["wav", "samples", "seconds", "expected_text", "segments"]}
        for key, prompt in [("no_timestamps", [50258, 50259, 50359, 50363]), ("with_timestamps", [50258, 50259, 50359])]:
            ids, margin = greedy(model, encoded, prompt, generation, key == "with_timestamps")
            text = tokenizer.decode([i for i in ids if i < 50257])
            case[key] = {"prompt_ids": prompt, "rules_ids": ids, "text": text, "min_margin": round(margin, 5)}
            print(name, key, repr(text), round(margin, 3))
        start = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([[50258]])).logits[0, -1]
        languages = start[50259:50358]
        case["first_token"] = {
            "language_token": 50259 + int(languages.argmax()),
            "probability_en": float(languages.softmax(-1)[0]),
            "probability_nospeech": float(start.softmax(-1)[50362]),
        }
        cases.append(case)
        ids = case["with_timestamps"]["prompt_ids"] + case["with_timestamps"]["rules_ids"]
        out = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
        golden[f"{name}.ids"] = torch.tensor(ids, dtype=torch.int32)
        golden[f"{name}.logits"] = out.logits[0][:, columns].contiguous()
        golden[f"{name}.logsumexp"] = out.logits[0].logsumexp(-1)
        golden[f"{name}.mel"] = mel[0, :, :300].T.contiguous()
        golden[f"{name}.encoder"] = encoded.last_hidden_state[0, ::25].contiguous()
        if name == "held-1":
            heads = [out.cross_attentions[layer][0, head] for layer, head in generation["alignment_heads"]]
            golden["held-1.attention"] = torch.stack(heads)[:, :, :150].contiguous()
    save_file(golden, TARGET / "golden.safetensors")
    reference = {
        "model": "tiny-whisper",
        "dtype": "float32",
        "sampling_rate": 16000,
        "notes": "rules_ids apply the suppression lists and timestamp rules of generation_config.json to the greedy choice, end "
        "token included; min_margin is the smallest gap between the best and second-best logit on the way; expected_text is "
        "what was spoken; segments give the true times.",
        "transformers": transformers.__version__,
        "cases": cases,
    }
    (TARGET / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
