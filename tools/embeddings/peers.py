"""Times ONNX Runtime and CTranslate2 on a text encoder, both with int8 weights and dynamically quantised activations.

    python tools/embeddings/peers.py make FOLDER OUT                  # OUT/int8.onnx and OUT/ct2
    python tools/embeddings/peers.py onnx OUT/int8.onnx TEXTS THREADS REPETITIONS BATCH
    python tools/embeddings/peers.py ct2 OUT/ct2 TEXTS THREADS REPETITIONS BATCH

FOLDER is a BERT's; TEXTS has a text a line, as token ids. BATCH texts are computed together, longest first, padded to the longest; the best of all
repetitions is printed. The ONNX graph is fused by ONNX Runtime's own optimiser for BERT before it is quantised.
"""

import os
import pathlib
import sys
import time


def make(folder, out):
    import ctranslate2
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    out.mkdir(parents=True, exist_ok=True)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    class First(torch.nn.Module):
        """The first row's state, which is the text's vector."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids):
            given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            return self.model(**given).last_hidden_state[:, 0]

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.randint(5, 1000, (2, 16))
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes = {name: {0: "texts", 1: "tokens"} for name in names}
    torch.onnx.export(First(), example, out / "f32.onnx", input_names=names, output_names=["vectors"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)  # fmt: skip
    config = model.config
    fused = optimize_model(str(out / "f32.onnx"), "bert", num_heads=config.num_attention_heads,
                           hidden_size=config.hidden_size, opt_level=1)  # fmt: skip
    print("fused:", {name: count for name, count in fused.get_fused_operator_statistics().items() if count})
    fused.save_model_to_file(str(out / "fused.onnx"))
    quantize_dynamic(str(out / "fused.onnx"), str(out / "int8.onnx"), weight_type=QuantType.QInt8,
                     extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})  # fmt: skip
    print("quantised:", sorted({node.op_type for node in onnx.load(out / "int8.onnx").graph.node}))
    converter = ctranslate2.converters.TransformersConverter(str(folder))
    converter.convert(str(out / "ct2"), quantization="int8", force=True)


def read(path):
    texts = [[int(id) for id in line.split()] for line in pathlib.Path(path).read_text().splitlines()]
    return sorted(texts, key=len, reverse=True)


def timed(texts, repetitions, batch, run):
    batches = [texts[first : first + batch] for first in range(0, len(texts), batch)]
    best = float("inf")
    for repetition in range(repetitions + 1):
        start = time.perf_counter()
        for some in batches:
            run(some)
        if repetition > 0:
            best = min(best, time.perf_counter() - start)
    tokens = sum(map(len, texts))
    print(f"{len(texts)} texts, {tokens} tokens: {tokens / best:.0f} tokens/s")


def onnx(path, texts, threads, repetitions, batch):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(texts):
        ids = np.zeros((len(texts), len(texts[0])), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return session.run(["vectors"], given)[0]

    timed(texts, repetitions, batch, run)


def ct2(path, texts, threads, repetitions, batch):
    import ctranslate2
    import numpy as np

    encoder = ctranslate2.Encoder(path, device="cpu", compute_type="int8", intra_threads=threads)

    def run(texts):
        return np.array(encoder.forward_batch(texts).last_hidden_state)[:, 0]

    timed(texts, repetitions, batch, run)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        os.environ["OMP_NUM_THREADS"] = sys.argv[4]
        path, texts, *numbers = sys.argv[2:]
        {"onnx": onnx, "ct2": ct2}[sys.argv[1]](path, read(texts), *map(int, numbers))
