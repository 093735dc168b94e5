#!/usr/bin/env python3
"""A random text encoder as MLX quantises it: Hugging Face's names, packed words.

    python tools/golden/models/mlx_encoder.py quantise DECODED
    python tools/golden/models/mlx_encoder.py golden DECODED

The first packs every matrix of `models/random-encoders/bert` whose rows are whole groups, tables included, by `mx.quantize` (4 bits in groups of 32), as
`mlx.nn.quantize` does with linear layers and embeddings, and writes `models/random-encoders-mlx/bert/{config.json, model.safetensors}` and
the decoded weights to DECODED. The second computes golden.safetensors of the decoded weights by transformers: `ids` i32 [T] (those of the folder's own
`long.ids`), `types` i32 [T], `states` [T, D].

Needs `mlx` and `safetensors`; `torch`, `transformers` and `safetensors`.
"""

import json
import pathlib
import sys

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models"
SOURCE, OUT = MODELS / "random-encoders" / "bert", MODELS / "random-encoders-mlx" / "bert"
BITS, GROUP = 4, 32


def quantise(decoded: str) -> None:
    import mlx.core as mx

    OUT.mkdir(parents=True, exist_ok=True)
    packed, plain = {}, {}
    for name, tensor in mx.load(str(SOURCE / "model.safetensors")).items():
        if name.endswith(".weight") and tensor.ndim == 2 and tensor.shape[1] % GROUP == 0:
            module = name.removesuffix(".weight")
            words, scales, biases = mx.quantize(tensor.astype(mx.float16), group_size=GROUP, bits=BITS)
            packed |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
            wide = [part.astype(mx.float32) for part in (scales, biases)]
            plain[name] = mx.dequantize(words, *wide, group_size=GROUP, bits=BITS)
        else:
            packed[name] = plain[name] = tensor
    mx.save_safetensors(str(OUT / "model.safetensors"), packed, {"format": "mlx"})
    mx.save_safetensors(decoded, plain, {"format": "pt"})
    config = json.loads((SOURCE / "config.json").read_text())
    config["quantization"] = {"group_size": GROUP, "bits": BITS}
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def golden(decoded: str) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    config = transformers.AutoConfig.from_pretrained(SOURCE)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    missing, _ = model.load_state_dict({k.removeprefix("bert."): v.float() for k, v in load_file(decoded).items()}, strict=False)
    assert not [name for name in missing if "position_ids" not in name], missing
    own = load_file(SOURCE / "golden.safetensors")
    with torch.no_grad():
        states = model(own["long.ids"][None].long(), token_type_ids=own["long.types"][None].long()).last_hidden_state[0]
    save_file({"ids": own["long.ids"], "types": own["long.types"], "states": states.contiguous()}, OUT / "golden.safetensors")


if __name__ == "__main__":
    {"quantise": quantise, "golden": golden}[sys.argv[1]](sys.argv[2])
