"""Golden ids of random difficult texts.

usage: random_texts.py MODELS_DIR OUT.json.xz     (needs tokenizers, llama_cpp)

For the checkpoints in MODELS_DIR the ids are those of the tokenizers library, which also decodes random ids; for the GGUF
vocabularies in MODELS_DIR/tokenizers those of llama.cpp. A case is [text, add special tokens, parse special tokens, ids]
or [ids, skip special tokens, text]. Invalid bytes of byte-fallback vocabularies are left out: the library replaces all
bytes of a run that is not wholly valid, one mark for each byte.
"""

import ctypes
import json
import lzma
import pathlib
import random
import sys
import tempfile

import llama_cpp
from tokenizers import Tokenizer

R = random.Random(20260612)


def pick(low, high, most):
    return "".join(chr(R.randint(low, high)) for _ in range(R.randint(1, most)))


def scalar():
    return chr(R.choice([R.randint(1, 0xD7FF), R.randint(0xE000, 0x10FFFF)]))


WORDS = ["the", "Hello", "world", "don't", "I'LL", "we've", "it's", "foo_bar", "x86", "LLaMA", "naïve", "café", "Straße"]
SPACES = ["\t", "\r\n", "\r", " \n", "\n ", " \t\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\u0085"]
SIGNS = ["🙂", "👨‍👩‍👧‍👦", "🇧🇷", "é", "e\u0301", "ñ", "n\u0303", "\ufeff", "\u0001", "\u007f", "\u00ad", "\ufffd"]
TOKENS = ["<s>", "</s>", "<|im_end|>", "<|endoftext|>", "<|im_start|>", "<bos>", "<end_of_turn>", "<|eot_id|>", "<unk>", "▁", "▁▁"]
TOKENS += ["<0x0A>", "Ġ", "##a", "[CLS]", "<|end", "<|user|>", "<|assistant|>", "<|begin_of_text|>", "<|fim_pad|>"]
POOL = [
    lambda: R.choice(WORDS),
    lambda: " " * R.randint(1, 9),
    lambda: "\n" * R.randint(1, 5),
    lambda: R.choice(SPACES),
    lambda: str(R.randint(0, 10 ** R.randint(1, 12))),
    lambda: R.choice(SIGNS),
    lambda: pick(0x5D0, 0x5EA, 6),
    lambda: pick(0x627, 0x64A, 6),
    lambda: pick(0x4E00, 0x9FFF, 6),
    lambda: pick(0xAC00, 0xD7A3, 4),
    lambda: pick(0x900, 0x97F, 6),
    lambda: pick(0xE01, 0xE3A, 6),
    lambda: pick(33, 126, 12),
    lambda: R.choice("!?.,;:'\"()[]{}<>|/\\@#$%^&*-_=+`~") * R.randint(1, 6),
    scalar,
    lambda: R.choice(TOKENS),
]


def text():
    count = R.choice([0, 1, 2, 5, 10, 30])
    return "".join(R.choice(POOL)() + (" " if R.random() < 0.3 else "") for _ in range(count))


def checkpoint(path):
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    size, cases = tokenizer.get_vocab_size(), []
    while len(cases) < 400:
        sample, add, parse = text(), R.random() < 0.5, R.random() < 0.5
        tokenizer.encode_special_tokens = not parse
        ids = tokenizer.encode(sample, add_special_tokens=add).ids
        if add and parse and ids[:1] == ids[1:2]:
            continue  # BOS twice, which we do not do
        cases.append([sample, add, parse, ids])
    while len(cases) < 600:
        ids, skip = [R.randrange(size) for _ in range(R.choice([0, 1, 3, 20]))], R.random() < 0.5
        decoded = tokenizer.decode(ids, skip_special_tokens=skip)
        if "gemma" not in path.name or "\ufffd" not in decoded:
            cases.append([ids, skip, decoded])
    return cases


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def quiet(level, message, data):
    pass


def vocabulary(path):
    llama_cpp.llama_log_set(quiet, None)
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(lzma.decompress(path.read_bytes()))
        file.flush()
        model = llama_cpp.llama_model_load_from_file(file.name.encode(), parameters)
    vocab, cases = llama_cpp.llama_model_get_vocab(model), []
    while len(cases) < 300:
        sample, add, parse = text(), R.random() < 0.3, R.random() < 0.5
        data = sample.encode()
        ids = (llama_cpp.llama_token * (len(data) + 16))()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), add, parse)
        if add and parse and count > 1 and ids[0] == ids[1]:
            continue
        if "phi-3" in path.name and any(c.isspace() and ord(c) > 127 for c in sample):
            continue  # dropped after a control token by the model's tokenizer, not by llama.cpp
        cases.append([sample, add, parse, list(ids[:count])])
    return cases


def main():
    models = pathlib.Path(sys.argv[1])
    golden = {name: checkpoint(models / name) for name in ["lexicon-qwen3", "tiny-llama", "tiny-gemma3", "tiny-gemma4"]}
    # qwen2 and bert-bge are left out: llama.cpp neither composes characters nor decomposes Hangul as these models need.
    for name in ["deepseek-coder", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "starcoder"]:
        golden[f"ggml-vocab-{name}"] = vocabulary(models / "tokenizers" / f"ggml-vocab-{name}.gguf.xz")
    packed = lzma.compress(json.dumps(golden, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME)
    pathlib.Path(sys.argv[2]).write_bytes(packed)
    print({name: len(cases) for name, cases in golden.items()}, len(packed), "bytes")


main()
