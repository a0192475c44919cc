"""BERT, RoBERTa and XLM-RoBERTa: encoders with learned positions, post-LN, and a norm of the embeddings.

|             | positions                 | kinds of text | masked words | next sentence |
|-------------|---------------------------|---------------|--------------|---------------|
| bert        | learned                   | 2             | cls          | yes           |
| roberta     | learned, from row 2       | 1             | lm_head      | no            |
| xlm-roberta | learned, from row 2       | 1             | lm_head      | no            |

BERT adds a vector to the tokens of the first text of a pair, and another to those of the second. Here the first is part
of the vectors of positions, and the second is the difference of both (`models.frontends.SegmentedTokens`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.correspondence import Row, dense, norm
from s2sjax.interop.families.family import Family, activation


@dataclass(frozen=True)
class Bert(Family):
    """One of these models."""

    name: str
    """start of the names of the tensors, which a model that was saved without output layers does not have"""
    skip: int = 0
    """number of rows before the first position"""

    def settings(self, c: Mapping[str, Any]) -> config.Transformer:
        c = self.complete(c)
        kind = c.get("position_embedding_type", "absolute")
        require(
            kind == "absolute",
            f"config.json: position_embedding_type is {kind!r}, and s2sjax has the positions of BERT alone, "
            "'absolute': such a model cannot be imported",
        )
        for entry in ("is_decoder", "add_cross_attention"):
            require(not c[entry], f"config.json: {entry} is true: only an encoder can be imported")
        require(
            c["type_vocab_size"] in (1, 2),
            f"config.json: type_vocab_size is {c['type_vocab_size']}, and s2sjax tells two texts of a pair apart: such "
            "a model cannot be imported",
        )
        return config.Transformer(
            width=c["hidden_size"],
            heads=c["num_attention_heads"],
            feedforward=c["intermediate_size"],
            encoder_layers=c["num_hidden_layers"],
            decoder_layers=c["num_hidden_layers"],
            activation=activation(c["hidden_act"], "hidden_act"),
            norm="post",
            epsilon=c["layer_norm_eps"],
            norm_embedding=True,
            positions="learned",
            max_length=c["max_position_embeddings"] - self.skip,
            scale_embedding=False,
            dropout=c["hidden_dropout_prob"],
        )

    def head_activation(self, c: Mapping[str, Any]) -> Any:
        """The activation of the output layer of masked words."""
        return activation(self.complete(c)["hidden_act"], "hidden_act") if self.model_type == "bert" else "gelu"

    def rows(self, settings: config.Transformer, prefix: str) -> list[Row]:
        """The rows of the encoder, without the table over the vocabulary and the kinds of texts."""
        s = settings
        ours, theirs, layers = "encoder/blocks/stack", f"{prefix}encoder.layer.{{}}", s.encoder_layers
        parts = {"query": ("query",), "key_value": ("key", "value")}
        rows = []
        for mine, names in parts.items():
            tensors = tuple(f"{theirs}.attention.self.{name}" for name in names)
            rows += dense(f"{ours}/attention/{mine}", tensors, s.width, s.width, layers)
        rows += dense(f"{ours}/attention/output", (f"{theirs}.attention.output.dense",), s.width, s.width, layers)
        rows += norm(f"{ours}/around_attention/norm", f"{theirs}.attention.output.LayerNorm", s.width, layers)
        rows += dense(f"{ours}/feedforward/inner", (f"{theirs}.intermediate.dense",), s.width, s.feedforward, layers)
        rows += dense(f"{ours}/feedforward/outer", (f"{theirs}.output.dense",), s.feedforward, s.width, layers)
        rows += norm(f"{ours}/around_feedforward/norm", f"{theirs}.output.LayerNorm", s.width, layers)
        rows += norm("encoder/positions/norm", f"{prefix}embeddings.LayerNorm", s.width)
        places, name = s.max_length + self.skip, f"{prefix}embeddings.position_embeddings.weight"
        return [*rows, Row(POSITIONS, (name,), (places, s.width), skip=self.skip)]

    def table(self, settings: config.Transformer, size: int, prefix: str) -> Row:
        """The embedding of words, which is also the output layer."""
        name = f"{prefix}embeddings.word_embeddings.weight"
        return Row("embedding/table", (name,), (size, settings.width), vocabulary="source")

    def kinds(self, settings: config.Transformer, types: int, prefix: str) -> Row:
        """The vectors of the kinds of texts."""
        return Row("kinds", (f"{prefix}embeddings.token_type_embeddings.weight",), (types, settings.width))

    def words(self, settings: config.Transformer, size: int) -> list[Row]:
        """The rows of the output layer of masked words."""
        of_bert, width = self.model_type == "bert", settings.width
        start = "cls.predictions.transform" if of_bert else "lm_head"
        bias = "cls.predictions.bias" if of_bert else "lm_head.bias"
        rows = dense("transform", (f"{start}.dense",), width, width, 0)
        rows += norm("norm", f"{start}.{'LayerNorm' if of_bert else 'layer_norm'}", width)
        return [*rows, Row("word_bias", (bias,), (size,), vocabulary="source")]

    @property
    def output(self) -> str:
        """The output layer of masked words in files that repeat the embedding."""
        return f"{'cls.predictions' if self.model_type == 'bert' else 'lm_head'}.decoder.weight"

    @property
    def aliases(self) -> dict[str, str]:
        """Tensors of files that repeat a parameter, and that parameter."""
        return {self.output: "embedding/table", f"{self.output.removesuffix('.weight')}.bias": "word_bias"}

    def pooler(self, settings: config.Transformer, prefix: str) -> list[Row]:
        """The rows of the dense layer with tanh over the first state."""
        return dense("pooler", (f"{prefix}pooler.dense",), settings.width, settings.width, 0)

    def next_text(self, settings: config.Transformer) -> list[Row]:
        """The rows of the output layer of next sentences. Its first label is "follows", and here the second."""
        return dense("follows", ("cls.seq_relationship",), settings.width, 2, 0)

    def labels(self, settings: config.Transformer, count: int) -> list[Row]:
        """The rows of a classifier of texts, which reads the first state through a dense layer with tanh."""
        if self.model_type == "bert":
            return [*self.pooler(settings, self.name), *self.tags(settings, count)]
        rows = dense("pooler", ("classifier.dense",), settings.width, settings.width, 0)
        return rows + dense("output", ("classifier.out_proj",), settings.width, count, 0)

    def tags(self, settings: config.Transformer, count: int) -> list[Row]:
        """The rows of a classifier of tokens."""
        return dense("output", ("classifier",), settings.width, count, 0)

    def class_name(self, end: str) -> str:
        """The name of one of its classes in transformers."""
        return f"{self.architecture.partition('For')[0]}{end}"


POSITIONS = "encoder/positions/table"
HEADS = r"(cls|lm_head|classifier|qa_outputs|score|dropout)\..*"
"""tensors of output layers, which are not part of the encoder"""
BUFFERS = r"(\w+\.)?embeddings\.(position_ids|token_type_ids)|.*pooler\..*"
"""tensors that the encoder does not read"""


def former_names(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """The rows with the names of the tensors as a file has them: until 2019, norms had a gamma and a beta."""
    old = any(name.endswith("LayerNorm.gamma") for name in names)
    rename = lambda name: re.sub(r"(?<=LayerNorm\.)(weight|bias)$", lambda at: _FORMER[at[0]], name)
    return [replace(row, theirs=tuple(map(rename, row.theirs))) if old else row for row in rows]


_FORMER = {"weight": "gamma", "bias": "beta"}
_DEFAULTS = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
_ROBERTA = {**_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1}

FAMILIES: dict[str, Bert] = {
    family.model_type: family
    for family in (
        Bert("bert", "BertForPreTraining", _DEFAULTS, "bert."),
        Bert("roberta", "RobertaForMaskedLM", _ROBERTA, "roberta.", skip=2),
        Bert("xlm-roberta", "XLMRobertaForMaskedLM", _ROBERTA, "roberta.", skip=2),
    )
}
