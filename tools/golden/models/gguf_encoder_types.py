#!/usr/bin/env python3
"""Text encoders that we quantise, in llama.cpp.

    cargo build -p brasa-convert --example quantize
    python tools/golden/models/gguf_encoder_types.py target/debug/examples/quantize LLAMA_CPP LLAMA_SERVER LLAMA_QUANTIZE

converts folders to GGUF files of several types, loads them in llama.cpp (the program LLAMA_SERVER), and writes its vectors of the texts of
`models/gguf-encoders/NAME.json` to `models/gguf-encoders/types.json`: `NAME.TYPE`, a list of vectors. Then compares the types of all tensors with those that
llama.cpp's own quantiser LLAMA_QUANTIZE chooses, for a wider model of random weights, whose rows fit all blocks; the model is not kept.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import gguf_encoders
from gguf_encoders import FOLDERS, OUT

FOLDER = {"bert": FOLDERS / "bert", "nomic-bert": FOLDERS / "nomic-bert", "xlm-roberta": OUT / "xlm-roberta"}
TYPES = ["F16", "BF16", "Q8_0", "Q5_0", "Q4_K_M"]
ALL = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q3_K_L", "Q3_K_M",
       "Q3_K_S", "Q2_K", "IQ4_NL", "IQ4_XS"]


def types(file: pathlib.Path) -> dict:
    import gguf

    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def compare_types(quantize: str, llama_quantize: str, scratch: pathlib.Path) -> None:
    gguf_encoders.WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    folder = scratch / "wide"
    folder.mkdir()
    gguf_encoders.xlm_roberta(folder)
    full, ours, theirs = scratch / "full.gguf", scratch / "ours.gguf", scratch / "theirs.gguf"
    subprocess.run([quantize, str(folder), str(full), "F32"], check=True)
    for name in ALL:
        for file in (ours, theirs):
            file.unlink(missing_ok=True)
        subprocess.run([quantize, str(folder), str(ours), name], check=True, stdout=subprocess.DEVNULL)
        # Without importances some types are refused there.
        made = subprocess.run([llama_quantize, str(full), str(theirs), name], capture_output=True)
        if made.returncode:
            print(f"{name}: llama.cpp refused")
            continue
        a, b = types(ours), types(theirs)
        print(f"{name}: {'types equal' if a == b else {key: (a.get(key), b.get(key)) for key in a if a.get(key) != b.get(key)}}")


def main() -> None:
    quantize, _, server, llama_quantize = sys.argv[1:]
    made = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name, folder in FOLDER.items():
            for kind in TYPES:
                file = scratch / f"{name}-{kind}.gguf"
                subprocess.run([quantize, str(folder), str(file), kind], check=True)
                made[f"{name}.{kind}"] = gguf_encoders.answers(server, file)["vectors"]
        compare_types(quantize, llama_quantize, scratch)
    round_to = lambda vectors: [[round(x, 7) for x in vector] for vector in vectors]
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(round_to(value))}" for key, value in made.items())
    (OUT / "types.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
