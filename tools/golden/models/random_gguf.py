#!/usr/bin/env python3
"""The random checkpoints as llama.cpp's own converter writes them.

    python tools/golden/models/random_gguf.py LLAMA_CPP OUT [NAME ...]

writes `OUT/NAME.gguf` for the given folders of `models/random` (all by default), by convert_hf_to_gguf.py of the
llama.cpp sources in LLAMA_CPP. The checkpoints have no tokenizer, so the vocabulary is a stand-in of as many tokens, and
a few keys are added (see below). Names, permuted rows, norm offsets and factor tensors are the converter's own.
The golden values are those of the folders: a GGUF file must give the same logits.

Some folders cannot be carried over: YaRN's mscale and truncate have no key, and llama.cpp has no mixture whose layers
are partly dense.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch

FOLDERS = pathlib.Path(__file__).resolve().parents[3] / "models" / "random"


def stand_in_vocabulary(self) -> None:
    count = self.hparams["vocab_size"]
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("default")
    self.gguf_writer.add_token_list([f"<{i}>" for i in range(count)])
    self.gguf_writer.add_token_types([1] * count)
    self.gguf_writer.add_token_merges([])


def with_what_the_converter_leaves_out(model_class: type, config: dict):
    """Writes keys that GGUF has and the converter drops: the random checkpoints use them, most published ones do not."""

    def set_gguf_parameters(self) -> None:
        model_class.set_gguf_parameters(self)
        scalar = config.get("query_pre_attn_scalar")
        if scalar not in (None, config.get("head_dim")):
            self.gguf_writer.add_attention_scale(scalar**-0.5)
        if config["model_type"] in ("gemma2", "gemma3_text"):
            kinds = self.hparams.get("layer_types") or [
                "full_attention" if (i + 1) % config.get("sliding_window_pattern", 2) == 0 else "sliding_attention"
                for i in range(config["num_hidden_layers"])]
            self.gguf_writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
        if config["model_type"] == "mistral" and config["sliding_window"]:
            self.gguf_writer.add_sliding_window(config["sliding_window"])
        if config.get("use_sliding_window"):
            self.gguf_writer.add_sliding_window(config["sliding_window"])
            kinds = [i >= config["max_window_layers"] for i in range(config["num_hidden_layers"])]
            self.gguf_writer.add_sliding_window_pattern(kinds)

    return set_gguf_parameters


def main() -> None:
    sources, out, *names = sys.argv[1:]
    sys.path.insert(0, sources)
    sys.path.insert(1, str(pathlib.Path(sources) / "gguf-py"))
    import gguf
    from conversion import ModelBase, get_model_class

    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in names or sorted(folder.name for folder in FOLDERS.iterdir()):
        folder = pathlib.Path(tempfile.mkdtemp()) / name
        shutil.copytree(FOLDERS / name, folder)
        config = json.loads((folder / "config.json").read_text())
        # Gemma 3 cuts the embedding to the tokenizer's length.
        tokens = {f"<{i}>": i for i in range(config["vocab_size"])}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
        model_class = get_model_class(config["architectures"][0])
        variant = type(model_class.__name__, (model_class,), {
            "model_arch": model_class.model_arch,
            "set_vocab": stand_in_vocabulary,
            "set_gguf_parameters": with_what_the_converter_leaves_out(model_class, config),
        })
        kept = gguf.LlamaFileType.ALL_F32 if config["torch_dtype"] == "float32" else gguf.LlamaFileType.MOSTLY_BF16
        if config["torch_dtype"] == "float16":
            kept = gguf.LlamaFileType.MOSTLY_F16
        with torch.inference_mode():
            try:
                variant(folder, kept, out / f"{name}.gguf", model_name=name).write()
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
