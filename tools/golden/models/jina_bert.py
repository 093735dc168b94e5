"""Jina Embeddings v2 (arXiv:2310.19923) in the terms of transformers' BERT, which has no class for it.

The model is BERT without position embeddings, with a mask that lowers scores by distance (ALiBi in its symmetric form), and with a gated
network. The models whose queries and keys are normed ("qk-post-norm", as jina-embeddings-v2-base-code) also add the residual stream a second
time behind attention and norm again. All of it is put into the modules of `transformers.BertModel`; tensors go by the names of
Jina's own code on the hub.
"""

import math

import torch
import transformers
from torch import nn

# Names within a layer: transformers' with the changed modules, and Jina's, of both kinds of models.
PLAIN = {
    "intermediate.both.": "mlp.gated_layers.",
    "output.dense.": "mlp.wo.",
    "output.LayerNorm.": "mlp.layernorm.",
}
NORMED = {
    "attention.self.query.0.": "attention.self.query.",
    "attention.self.query.1.": "attention.self.layer_norm_q.",
    "attention.self.key.0.": "attention.self.key.",
    "attention.self.key.1.": "attention.self.layer_norm_k.",
    "attention.output.again.": "layer_norm_1.",
    "intermediate.both.": "mlp.up_gated_layer.",
    "output.dense.": "mlp.down_layer.",
    "output.LayerNorm.": "layer_norm_2.",
}


def slopes(heads: int) -> list:
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return first + [2.0 ** (-4.0 * (2 * head + 1) / power) for head in range(heads - power)]


class Gated(nn.Module):
    """Projects to twice the width; the gate is the first half, or the second."""

    def __init__(self, config, gate_first: bool):
        super().__init__()
        self.both = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.gate_first = gate_first

    def forward(self, hidden):
        first, second = self.both(hidden).chunk(2, dim=-1)
        gate, up = (first, second) if self.gate_first else (second, first)
        return nn.functional.gelu(gate) * up


class Again(nn.Module):
    """The output of attention, which is added to the residual stream a second time."""

    def __init__(self, output, config):
        super().__init__()
        self.dense, self.LayerNorm, self.dropout = output.dense, output.LayerNorm, output.dropout
        self.again = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden, stream):
        return self.again(stream + self.LayerNorm(self.dense(hidden) + stream))


class JinaBertModel(transformers.BertModel):
    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        self.normed = config.qk_norm
        self.names = NORMED if self.normed else PLAIN
        width = config.hidden_size
        self.embeddings.position_embeddings.weight = nn.Parameter(
            torch.zeros_like(self.embeddings.position_embeddings.weight), requires_grad=False)
        for layer in self.encoder.layer:
            layer.intermediate = Gated(config, gate_first=not self.normed)
            if self.normed:
                attention = layer.attention.self
                for name in ("query", "key"):
                    norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
                    setattr(attention, name, nn.Sequential(getattr(attention, name), norm))
                layer.attention.output = Again(layer.attention.output, config)

    def forward(self, input_ids, attention_mask=None, **kwargs):
        rows = input_ids.shape[1]
        at = torch.arange(rows)
        slope = torch.tensor(slopes(self.config.num_attention_heads))[:, None, None]
        mask = -slope * (at[None, :] - at[:, None]).abs()[None]
        if attention_mask is not None:
            mask = mask + (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        else:
            mask = mask[None]
        return super().forward(input_ids=input_ids, attention_mask=mask, **kwargs)

    def named(self) -> dict:
        """The parameters by Jina's names."""
        return named(self, self.names)


class JinaBertJudge(transformers.BertForSequenceClassification):
    """The head of jina-reranker-v1: BERT's own, on the pooled first row."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = JinaBertModel(config, add_pooling_layer=True)

    def named(self) -> dict:
        """The parameters by Jina's names."""
        return named(self, self.bert.names)


def named(model: nn.Module, names: dict) -> dict:
    found = {}
    for name, value in model.named_parameters():
        if "position_embeddings" in name:
            continue
        for ours, theirs in names.items():
            head, layer, rest = name.partition(".layer.")
            number, dot, rest = rest.partition(".")
            if layer and rest.startswith(ours):
                name = f"{head}{layer}{number}{dot}{theirs}{rest.removeprefix(ours)}"
                break
        found[name] = value
    return found


def config_of(config: dict) -> transformers.BertConfig:
    made = transformers.BertConfig(**{key: value for key, value in config.items() if key != "architectures"})
    made.qk_norm = config["_qk_norm"]
    made._attn_implementation = "eager"
    return made


def made(config: dict) -> nn.Module:
    """The model of `config`, with random weights."""
    judges = config["architectures"][0].endswith("ForSequenceClassification")
    return (JinaBertJudge if judges else JinaBertModel)(config_of(config))


def load(config: dict, tensors: dict) -> nn.Module:
    """The model of `config` with `tensors`, in float32."""
    model = made(config)
    parameters = model.named()
    assert parameters.keys() == tensors.keys(), parameters.keys() ^ tensors.keys()
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(tensors[name].to(torch.float32))
    return model.eval()
