#!/usr/bin/env python3
"""Text encoders as llama.cpp's own converter writes them, with tokens and vectors by llama.cpp.

    python tools/golden/models/gguf_encoders.py LLAMA_CPP LLAMA_SERVER [NAME ...]

writes `models/gguf-encoders/NAME.gguf` (float32) by convert_hf_to_gguf.py of the llama.cpp sources in LLAMA_CPP, and
`models/gguf-encoders/NAME.json` by the program LLAMA_SERVER of the same sources, or by the package of that name if LLAMA_SERVER is
`xllamacpp`:

    texts     what is embedded
    ids       the tokens of each text, those around it included
    vectors   the vector of each text, of length 1, pooled as the file says; not for files with a head
    scores    for files with a head: the logit of each pair (texts[0], another text)

`bert`, `jina-bert-v2` and `nomic-bert` are the folders of `models/random-encoders`, and `nomic-bert-moe` has the tokenizer of the latter and random weights. The others have random weights and are made here in
`models/gguf-encoders/NAME/`, unless they are there, since llama.cpp takes only tokenizers of the published kinds: `xlm-roberta` and
`xlm-roberta-judge` have a SentencePiece vocabulary with a small table of characters of its own, `roberta` has byte-level BPE.

Needs `torch`, `transformers`, `tokenizers`, `sentencepiece` and what convert_hf_to_gguf.py imports.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch
from safetensors.torch import load_file, save_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
FOLDERS = REPOSITORY / "models" / "random-encoders"
OUT = REPOSITORY / "models" / "gguf-encoders"
PORT = 18427

TEXTS = [
    "Brasa runs language models on the machine you have.",
    "A step is the single unit of work.",
    "Ember",
    "  Two  spaces,\ttabs\nand lines \u00a0 here  ",
    "Na\u00efve caf\u00e9s, \ufb01nal \uff21\uff22\uff23 \u2026 \u2460 \u6f22\u5b57 \U0001f642 x\u0301",
    "<s> is text, and so are [CLS] and </s>.",
    "What is computed once is not computed again, however long the text that asks for it may be.",
]

# Characters that SentencePiece replaces, in hexadecimal: a full table would be larger than the weights.
RULES = {
    "9": "20", "A": "20", "D": "20", "A0": "20", "3000": "20", "AD": "", "FB01": "66 69", "2026": "2E 2E 2E", "2460": "31",
    "65 301": "E9", "FF21": "41", "FF22": "42", "FF23": "43", "FF21 FF22": "41 42",
}

# Other sizes of random models, for whoever imports this file.
WIDE = {}

# The files' own name of the cuts before merging, which the script knows of published tokenizers alone.
PRE = {"roberta": "roberta-bpe", **dict.fromkeys(("modern-bert", "modern-bert-judge", "modern-bert-first-judge"), "modern-bert")}


def prose() -> list:
    return (REPOSITORY / "models" / "lexicon-qwen3" / "perplexity.txt").read_text().splitlines()[:400]


def sentencepiece_model(folder: pathlib.Path) -> int:
    """SentencePiece's own file, which llama.cpp's script reads, and the `tokenizer.json` of the same."""
    import sentencepiece
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "text.txt").write_text("\n".join(prose()))
        (scratch / "rules.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in RULES.items()))
        sentencepiece.SentencePieceTrainer.train(
            input=str(scratch / "text.txt"), model_prefix=str(scratch / "made"), vocab_size=384, model_type="unigram",
            normalization_rule_tsv=str(scratch / "rules.tsv"), minloglevel=2, num_threads=1)
        shutil.copy(scratch / "made.model", folder / "sentencepiece.bpe.model")
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "sentencepiece.bpe.model").read_bytes())
    # As in XLM-R: four special tokens in front, and the mask behind.
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = [(token, 0.0) for token in special[:4]] + [(piece.piece, piece.score) for piece in model.pieces[3:]]
    vocabulary.append(("<mask>", 0.0))
    made = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    made.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    ids = [("<s>", 0), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids)
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special))
    names |= {"cls_token": "<s>", "sep_token": "</s>", "tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=1) + "\n")
    return len(vocabulary)


def byte_level_bpe(folder: pathlib.Path) -> int:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(prose(), trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special))
    names |= {"cls_token": "<s>", "sep_token": "</s>", "tokenizer_class": "RobertaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=1) + "\n")
    return made.get_vocab_size()


def random_model(folder: pathlib.Path, architecture: str, vocab_size: int, **keys) -> None:
    import transformers

    model_class = getattr(transformers, architecture)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {} if "Modern" in architecture else {"type_vocab_size": 1}
    config = model_class.config_class(
        **{"vocab_size": vocab_size, "max_position_embeddings": 130, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
           **own, **sizes, **keys, **WIDE})
    torch.manual_seed(7)
    model = model_class(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape) * (0.3 if tensor.dim() > 1 else 0.1)
            tensor.copy_(noise + (1.0 if "LayerNorm.weight" in name or "norm.weight" in name else 0.0))
    model.save_pretrained(folder)


def pooling(folder: pathlib.Path, mode: str) -> None:
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": 32, "pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean",
        "pooling_mode_max_tokens": False, "pooling_mode_lasttoken": False}))


def bert(folder: pathlib.Path) -> None:
    shutil.copytree(FOLDERS / "bert", folder, dirs_exist_ok=True)
    pooling(folder, "cls")


def jina_bert_v2(folder: pathlib.Path) -> None:
    shutil.copytree(FOLDERS / "jina-v2", folder, dirs_exist_ok=True)
    pooling(folder, "mean")
    # The script takes only tokenizers of the published kinds, by name.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "BertTokenizer"}))


def nomic_bert(folder: pathlib.Path) -> None:
    shutil.copytree(FOLDERS / "nomic-bert", folder, dirs_exist_ok=True)
    pooling(folder, "mean")
    # The script reads the spelling of the published model.
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "n_positions": 2048, "max_trained_positions": 2048, "activation_function": "swiglu", "causal": False,
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_emb_base": 1000.0}
    (folder / "config.json").write_text(json.dumps(config))


def nomic_bert_moe(folder: pathlib.Path) -> None:
    """The published model's spelling, which transformers does not read. Every second layer has experts."""
    width, inner, layers, experts = 32, 48, 4, 4
    shutil.copytree(FOLDERS / "nomic-bert", folder, dirs_exist_ok=True)
    pooling(folder, "mean")
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": width, "n_inner": inner, "n_layer": layers,
        "n_head": 4, "n_positions": 2048, "max_trained_positions": 2048, "vocab_size": vocabulary, "type_vocab_size": 2,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu", "causal": False, "qkv_proj_bias": True,
        "mlp_fc1_bias": True, "mlp_fc2_bias": True, "prenorm": False, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_emb_base": 10000.0,
        "num_experts": experts, "moe_top_k": 2, "moe_every_n_layers": 2,
        # transformers' own spelling, which the script's loader adds the defaults of.
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 4,
        "layer_norm_eps": 1e-5, "max_position_embeddings": 512, "head_dim": width // 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}))
    torch.manual_seed(11)
    tensors = {}

    def put(name, *shape):
        noise = torch.randn(shape) * (0.3 if len(shape) > 1 else 0.1)
        tensors[name] = noise + (1.0 if "norm" in name and name.endswith("weight") or name == "emb_ln.weight" else 0.0)

    put("embeddings.word_embeddings.weight", vocabulary, width)
    put("embeddings.token_type_embeddings.weight", 2, width)
    norms = ["emb_ln"]
    for layer in range(layers):
        at = f"encoder.layers.{layer}."
        linear = {"attn.Wqkv": (3 * width, width), "attn.out_proj": (width, width)}
        if layer % 2 == 0:
            linear |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
        else:
            put(f"{at}mlp.router.layer.weight", experts, width)
            put(f"{at}mlp.experts.mlp.w1", experts * inner, width)
            put(f"{at}mlp.experts.mlp.w2", experts * inner, width)
        for name, shape in linear.items():
            put(f"{at}{name}.weight", *shape)
            put(f"{at}{name}.bias", shape[0])
        norms += [f"{at}norm1", f"{at}norm2"]
    for name in norms:
        put(f"{name}.weight", width)
        put(f"{name}.bias", width)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def xlm_roberta(folder: pathlib.Path) -> None:
    random_model(folder, "XLMRobertaModel", sentencepiece_model(folder))
    pooling(folder, "mean")


def xlm_roberta_judge(folder: pathlib.Path) -> None:
    random_model(folder, "XLMRobertaForSequenceClassification", sentencepiece_model(folder), num_labels=1)


def roberta(folder: pathlib.Path) -> None:
    random_model(folder, "RobertaModel", byte_level_bpe(folder))
    pooling(folder, "mean")


def modern_bert(folder: pathlib.Path) -> None:
    random_model(folder, "ModernBertModel", byte_level_bpe(folder), num_hidden_layers=4, global_attn_every_n_layers=3, local_attention=16,
                 cls_token_id=0, sep_token_id=2, layer_norm_eps=1e-5)
    pooling(folder, "cls")


def modern_bert_judge(folder: pathlib.Path, pooling: str = "mean") -> None:
    random_model(folder, "ModernBertForSequenceClassification", byte_level_bpe(folder), num_labels=1, classifier_pooling=pooling,
                 global_attn_every_n_layers=2, local_attention=16, cls_token_id=0, sep_token_id=2, layer_norm_eps=1e-5)


def modern_bert_first_judge(folder: pathlib.Path) -> None:
    modern_bert_judge(folder, "cls")


RECIPES = {"bert": bert, "jina-bert-v2": jina_bert_v2, "modern-bert": modern_bert, "modern-bert-judge": modern_bert_judge, "modern-bert-first-judge": modern_bert_first_judge,
           "nomic-bert": nomic_bert, "nomic-bert-moe": nomic_bert_moe, "roberta": roberta,
           "xlm-roberta": xlm_roberta, "xlm-roberta-judge": xlm_roberta_judge}

CONVERT = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion import base
pre = sys.argv[2]
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ask(address: str, path: str, **body):
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def asked(address: str, judges: bool) -> dict:
    """The answers of the server at `address`."""
    ids = [ask(address, "/tokenize", content=text, add_special=True, parse_special=False)["tokens"] for text in TEXTS]
    made = {"texts": TEXTS, "ids": ids}
    if judges:
        results = ask(address, "/v1/rerank", query=TEXTS[0], documents=TEXTS[1:])["results"]
        made["scores"] = [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]
    else:
        vectors = (ask(address, "/embedding", content=list(text), embd_normalize=2)[0]["embedding"][0] for text in ids)
        made["vectors"] = list(vectors)
    return made


def answers_of_package(file: pathlib.Path, judges: bool) -> dict:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.embedding = True
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_parallel, params.cpuparams.n_threads, params.warmup = 1, 2, False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if judges:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    server = xllamacpp.Server(params)
    return asked(server.listening_address, judges)


def answers(server: str, file: pathlib.Path) -> dict:
    """What llama.cpp makes of the file."""
    judges = file.stem.endswith("-judge")
    if server == "xllamacpp":
        return answers_of_package(file, judges)
    flags = ["--reranking"] if judges else ["--embedding"]
    process = subprocess.Popen(
        [server, "-m", str(file), *flags, "--port", str(PORT), "-fa", "off", "-c", "512", "-b", "512", "-ub", "512", "-t", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
                break
            except OSError:
                time.sleep(0.2)
        return asked(f"http://127.0.0.1:{PORT}", judges)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    sources, server, *names = sys.argv[1:]
    for name in names or RECIPES:
        folder = pathlib.Path(tempfile.mkdtemp()) / name
        if (OUT / name).exists():
            shutil.copytree(OUT / name, folder)
        else:
            folder.mkdir()
            RECIPES[name](folder)
            if not name.startswith(("bert", "jina", "nomic-bert")):
                shutil.copytree(folder, OUT / name)
        file = OUT / f"{name}.gguf"
        script = [sys.executable, "-c", CONVERT, sources, PRE.get(name, "jina-v2-de"), f"{sources}/convert_hf_to_gguf.py"]
        subprocess.run([*script, str(folder), "--outfile", str(file), "--outtype", "f32"], check=True)
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in answers(server, file).items())
        (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
