#!/usr/bin/env python3
"""Golden preference: adapters that TRL's DPOTrainer and PEFT learn from pairs, in f32 on the CPU.

usage: preferences.py OUT_DIR [NAME ...]     (needs torch, transformers, peft, trl, safetensors)

For each checkpoint in CASES, OUT_DIR/NAME-dpo.safetensors, with the adapter of lora.py. The pairs come of `long.ids` and `short.ids` of the
checkpoint's `golden.safetensors`: the chosen document is these ids, learned from FIRST on, the rejected one has its learned ids backwards. β is 0.5.

    loss                     [50]   before each update of SGD, whose rate is `rate`
    gradient.MODULE.a|b      first gradient in f64, whole
    sgd.MODULE.a|b           values after 50 updates, whole
"""

import pathlib
import sys
import tempfile

import torch
from datasets import Dataset
from lora import MODELS, build
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

CASES = {"llama31": 0.03, "qwen3": 0.003}
FIRST = {"long.ids": 20, "short.ids": 3}
BETA, UPDATES = 0.5, 50


class Pairs(DPOTrainer):
    """A trainer of token ids."""

    def _prepare_dataset(self, dataset, *_arguments, **_named):
        return dataset


def trainer_of(model, pairs: list[dict], folder: str) -> Pairs:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")
    config = DPOConfig(
        output_dir=folder, beta=BETA, per_device_train_batch_size=len(pairs), max_length=None, use_cpu=True, report_to=[],
        gradient_checkpointing=False, disable_dropout=True, bf16=False, fp16=False,
    )
    # A model that comes with an adapter would be compared with a copy of that; without the copy TRL switches the adapter off.
    trainer = Pairs(model=model, args=config, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
    model.delete_adapter("ref")
    return trainer


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for name, rate in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        golden = load_file(MODELS / name / "golden.safetensors")
        pairs = []
        for label, first in FIRST.items():
            ids = golden[label].tolist()
            pairs.append({"prompt_ids": ids[:first], "chosen_ids": ids[first:], "rejected_ids": ids[:first - 1:-1]})
        out = {"rate": torch.tensor([rate])}
        losses = []
        for dtype in [torch.float64, torch.float32]:
            model, matrices = build(name, dtype=dtype)
            with tempfile.TemporaryDirectory() as temporary:
                trainer = trainer_of(model, pairs, temporary)
                inputs = trainer.data_collator(pairs)
                optimizer = torch.optim.SGD(list(matrices.values()), lr=rate)
                for update in range(1 if dtype == torch.float64 else UPDATES):
                    optimizer.zero_grad()
                    loss = trainer.compute_loss(model, dict(inputs))
                    loss.backward()
                    if dtype == torch.float64:
                        out |= {f"gradient.{label}": value.grad.float().clone() for label, value in matrices.items()}
                    else:
                        losses.append(loss.item())
                        optimizer.step()
        out["loss"] = torch.tensor(losses)
        out |= {f"sgd.{label}": value.detach().clone().contiguous() for label, value in matrices.items()}
        print(f"{name}: {len(matrices)} matrices, loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        save_file(out, folder / f"{name}-dpo.safetensors")


if __name__ == "__main__":
    main()
