#!/usr/bin/env python3
"""Tiny random language models that embed, with vectors by sentence-transformers.

    python tools/golden/models/random_embedders.py [NAME ...]

writes `models/random-embedders/NAME/{config.json, model.safetensors, tokenizer.json, tokenizer_config.json, modules.json, ...,
embeddings.json}`. The weights are random, and named as a model without a head names them. embeddings.json has `texts`, their `ids`, their
`vectors`, and the vectors with each prompt of the checkpoint by its name (`prompted`).

The tokenizers are byte-level, trained on `models/lexicon-qwen3/perplexity.txt`.
"""

import json
import pathlib
import sys
import zlib

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel

from random_encoders import REPOSITORY, TEXTS, VOCABULARY, prose

ROOT = REPOSITORY / "models" / "random-embedders"

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "max_window_layers": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": True,
}

GEMMA3 = {
    "architectures": ["Gemma3TextModel"],
    "model_type": "gemma3_text",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "use_bidirectional_attention": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "use_cache": True,
}

RECIPES = {
    # Qwen3-Embedding's files: the end of a text is its last token, which is pooled.
    "qwen3-embedding": {
        "config": QWEN3,
        "special": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "template": "$A <|endoftext|>",
        "pooling": "lasttoken",
        "dense": [],
        "prompts": {"query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
                    "document": ""},
    },
    # EmbeddingGemma's files: all rows see each other, their mean passes two dense layers.
    "embedding-gemma": {
        "config": GEMMA3,
        "special": ["<pad>", "<eos>", "<bos>", "<unk>"],
        "template": "<bos> $A <eos>",
        "pooling": "mean",
        "dense": [(32, 64), (64, 32)],
        "prompts": {"query": "task: search result | query: ", "document": "title: none | text: "},
    },
}


def write(path: pathlib.Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_tokenizer(folder: pathlib.Path, recipe: dict) -> None:
    special = recipe["special"]
    # Training breaks ties by chance: a tokenizer that is there stays.
    if not (folder / "tokenizer.json").exists():
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        made.train_from_iterator(prose(), trainer)
        ids = [(token, made.token_to_id(token)) for token in special if token in recipe["template"]]
        template = processors.TemplateProcessing(single=recipe["template"], pair=None, special_tokens=ids)
        made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        made.save(str(folder / "tokenizer.json"))
    keys = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, "pad_token": special[0],
            "eos_token": special[1] if "<eos>" in special else special[0], "padding_side": "left"}
    if "<bos>" in special:
        keys |= {"bos_token": "<bos>", "unk_token": "<unk>", "padding_side": "right"}
    write(folder / "tokenizer_config.json", keys)


def write_weights(folder: pathlib.Path, name: str, config: dict) -> None:
    write(folder / "config.json", config)
    torch.manual_seed(zlib.crc32(name.encode()))
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.dim() > 1 else 0.1))
            if "norm" in key.lower() and config["model_type"] != "gemma3_text":
                value.add_(1.0)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_sentence(folder: pathlib.Path, recipe: dict) -> None:
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    write(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": recipe["pooling"] == "mean",
        "pooling_mode_max_tokens": False, "pooling_mode_lasttoken": recipe["pooling"] == "lasttoken", "include_prompt": True})
    random = torch.Generator().manual_seed(11)
    for inputs, outputs in recipe["dense"]:
        path = f"{len(modules)}_Dense"
        write(folder / path / "config.json", {"in_features": inputs, "out_features": outputs, "bias": False,
                                              "activation_function": "torch.nn.modules.linear.Identity"})
        save_file({"linear.weight": torch.randn(outputs, inputs, generator=random) * 0.3}, folder / path / "model.safetensors")
        modules.append(("Dense", path))
    modules.append(("Normalize", f"{len(modules)}_Normalize"))
    write(folder / "modules.json", [{"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
                                    for idx, (kind, path) in enumerate(modules)])
    write(folder / "config_sentence_transformers.json", {"prompts": recipe["prompts"], "default_prompt_name": None,
                                                         "similarity_fn_name": "cosine"})


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        recipe = RECIPES[name]
        folder = ROOT / name
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(folder, recipe)
        write_weights(folder, name, recipe["config"])
        write_sentence(folder, recipe)
        model = SentenceTransformer(str(folder), device="cpu",
                                    model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"})
        encode = lambda **options: model.encode(TEXTS, convert_to_numpy=True, batch_size=1, **options).tolist()
        write(folder / "embeddings.json", {
            "texts": TEXTS, "ids": [model.tokenizer(text)["input_ids"] for text in TEXTS], "vectors": encode(),
            "prompted": {prompt: encode(prompt_name=prompt) for prompt in recipe["prompts"]}})
        print(name, sum(path.stat().st_size for path in folder.rglob("*")) // 1024, "KiB")


if __name__ == "__main__":
    main()
