#!/usr/bin/env python3
"""A tiny random Qwen3-Reranker, with scores by sentence-transformers and by transformers.

    python tools/golden/models/random_rerankers.py

writes `models/random-embedders/qwen3-reranker`: the files of random_embedders.py's Qwen3 with its head, a chat template that knows the roles `query` and `document`
as well as the usual ones, the module LogitScore of sentence-transformers, and pairs.json: a `query`, `documents`, and

    scores      by sentence-transformers' CrossEncoder, with the checkpoint's default instruction
    instructed  the same with `instruction`
    plain       p(yes) of yes and no by transformers, as the card of Qwen3-Reranker computes it, with the same instruction
"""

import json
import zlib

import tokenizers
import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from random_embedders import QWEN3, ROOT, VOCABULARY, write
from random_encoders import prose

FOLDER = ROOT / "qwen3-reranker"
JUDGE = ('Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer '
         'can only be "yes" or "no".')  # fmt: skip
TASK = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE = (
    '{%- if messages | selectattr("role", "equalto", "document") | list -%}'
    '{%- set ns = namespace(task="' + TASK + '") -%}'
    '{%- for message in messages -%}{%- if message.role == "system" -%}{%- set ns.task = message.content -%}{%- elif message.role == "query" -%}'
    '{%- set ns.query = message.content -%}{%- else -%}{%- set ns.document = message.content -%}{%- endif -%}{%- endfor -%}'
    "{{- '<|im_start|>system\\n" + JUDGE + "<|im_end|>\\n<|im_start|>user\\n<Instruct>: ' + ns.task + '\\n<Query>: ' + ns.query"
    " + '\\n<Document>: ' + ns.document + '<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' -}}"
    "{%- else -%}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
    "{%- endif -%}"
)
QUERY = "What is an ember?"
DOCUMENTS = [
    "A glowing piece of coal or wood in a dying fire.",
    "A large natural stream of water that flows to the sea.",
    "Small",
    "The act of judging whether a document answers a query, yes or no.",
]
INSTRUCTION = "Find the definition of a word"


def write_tokenizer():
    # Training breaks ties by chance: a tokenizer that is there stays.
    if not (FOLDER / "tokenizer.json").exists():
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "yes", "no"]
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special[:5], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
        # Both answers are tokens, as in the real vocabulary.
        made.train_from_iterator([*prose(), *["yes no "] * 3000, *["yes", "no"] * 3000], trainer)
        made.post_processor = processors.ByteLevel(trim_offsets=False)
        made.save(str(FOLDER / "tokenizer.json"))
    write(FOLDER / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024, "pad_token": "<|endoftext|>",
        "eos_token": "<|im_end|>", "padding_side": "left", "chat_template": TEMPLATE})  # fmt: skip


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_tokenizer()
    config = QWEN3 | {"max_position_embeddings": 1024, "eos_token_id": 2}
    write(FOLDER / "config.json", config)
    torch.manual_seed(zlib.crc32(b"qwen3-reranker"))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(FOLDER))
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() > 1 else 0.1))
            if "norm" in key:
                value.add_(1.0)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(tensors, FOLDER / "model.safetensors", metadata={"format": "pt"})

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    [yes], [no] = (tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("yes", "no"))
    write(FOLDER / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore",
         "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}])  # fmt: skip
    write(FOLDER / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": no, "module_input_name": "causal_logits"})
    write(FOLDER / "sentence_bert_config.json", {
        "transformer_task": "text-generation", "module_output_name": "causal_logits",
        "modality_config": {kind: {"method": "forward", "method_output_name": "logits"} | more
                            for kind, more in (("text", {}), ("message", {"format": "flat"}))}})  # fmt: skip
    write(FOLDER / "config_sentence_transformers.json", {
        "model_type": "CrossEncoder", "prompts": {"web": TASK, "other": "Find other words"}, "default_prompt_name": "web",
        "activation_fn": "torch.nn.modules.activation.Sigmoid"})  # fmt: skip

    encoder = CrossEncoder(str(FOLDER), device="cpu", model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"})
    pairs = [(QUERY, document) for document in DOCUMENTS]
    predict = lambda **options: [float(score) for score in encoder.predict(pairs, batch_size=1, **options)]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()

    def plain(document):
        ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
        before = ids(f"<|im_start|>system\n{JUDGE}<|im_end|>\n<|im_start|>user\n")
        asked = ids(f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}")
        behind = ids("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([before + asked + behind])).logits[0, -1]
        return torch.softmax(logits[[no, yes]], 0)[1].item()

    written = {"query": QUERY, "documents": DOCUMENTS, "instruction": INSTRUCTION, "scores": predict(),
               "instructed": predict(prompt=INSTRUCTION), "plain": [plain(document) for document in DOCUMENTS]}  # fmt: skip
    write(FOLDER / "pairs.json", written)
    print(written, sum(path.stat().st_size for path in FOLDER.rglob("*")) // 1024, "KiB")


if __name__ == "__main__":
    main()
