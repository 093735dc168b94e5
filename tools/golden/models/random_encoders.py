#!/usr/bin/env python3
"""Tiny random text encoders of every supported family, with hidden states by transformers.

    python tools/golden/models/random_encoders.py [NAME ...]

writes `models/random-encoders/NAME/{config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
golden.safetensors}`, and for some `modules.json` and what it names, as sentence-transformers writes them, with
`embeddings.json`. The weights are random. As in `random_families.py`, a recipe lists changes to its configuration
(`matters`), each of which must move the hidden states by more than 1 % in relative L2. The golden values come from the
files as they lie on disk.

golden.safetensors (f32 unless said otherwise; D is the width):

    short.ids     i32 [12]     a text
    short.types   i32 [12]     the part of each token; all 0 if the model has one part
    short.states  [12, D]      hidden states behind the last norm
    short.logits  [L]          logits of the head, if there is one
    long.*                     the same for 80 tokens

embeddings.json: `texts`, their `ids`, and `vectors` by sentence-transformers; `query`, the vectors with the prompt of that name,
if there is one.

pairs.json, for models with a head: a `query`, `documents`, and of each pair the `ids`, the `types` and the `score` by sentence-transformers'
CrossEncoder; one document is too long and is cut.

The tokenizers are trained on `models/lexicon-qwen3/perplexity.txt`: WordPiece for BERT, Nomic BERT and Jina v2, Unigram for the others.

Jina Reranker v2 is XLM-R with other names of tensors: transformers computes it under its own names.
"""

import copy
import json
import pathlib
import shutil
import sys
import tempfile
import zlib
from dataclasses import dataclass, field

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import jina_bert

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
ROOT = REPOSITORY / "models" / "random-encoders"
SHORT, LONG = 12, 80
VOCABULARY = 384

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass
class Recipe:
    """A configuration, and the changes to it that must change the answer."""

    config: dict
    matters: list = field(default_factory=list)
    tokenizer: str = "wordpiece"
    sentence: dict = field(default_factory=dict)


ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def base(architecture: str, model_type: str, **keys) -> dict:
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 96,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    config.update(keys)
    return config


def bert(architecture="BertModel", **keys) -> dict:
    return base(architecture, "bert", position_embedding_type="absolute", use_cache=True, **keys)


def roberta(architecture="XLMRobertaModel", model_type="xlm-roberta", **keys) -> dict:
    own = {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
           "max_position_embeddings": 98, "layer_norm_eps": 1e-05, "position_embedding_type": "absolute"}
    return base(architecture, model_type, **{**own, **keys})


def nomic(**keys) -> dict:
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    return base("NomicBertModel", "nomic_bert", **{"hidden_act": "silu", "rope_parameters": rope, **keys})


def gte(architecture="GteModel", **keys) -> dict:
    rope = {"rope_type": "default", "rope_theta": 20000.0}
    own = {"type_vocab_size": 1, "pad_token_id": 1, "rope_parameters": rope}
    return base(architecture, "gte", **{**own, **keys})


def jina_v3(**keys) -> dict:
    own = {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05,
           "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
    return base("JinaEmbeddingsV3Model", "jina_embeddings_v3", **{**own, **keys})


def jina_reranker() -> dict:
    """XLM-R under the class of Jina's own code, which stands in the place of the model type."""
    config = roberta("XLMRobertaForSequenceClassification", num_labels=1, emb_pooler=None, classifier_dropout=None,
                     use_cache=False, use_flash_attn=True, output_past=True, **ONE_LABEL)
    del config["model_type"]
    return {**config, "auto_map": {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig"}}


def jina_v2(**keys) -> dict:
    own = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean", "model_max_length": 96}
    return base("JinaBertForMaskedLM", "bert", **{**own, **keys})


def modernbert(architecture="ModernBertModel", **keys) -> dict:
    own = {
        "architectures": [architecture],
        "model_type": "modernbert",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 96,
        "hidden_activation": "gelu",
        "norm_eps": 1e-05,
        "norm_bias": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "embedding_dropout": 0.0,
        "global_attn_every_n_layers": 3,
        "local_attention": 16,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "cls",
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    return {**own, **keys}


MODERN = [{"num_attention_heads": 2}, {"norm_eps": 0.1}, {"local_attention": 8}, {"global_attn_every_n_layers": 2},
          {"global_rope_theta": 2.0}, {"local_rope_theta": 2.0}]

COMMON = [{"num_attention_heads": 2}, {"layer_norm_eps": 0.1}]

QUERY = {"query": "represent this for search: ", "document": ""}

RECIPES = {
    "bert": Recipe(bert(), [*COMMON, {"hidden_act": "silu"}],
                   sentence={"pooling": "cls", "normalize": True, "prompts": QUERY, "max_seq_length": 24}),
    "bert-judge": Recipe(bert("BertForSequenceClassification", hidden_act="gelu_new", **ONE_LABEL), COMMON),
    "gte": Recipe(gte(), [*COMMON, {"rope_parameters": {"rope_type": "default", "rope_theta": 2.0}}], "unigram",
                  {"pooling": "lasttoken", "legacy": True, "normalize": False}),
    "gte-judge": Recipe(gte("GteForSequenceClassification", type_vocab_size=0, **ONE_LABEL), COMMON, "unigram"),
    "jina-v2": Recipe(jina_v2(hidden_size=48, num_attention_heads=6), COMMON, sentence={"pooling": "mean", "normalize": True}),
    "jina-v2-code": Recipe(jina_v2(), COMMON, sentence={"pooling": "mean", "normalize": True}),
    "jina-v2-judge": Recipe({**jina_v2(**ONE_LABEL), "architectures": ["JinaBertForSequenceClassification"]}, COMMON),
    "jina-v3": Recipe(jina_v3(), [*COMMON, {"rope_parameters": {"rope_type": "default", "rope_theta": 2.0}}], "unigram",
                      {"pooling": "mean", "normalize": True}),
    "modernbert": Recipe(modernbert(), MODERN, sentence={"pooling": "cls", "normalize": True}),
    "modernbert-judge": Recipe(
        modernbert("ModernBertForSequenceClassification", norm_bias=True, attention_bias=True, mlp_bias=True,
                   classifier_bias=True, hidden_activation="gelu_pytorch_tanh", **ONE_LABEL), MODERN),
    "modernbert-mean-judge": Recipe(
        modernbert("ModernBertForSequenceClassification", classifier_pooling="mean", **ONE_LABEL), MODERN),
    "nomic-bert": Recipe(nomic(), [*COMMON, {"rope_parameters": {"rope_type": "default", "rope_theta": 2.0}}],
                         sentence={"pooling": "mean", "legacy": True, "normalize": True, "prompts": QUERY,
                                   "default_prompt_name": "query"}),
    "roberta": Recipe(roberta("RobertaModel", "roberta", matryoshka_dimensions=[8, 16, 24]),
                      [*COMMON, {"pad_token_id": 3}], "unigram",
                      {"pooling": "mean", "dense": [(32, 40, True, "activation.Tanh"), (40, 24, False, "linear.Identity")],
                       "normalize": True}),
    "jina-reranker-v2": Recipe(jina_reranker(), COMMON, "unigram"),
    "xlm-roberta-judge": Recipe(
        roberta("XLMRobertaForSequenceClassification", **ONE_LABEL,
                sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}),
        COMMON, "unigram"),
}


def prose() -> list:
    """The tokenizers' training text."""
    return (REPOSITORY / "models" / "lexicon-qwen3" / "perplexity.txt").read_text().splitlines()[:400]


def tokenizer(kind: str) -> tokenizers.Tokenizer:
    if kind == "wordpiece":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        made.train_from_iterator(prose(), trainer)
        made.decoder = decoders.WordPiece()
        template, pair, begin, end = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]"
    else:
        made = tokenizers.Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer = trainers.UnigramTrainer(vocab_size=VOCABULARY, special_tokens=special, unk_token="<unk>",
                                          show_progress=False)
        made.train_from_iterator(prose(), trainer)
        made.decoder = decoders.Metaspace()
        template, pair, begin, end = "<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>"
    ids = [(token, made.token_to_id(token)) for token in (begin, end)]
    made.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=ids)
    return made


def write_tokenizer(folder: pathlib.Path, kind: str, types: bool) -> None:
    # Training breaks ties by chance: a tokenizer that is there stays.
    if not (folder / "tokenizer.json").exists():
        tokenizer(kind).save(str(folder / "tokenizer.json"))
    names = {"wordpiece": ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"),
             "unigram": ("<s>", "</s>", "<unk>", "<pad>", "<mask>")}[kind]
    keys = dict(zip(("cls_token", "sep_token", "unk_token", "pad_token", "mask_token"), names))
    keys |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 96}
    if kind == "wordpiece" and types:
        keys["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(keys, indent=1) + "\n")


TEXTS = ["Brasa runs language models on the machine you have.", "A step is the single unit of work.", "Ember",
         "What is computed once is not computed again, however long the text that asks for it may be."]


def write_sentence(folder: pathlib.Path, sentence: dict) -> None:
    """The files of sentence-transformers."""

    config = json.loads((folder / "config.json").read_text())
    width = config["hidden_size"]

    def write(path: str, value) -> None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(value, indent=1) + "\n")

    modules = [("Transformer", "")]
    pooling = {"word_embedding_dimension": width, "pooling_mode": sentence["pooling"]}
    if sentence.get("legacy"):
        switches = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken", "max": "max_tokens"}
        pooling = {"word_embedding_dimension": width}
        pooling |= {f"pooling_mode_{switch}": mode == sentence["pooling"] for mode, switch in switches.items()}
    write("1_Pooling/config.json", pooling)
    modules.append(("Pooling", "1_Pooling"))
    random = torch.Generator().manual_seed(11)
    for inputs, outputs, bias, activation in sentence.get("dense", []):
        path = f"{len(modules)}_Dense"
        write(f"{path}/config.json", {"in_features": inputs, "out_features": outputs, "bias": bias,
                                      "activation_function": f"torch.nn.modules.{activation}"})
        tensors = {"linear.weight": torch.randn(outputs, inputs, generator=random) * 0.3}
        if bias:
            tensors["linear.bias"] = torch.randn(outputs, generator=random) * 0.3
        save_file(tensors, folder / path / "model.safetensors")
        modules.append(("Dense", path))
    if sentence["normalize"]:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    write("modules.json", [{"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
                           for idx, (kind, path) in enumerate(modules)])
    if "max_seq_length" in sentence:
        write("sentence_bert_config.json", {"max_seq_length": sentence["max_seq_length"], "do_lower_case": False})
    if "prompts" in sentence:
        write("config_sentence_transformers.json", {"prompts": sentence["prompts"], "similarity_fn_name": "cosine",
                                                    "default_prompt_name": sentence.get("default_prompt_name")})
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    if is_jina_v2(config):
        model[0].model = loaded(folder, config)
    encode = lambda **options: model.encode(TEXTS, convert_to_numpy=True, **options).tolist()
    made = {"texts": TEXTS, "vectors": encode(), "ids": [model.tokenizer(text)["input_ids"] for text in TEXTS]}
    if "prompts" in sentence:
        made["query"] = encode(prompt_name="query")
    write("embeddings.json", made)


def write_pairs(folder: pathlib.Path) -> None:
    """What a cross-encoder makes of pairs."""
    query, documents = TEXTS[2], [*TEXTS, " ".join(TEXTS * 4)]
    config = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        if is_jina_xlm_r(config):
            plain(folder, config, pathlib.Path(scratch))
        path = scratch if is_jina_xlm_r(config) else str(folder)
        model = CrossEncoder(path, device="cpu", model_kwargs={"dtype": torch.float32})
    if is_jina_v2(config):
        model[0].model = loaded(folder, config)
    pairs = model.tokenizer([[query, document] for document in documents], truncation="longest_first", max_length=96)
    zeros = [[0] * len(ids) for ids in pairs["input_ids"]]
    made = {"query": query, "documents": documents, "ids": pairs["input_ids"],
            "types": pairs.get("token_type_ids", zeros), "scores": model.predict([(query, document) for document in documents]).tolist()}
    (folder / "pairs.json").write_text(json.dumps(made, indent=1) + "\n")


def judges(config: dict) -> bool:
    return config["architectures"][0].endswith("ForSequenceClassification")


def is_jina_v2(config: dict) -> bool:
    return config["architectures"][0].startswith("JinaBert")


def jina_config(folder: pathlib.Path, config: dict) -> dict:
    """The configuration with what only the tensors tell."""
    return {**config, "_qk_norm": folder.name.endswith("code")}


def is_jina_xlm_r(config: dict) -> bool:
    return "auto_map" in config


# Parts of a layer's tensors in transformers, and in Jina's code for XLM-R.
SPELLED = [(".encoder.layer.", ".encoder.layers."), (".attention.output.dense.", ".mixer.out_proj."),
           (".attention.output.LayerNorm.", ".norm1."), (".intermediate.dense.", ".mlp.fc1."), (".output.dense.", ".mlp.fc2."),
           (".output.LayerNorm.", ".norm2."), (".embeddings.LayerNorm.", ".emb_ln.")]


def to_jina_xlm_r(tensors: dict) -> dict:
    """Tensors of transformers' XLM-R in the spelling of Jina's code, where queries, keys and values are one matrix."""
    made = {}
    for key, value in tensors.items():
        if ".attention.self.query." in key:
            parts = [tensors[key.replace("query", part)] for part in ("query", "key", "value")]
            key, value = key.replace("attention.self.query", "mixer.Wqkv"), torch.cat(parts)
        elif ".attention.self." in key:
            continue
        for theirs, jinas in SPELLED:
            key = key.replace(theirs, jinas)
        made[key] = value
    return made


def of_jina_xlm_r(tensors: dict) -> dict:
    """The way back."""
    made = {}
    for key, value in tensors.items():
        for theirs, jinas in SPELLED:
            key = key.replace(jinas, theirs)
        if ".mixer.Wqkv." in key:
            made |= {key.replace("mixer.Wqkv", f"attention.self.{part}"): x.contiguous()
                     for part, x in zip(("query", "key", "value"), value.chunk(3))}
        else:
            made[key] = value
    return made


def known(config: dict) -> dict:
    """The configuration of a model that may have Jina's spelling of XLM-R, as transformers knows it."""
    kept = {key: value for key, value in config.items() if key not in ("auto_map", "num_labels")}
    return {"model_type": "xlm-roberta", **kept}


def plain(folder: pathlib.Path, config: dict, to: pathlib.Path) -> None:
    """Writes the folder of a model in Jina's spelling of XLM-R as transformers knows it."""
    (to / "config.json").write_text(json.dumps(known(config)))
    save_file(of_jina_xlm_r(load_file(folder / "model.safetensors")), to / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, to)


def model_class(config: dict):
    return AutoModelForSequenceClassification if judges(config) else AutoModel


def write_weights(folder: pathlib.Path, name: str, config: dict) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(zlib.crc32(name.encode()))
    if is_jina_v2(config):
        model = jina_bert.made(jina_config(folder, config))
        parameters = model.named().items()
    else:
        model = model_class(config).from_config(AutoConfig.for_model(**known(config)))
        parameters = model.named_parameters()
    with torch.no_grad():
        for key, value in parameters:
            scale = 0.3 if value.dim() > 1 else 0.1
            value.copy_(torch.randn_like(value) * scale)
            if "norm" in key.lower() and key.endswith("weight"):
                value.add_(1.0)
    if is_jina_v2(config):
        tensors = dict(parameters)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            model.save_pretrained(scratch)
            tensors = load_file(pathlib.Path(scratch) / "model.safetensors")
    if is_jina_xlm_r(config):
        tensors = to_jina_xlm_r(tensors)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def texts(config: dict) -> dict:
    random = torch.Generator().manual_seed(7)
    made = {}
    for label, length in (("short", SHORT), ("long", LONG)):
        ids = torch.randint(5, config["vocab_size"], (length,), generator=random)
        types = torch.zeros(length, dtype=torch.long)
        if config.get("type_vocab_size", 0) > 1:
            types[length // 2:] = 1
        made[label] = (ids, types)
    return made


def loaded(folder: pathlib.Path, config: dict):
    """The checkpoint in `folder` under `config`, in float32."""
    if is_jina_v2(config):
        return jina_bert.load(jina_config(folder, config), load_file(folder / "model.safetensors"))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        if is_jina_xlm_r(config):
            plain(folder, config, scratch)
        else:
            shutil.copy(folder / "model.safetensors", scratch)
            (scratch / "config.json").write_text(json.dumps(config))
        model, loading = model_class(config).from_pretrained(
            scratch, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model.eval()
    wrong = [key for kind in ("missing_keys", "mismatched_keys") for key in loading[kind] if "pooler" not in str(key)]
    assert not wrong, wrong
    return model


def compute(folder: pathlib.Path, config: dict) -> dict:
    """Hidden states and logits of the checkpoint in `folder`, under `config`."""
    model = loaded(folder, config)
    found = {}
    for label, (ids, types) in texts(config).items():
        types_given = {"token_type_ids": types[None]} if config.get("type_vocab_size", 0) > 0 else {}
        with torch.no_grad():
            out = model(input_ids=ids[None], output_hidden_states=True, **types_given)
        found[f"{label}.states"] = out.hidden_states[-1][0]
        if judges(config):
            found[f"{label}.logits"] = out.logits[0]
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        recipe = RECIPES[name]
        folder = ROOT / name
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(folder, recipe.tokenizer, recipe.config.get("type_vocab_size", 0) > 0)
        write_weights(folder, name, recipe.config)
        golden = compute(folder, recipe.config)
        for change in recipe.matters:
            changed = compute(folder, {**copy.deepcopy(recipe.config), **change})
            moved = difference(changed["long.states"], golden["long.states"])
            assert moved > 0.01, f"{name}: {change} moves the states by {moved:.4f}"
        for label, (ids, types) in texts(recipe.config).items():
            golden[f"{label}.ids"] = ids.to(torch.int32)
            golden[f"{label}.types"] = types.to(torch.int32)
        save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors",
                  metadata={"transformers": transformers.__version__})
        if recipe.sentence:
            write_sentence(folder, recipe.sentence)
        if judges(recipe.config):
            write_pairs(folder)
        print(name, sum(path.stat().st_size for path in folder.rglob("*")) // 1024, "KiB")


if __name__ == "__main__":
    main()
