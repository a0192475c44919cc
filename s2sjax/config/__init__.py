"""Every choice an experiment can make, as nested frozen dataclasses.

An experiment file builds one `Experiment`; the command line overrides any field by its dotted
name (`--model.width 256`). A combination that cannot work is refused here, when it is built.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any, Literal

from s2sjax.config.convolutional import RCTM, ConvS2S, DenseDense, LSTMDense
from s2sjax.config.data import (
    Cmudict,
    Corpus,
    Data,
    Mixture,
    Prepared,
    Raw,
    Spelling,
    Synthetic,
    Text,
    TextFiles,
    Tfds,
)
from s2sjax.config.models import GNMT, Cho, Luong, RNNsearch, Sutskever, Transformer
from s2sjax.config.pair import Family, ModelConfig, Pair, family, sides
from s2sjax.config.search import Sampling, Search
from s2sjax.config.settings import at_least, require, settings
from s2sjax.config.specs import Carries, DecoderSpec, EncoderSpec, ModelSettings, RecurrentSpec
from s2sjax.config.training import Mesh, ScheduledSampling, Softmax, Train
from s2sjax.errors import UserError

replace = dataclasses.replace


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
            self.model.tie != "all" or self.data.shared,
            "model.tie 'all' needs one vocabulary for both sides: set data.shared",
        )
        require(
            self.model.tie == "none" or not self.data.target.spelling.on,
            f"model.tie {self.model.tie!r} makes the output layer of the target's table, which "
            "data.target.spelling.on replaces: set model.tie none",
        )
        require(
            self.train.scheduled_sampling.schedule == "none" or not getattr(sides(self.model)[1], "variational", False),
            "train.scheduled_sampling takes one step at a time, which model.variational's one mask a sentence does not "
            "reach: set one of them off",
        )
        require(
            self.search.coverage == 0 or self.model.decoder_spec.states is not None,
            f"search.coverage {self.search.coverage} is made of attention, and model {family(self.model)} has none: "
            "set it to 0",
        )
        require(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0"),
            f"name is {self.name!r}: it must be the name of a folder, for the run goes to runs/NAME",
        )
        self._check_packing()
        self._check_softmax()
        self._check_remat()
        longest = max(max(pair) for pair in self.data.buckets)
        for side, part in zip(("source", "target"), sides(self.model)):
            require(
                part.embedding > 0 or not getattr(self.data, side).spelling.on,
                f"data.{side}.spelling.on makes vectors of words, but with model.embedding 0 there are none: raise it",
            )
            if isinstance(part, ConvS2S) or (isinstance(part, Transformer) and part.positions == "learned"):
                places = part.max_length
                require(
                    places >= longest,
                    f"model.max_length {places} is shorter than the longest of data.buckets, {longest}: raise it",
                )
            if isinstance(part, Transformer):
                self._check_window("window", part.window, longest, "0")
            if isinstance(part, Luong):
                sources = max(source for source, _ in self.data.buckets)
                self._check_window("radius", part.radius, sources, "0, and model.window global")

    def _check_packing(self) -> None:
        if not self.data.packing:
            return
        require(
            isinstance(self.model, Transformer),
            f"data.packing needs a Transformer, which keeps the examples of a row apart; {family(self.model)} would "
            "run from one into the next: unset it",
        )
        require(
            getattr(self.model, "window", 0) == 0,
            "data.packing keeps the examples of a row apart, model.window does not: set one of them off",
        )
        require(
            self.train.scheduled_sampling.schedule == "none",
            "data.packing gives each example of a row its own <sos>, which train.scheduled_sampling would replace: "
            "set one of them off",
        )

    def _check_softmax(self) -> None:
        softmax, data = self.train.softmax, self.data
        prepared = isinstance(data.corpus, Prepared)
        require(
            not (prepared and softmax.samples and softmax.distribution == "unigram"),
            "train.softmax.distribution unigram counts the words of the training text, which a prepared folder does "
            "not keep: set log_uniform",
        )
        if not softmax.subset:
            return
        require(
            data.target.sampling == 0,
            "train.softmax.subset needs to know a part's target subwords, but data.target.sampling draws new ones: "
            "set one of them to 0",
        )
        for there, name in (
            (prepared, "the prepared folder of data.corpus"),
            (isinstance(data.corpus, Mixture), "the mixture of data.corpus"),
            (data.packing, "data.packing"),
        ):
            require(not there, f"train.softmax.subset plans by parts, which {name} does not: set it to 0")

    def _check_remat(self) -> None:
        reads, writes = sides(self.model)
        plain_reading = isinstance(reads, DenseDense) or (isinstance(reads, RCTM) and reads.activation != "gated")
        dense_writing = isinstance(writes, DenseDense | LSTMDense)
        plain_writing = dense_writing or (isinstance(writes, RCTM) and writes.cell == "rnn")
        require(
            self.train.remat != "products" or not (plain_reading and plain_writing),
            f"train.remat products frees nothing of {family(self.model)}, where only a curve lies between one matrix "
            "product and the next: set layers, or none",
        )

    @staticmethod
    def _check_window(field: str, reach: int, longest: int, everywhere: str) -> None:
        require(
            reach < longest,
            f"model.{field} {reach} reaches across the longest of data.buckets, {longest}: "
            f"lower it, or set it to {everywhere}, to see everything",
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
