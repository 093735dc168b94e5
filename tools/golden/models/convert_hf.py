#!/usr/bin/env python3
"""llama.cpp's convert_hf_to_gguf.py, for checkpoints whose tokenizer it does not know.

    python convert_hf.py LLAMA_CPP_DIR MODEL_DIR OUT.gguf [--outtype f32|bf16|...] [--vocab pre=NAME|merges|added|none]

The converter recognises a byte-level BPE by the hash of its ids for one fixed text, which depends on the
vocabulary; a freshly trained vocabulary is always "not recognized" and the conversion ends with
NotImplementedError. `--vocab` says what to do instead; everything else, tensors above all, is untouched:

    pre=NAME   write NAME as tokenizer.ggml.pre (llama-bpe and qwen2 split text like our trained models do)
    merges     write a SentencePiece vocabulary whose scores are the ranks of tokenizer.json's merges
               (Gemma 3: the converter wants tokenizer.model, which a folder of today need not have)
    added      give tokenizer.json's added tokens their types (Gemma 4: the converter takes those that the base
               vocabulary holds and tokenizer_config.json does not name for plain text, so that `<|turn>` is split)
    none       no vocabulary (random checkpoints): tokenizer.ggml.model = "none" and the vocabulary's size;
               the converter of Gemma 3 and 4 counts tokenizer.json's tokens all the same, so it gets some
"""

import argparse
import json
import pathlib
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("llama_cpp", type=pathlib.Path)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--outtype", default="f32")
parser.add_argument("--vocab", default="")
args = parser.parse_args()

sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
import convert_hf_to_gguf  # noqa: E402
import gguf  # noqa: E402
from conversion.base import ModelBase, TextModel  # noqa: E402


def named_pre(name: str):
    def get_vocab_base_pre(self, tokenizer) -> str:
        return name

    return get_vocab_base_pre


def vocab_of_merges(self) -> None:
    tokenizer = json.loads((self.dir_model / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    size = self.hparams["vocab_size"]
    rank = {}
    for index, (left, right) in enumerate(tokenizer["model"]["merges"]):
        rank.setdefault(left + right, index)
    special = {token["content"]: token for token in tokenizer["added_tokens"]}
    tokens = [f"[PAD{i}]".encode() for i in range(size)]
    scores, types = [-10000.0] * size, [gguf.TokenType.UNUSED] * size
    for text, index in ids.items():
        tokens[index] = text.encode()
        scores[index] = -float(rank.get(text, 10000))
        if text in special:
            types[index] = gguf.TokenType.CONTROL if special[text]["special"] else gguf.TokenType.USER_DEFINED
        elif text == tokenizer["model"]["unk_token"]:
            types[index] = gguf.TokenType.UNKNOWN
        elif len(text) == 6 and text.startswith("<0x"):
            types[index] = gguf.TokenType.BYTE
        else:
            types[index] = gguf.TokenType.NORMAL
    self.gguf_writer.add_tokenizer_model("llama")
    self.gguf_writer.add_tokenizer_pre("default")
    self.gguf_writer.add_token_list(tokens)
    self.gguf_writer.add_token_scores(scores)
    self.gguf_writer.add_token_types(types)
    gguf.SpecialVocab(self.dir_model, n_vocab=size).add_to_gguf(self.gguf_writer)
    self.gguf_writer.add_add_space_prefix(False)


def typed_added_tokens(set_vocab):
    def wrapped(self) -> None:
        special = {t["id"]: t["special"] for t in json.loads((self.dir_model / "tokenizer.json").read_text())["added_tokens"]}
        add_token_types = self.gguf_writer.add_token_types

        def add(types) -> None:
            add_token_types([(gguf.TokenType.CONTROL if special[i] else gguf.TokenType.USER_DEFINED) if i in special else t
                             for i, t in enumerate(types)])

        self.gguf_writer.add_token_types = add
        set_vocab(self)

    return wrapped


def no_vocab(self) -> None:
    self._set_vocab_none()
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])


def replace_vocab(function) -> None:
    """Loads the architecture's module, then replaces `set_vocab` in every class that has its own."""
    architecture = json.loads((args.model / "config.json").read_text())["architectures"][0]
    convert_hf_to_gguf.get_model_class(architecture)
    pending = [TextModel]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls is TextModel or "set_vocab" in cls.__dict__:
            cls.set_vocab = function


if args.vocab.startswith("pre="):
    TextModel.get_vocab_base_pre = named_pre(args.vocab[4:])
elif args.vocab == "merges":
    replace_vocab(vocab_of_merges)
elif args.vocab == "added":
    from conversion.gemma import Gemma4Model

    Gemma4Model.set_vocab = typed_added_tokens(Gemma4Model.set_vocab)
elif args.vocab == "none":
    replace_vocab(no_vocab)
    size = json.loads((args.model / "config.json").read_text())["vocab_size"]
    folder = pathlib.Path(tempfile.mkdtemp())
    for file in ("config.json", "model.safetensors"):
        (folder / file).symlink_to((args.model / file).resolve())
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {str(i): i for i in range(size)}}, "added_tokens": []}))
    args.model = folder
elif args.vocab:
    parser.error(f"--vocab {args.vocab}")

args.out.parent.mkdir(parents=True, exist_ok=True)
sys.argv = ["convert_hf_to_gguf.py", str(args.model), "--outfile", str(args.out), "--outtype", args.outtype]
convert_hf_to_gguf.main()
