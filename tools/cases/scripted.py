"""Small models that say one text each, whatever they are asked, and the files around them. Standard library only.

Every token of a scripted model leads to the next one: the rows of its embedding are those of the identity, its layer adds nothing, and its
head has one number a row.
"""

import json
import os
import struct

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def letters():
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def safetensors(path, tensors):
    """Writes tensors of f32: a shape, and the numbers that are not 0 by their place."""
    head, data, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (shape, numbers) in tensors.items():
        count = 1
        for length in shape:
            count *= length
        values = bytearray(4 * count)
        for place, number in numbers.items():
            struct.pack_into("<f", values, 4 * place, number)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + len(values)]}
        data.append(values)
        end += len(values)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def layer(hidden, heads, width, inner):
    """A layer that adds nothing: all its matrices are 0."""
    ones = lambda length: ([length], dict.fromkeys(range(length), 1.0))
    tensors = {"input_layernorm": ones(hidden), "post_attention_layernorm": ones(hidden)}
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors[f"self_attn.{name}"] = ([heads * width, hidden], {})
    tensors |= {
        "self_attn.o_proj": ([hidden, heads * width], {}), "mlp.gate_proj": ([inner, hidden], {}), "mlp.up_proj": ([inner, hidden], {}),
        "mlp.down_proj": ([hidden, inner], {}),
    }
    return {f"model.layers.0.{name}.weight": tensor for name, tensor in tensors.items()}, ones


def dump(folder, name, value):
    with open(f"{folder}/{name}", "w") as file:
        json.dump(value, file)


def config(architecture, model_type, vocab_size, hidden, **more):
    return {
        "architectures": [architecture], "model_type": model_type, "vocab_size": vocab_size, "hidden_size": hidden, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", **more,
    }


def added(names, special=True):
    return [{"id": at, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special} for name, at in names.items()]


def scripted(folder, template, said, control=(), plain=()):
    """Writes a Qwen3 that says `said` behind a line break. `control` and `plain` are further added tokens, special or not."""
    os.makedirs(folder)
    vocabulary = {letter: byte for byte, letter in enumerate(letters())}
    vocabulary["".join(letters()[byte] for byte in said.encode())] = 256
    at = {name: 257 + place for place, name in enumerate([*CONTROL, *control, *plain])}
    end, count = at["<|im_end|>"], 257 + len(at)
    hidden = -(-count // 64) * 64
    tensors, ones = layer(hidden, 2, 32, 64)
    tensors |= {
        "model.embed_tokens.weight": ([count, hidden], {token * hidden + token: 1.0 for token in range(count)}),
        "lm_head.weight": ([count, hidden], {256 * hidden + ord("\n"): 4.0, end * hidden + 256: 4.0}),
        "model.norm.weight": ones(hidden), "model.layers.0.self_attn.q_norm.weight": ones(32), "model.layers.0.self_attn.k_norm.weight": ones(32),
    }
    safetensors(f"{folder}/model.safetensors", tensors)
    dump(folder, "config.json", config("Qwen3ForCausalLM", "qwen3", count, hidden, attention_bias=False, eos_token_id=end, bos_token_id=None))
    dump(folder, "generation_config.json", {"do_sample": False, "eos_token_id": end})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    special = {name: token for name, token in at.items() if name not in plain}
    dump(folder, "tokenizer.json", {
        "version": "1.0", "added_tokens": added(special) + added({name: at[name] for name in plain}, special=False), "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
    dump(folder, "tokenizer_config.json", {
        "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": template,
        "clean_up_tokenization_spaces": False, "model_max_length": 2048, "tokenizer_class": "Qwen2Tokenizer",
    })


def metaspace(folder):
    """Writes a Llama of SentencePiece's kind, whose pre-tokenizer puts a space in front of the first text alone."""
    os.makedirs(folder)
    merges = [("▁", "▁"), ("▁", "t"), ("h", "e"), ("▁t", "he")]
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", *"ethaoinsr", *["".join(pair) for pair in merges]]
    count, hidden = len(pieces), 64
    tensors, ones = layer(hidden, 2, 32, 64)
    tensors |= {"model.embed_tokens.weight": ([count, hidden], {}), "lm_head.weight": ([count, hidden], {}), "model.norm.weight": ones(hidden)}
    safetensors(f"{folder}/model.safetensors", tensors)
    dump(folder, "config.json", config("LlamaForCausalLM", "llama", count, hidden, bos_token_id=1, eos_token_id=2))
    begin = {"id": "<s>", "type_id": 0}
    dump(folder, "tokenizer.json", {
        "version": "1.0", "added_tokens": added({"<unk>": 0, "<s>": 1, "</s>": 2}), "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"SpecialToken": begin}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": begin}, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": {piece: at for at, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges],
        },
    })
    dump(folder, "tokenizer_config.json", {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False,
        "tokenizer_class": "LlamaTokenizer", "model_max_length": 2048, "clean_up_tokenization_spaces": False,
    })
