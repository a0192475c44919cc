"""Encoder-decoders that several claims compare, each with the same data and the same number of updates.

small   spelling to pronunciation (the extra g2p), 120,000 words; the score is the phone error rate
full    Multi30k English to German, lower-case tokens; the checkpoint is chosen on the last 1,000 training pairs, the
        score is BLEU on the official validation set. The official test set is not used.

Models are trained in OUT/models/SIZE and shared by all claims.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import common
import jax

from s2sjax import config
from s2sjax.config import (
    ConvS2S,
    Data,
    Evaluate,
    Hybrid,
    Luong,
    RNNsearch,
    Search,
    Sutskever,
    Text,
    Train,
    Transformer,
    replace,
)
from s2sjax.evaluate.metrics import MetricResult, score_by_length
from s2sjax.runs.run import Run
from s2sjax.tasks import Translation

HELD_OUT = 1000
"""number of training pairs of Multi30k that the checkpoint is chosen on"""
FEWEST = 30
"""minimum number of examples of a bucket of lengths"""


def small() -> Translation:
    return Translation(
        "small",
        data=Data(
            corpus=config.Cmudict(dev_percent=0.5, test_percent=1.5),
            source=Text("characters"),
            target=Text("words"),  # phones, separated by spaces
            buckets=((9, 9), (15, 16)),
            batch_tokens=768,
        ),
        train=Train(steps=800, learning_rate=4e-3, warmup_steps=80, log_every=100, evaluate_every=100, save_every=800),
        search=Search(beam_size=4, length_penalty="mean"),
        evaluate=Evaluate(metrics=("per", "wer"), target_unit="word", dev_examples=200, samples=0, batch_size=200),
    )


def full() -> Translation:
    return Translation(
        "full",
        data=Data(
            corpus=multi30k(),
            source=Text("subwords", size=8000, algorithm="bpe"),
            target=Text("subwords", size=8000, algorithm="bpe"),
            shared=True,
            buckets=((16, 16), (24, 24), (48, 48)),
            batch_tokens=8192,
        ),
        train=Train(
            steps=2000, learning_rate=1e-3, warmup_steps=200, label_smoothing=0.1, dtype="bfloat16",
            log_every=250, evaluate_every=250, save_every=1000,
        ),
        search=Search(beam_size=4, length_penalty="mean"),
        evaluate=Evaluate(metrics=("bleu_tokenized",), dev_examples=500, samples=0, batch_size=256),
    )  # fmt: skip


def toy() -> Translation:
    return Translation(
        "toy",
        data=Data(
            corpus=config.Synthetic("copy", train=60, dev=6, test=12, length=6, alphabet=3),
            buckets=((8, 8),),
            batch_tokens=128,
            prefetch=0,
        ),
        train=Train(steps=4, learning_rate=1e-2, warmup_steps=1, log_every=1, evaluate_every=2, save_every=4),
        search=Search(beam_size=2),
        evaluate=Evaluate(metrics=("cer",), dev_examples=6, samples=0, batch_size=12),
    )


@cache
def multi30k() -> config.InMemory:
    pairs = {}
    for split in ("train", "val"):
        files = common.require_data(*(f"multi30k/tok/{split}.lc.norm.tok.{language}" for language in ("en", "de")))
        pairs[split] = list(zip(*(file.read_text("utf-8").splitlines() for file in files), strict=True))
    train = pairs["train"]
    return config.InMemory(train=train[:-HELD_OUT], dev=train[-HELD_OUT:], test=pairs["val"])


SIZES: dict[str, Callable[[], Translation]] = {"small": small, "full": full, "toy": toy}
BOUNDS = {"small": (4, 6, 8, 10, 12), "full": (8, 11, 14, 18, 23), "toy": (3,)}
"""upper bounds of the buckets of source lengths, in letters or words"""


def _mingru(width: int, layers: int, **options: Any) -> Luong:
    """A minGRU encoder-decoder with attention. Its decoder reads no context, so that all positions run in parallel."""
    return Luong(width=width, layers=layers, cell="mingru", bidirectional=True, input_feeding=False, **options)


MODELS: dict[str, dict[str, Any]] = {
    "small": {
        "sutskever": Sutskever(width=72, embedding_size=32, layers=2, dropout=0.0),
        "sutskever_forward": Sutskever(width=72, embedding_size=32, layers=2, reverse=False, dropout=0.0),
        "rnnsearch": RNNsearch(width=72, embedding_size=32, dropout=0.0),
        "transformer": Transformer(56, 4, 224, 2, 2, norm="pre", dropout=0.0),
        "convs2s": ConvS2S(
            embedding_size=56, encoder_layers=((56, 3),) * 3, decoder_layers=((56, 3),) * 3, max_length=64, dropout=0.0
        ),
        "rnnsearch_equal": RNNsearch(width=84, embedding_size=32, dropout=0.0),
        "mingru": _mingru(148, 2, embedding_size=32, dropout=0.0),
    },
    "full": {
        "sutskever": Sutskever(width=512, embedding_size=256, layers=2, dropout=0.3),
        "sutskever_forward": Sutskever(width=512, embedding_size=256, layers=2, reverse=False, dropout=0.3),
        "rnnsearch": RNNsearch(width=384, embedding_size=256, dropout=0.3),
        "transformer": Transformer(256, 4, 1024, 3, 3, norm="pre", tie="all", dropout=0.3),
        "convs2s": ConvS2S(
            embedding_size=256,
            encoder_layers=((256, 3),) * 5,
            decoder_layers=((256, 3),) * 5,
            max_length=256,
            dropout=0.3,
        ),
        "rnnsearch_equal": RNNsearch(width=440, embedding_size=256, tie="all", dropout=0.3),
        "mingru": _mingru(496, 3, embedding_size=496, tie="all", dropout=0.3),
    },
    "toy": {
        "sutskever": Sutskever(width=8, embedding_size=4, layers=1, dropout=0.0),
        "sutskever_forward": Sutskever(width=8, embedding_size=4, layers=1, reverse=False, dropout=0.0),
        "rnnsearch": RNNsearch(width=8, embedding_size=4, dropout=0.0),
        "transformer": Transformer(8, 2, 8, 1, 1, norm="pre", dropout=0.0),
        "convs2s": ConvS2S(
            embedding_size=8, encoder_layers=((8, 3),), decoder_layers=((8, 3),), max_length=64, dropout=0.0
        ),
        "rnnsearch_equal": RNNsearch(width=8, embedding_size=4, dropout=0.0),
        "mingru": _mingru(8, 1, embedding_size=4, dropout=0.0),
    },
}  # fmt: skip


def recurrences(transformer: Transformer, feedforward: Mapping[str, int], **options: Any) -> dict[str, Hybrid]:
    """The Transformer with other mixers in place of self-attention.

    feedforward: width of the feed-forward networks for each model, which makes up for the weights of the mixers.
    """
    depth = transformer.encoder_layers
    mixers = {
        "gated_delta": ("gated_delta",),
        "ssd": ("ssd",),
        "gla": ("gla",),
        "mlstm": ("mlstm",),
        "griffin": ("rg_lru", "rg_lru", "local_attention") if depth > 2 else ("rg_lru", "local_attention"),
        "delta_attention": ("gated_delta", "attention"),
    }
    same = {field.name: getattr(transformer, field.name) for field in dataclasses.fields(Transformer)}
    return {
        name: Hybrid(**same | {"feedforward": feedforward[name], "mixers": pattern[:depth], "expand": 1} | options)
        for name, pattern in mixers.items()
    }


FEEDFORWARD = {
    "small": {"gated_delta": 112, "ssd": 180, "gla": 152, "mlstm": 120, "griffin": 204, "delta_attention": 168},
    "full": {"gated_delta": 560, "ssd": 856, "gla": 752, "mlstm": 568, "griffin": 912, "delta_attention": 720},
    "toy": dict.fromkeys(("gated_delta", "ssd", "gla", "mlstm", "griffin", "delta_attention"), 4),
}
"""widths with which the models of `recurrences` have as many weights as the Transformer"""
for _size, _options in {
    "small": {"state_width": 16, "window": 4},
    "full": {"state_width": 64, "window": 8},
    "toy": {"state_width": 4, "window": 2},
}.items():
    MODELS[_size] |= recurrences(MODELS[_size]["transformer"], FEEDFORWARD[_size], **_options)
TIMED = ("transformer", "rnnsearch", "convs2s")
"""models whose times cost.py compares: their seeds are trained one after the other"""
SEEDS = {"small": 3, "full": 3, "toy": 2}
TITLES = {
    "sutskever": "LSTM, no attention",
    "sutskever_forward": "LSTM, source not reversed",
    "rnnsearch": "RNNsearch",
    "transformer": "Transformer",
    "convs2s": "ConvS2S",
    "rnnsearch_equal": "RNNsearch",
    "mingru": "minGRU with attention",
    "gated_delta": "Gated DeltaNet",
    "ssd": "Mamba-2",
    "gla": "GLA",
    "mlstm": "mLSTM",
    "griffin": "RG-LRU + local attention",
    "delta_attention": "Gated DeltaNet + attention",
}


class Trained(NamedTuple):
    folder: Path
    weights: int
    metric: str
    higher_is_better: bool
    score: float
    """score on the test split of the checkpoint that is best on dev"""
    dev_loss: float
    """nats per token after the last update"""
    curve: list[dict[str, float]]
    """step, seconds of training (without compilation and evaluation), dev score"""
    outputs: list[dict[str, Any]]
    """source, hypothesis and references of each test example"""

    @property
    def label(self) -> str:
        return "BLEU" if self.metric.startswith("bleu") else self.metric.upper() + ", %"

    def by_length(self, size: str) -> list[tuple[int, int, MetricResult]]:
        """The score of each bucket of source lengths, in words or letters, that has enough examples."""
        sources = [each["source"] for each in self.outputs]
        lengths = [len(source.split()) if size == "full" else len(source) for source in sources]
        hypotheses = [each["hypothesis"] for each in self.outputs]
        references = [tuple(each["references"]) for each in self.outputs]
        found = score_by_length(self.metric, hypotheses, references, lengths, BOUNDS[size])
        return [each for each in found if size == "toy" or each[2].examples >= FEWEST]


def by_length(models: Mapping[str, list[Trained]], size: str) -> dict[str, Any]:
    """Scores by source length, [seeds][buckets] for each model, with the buckets and the label of the score."""
    buckets = {name: [run.by_length(size) for run in seeds] for name, seeds in models.items()}
    run, first = next(iter(models.values()))[0], next(iter(buckets.values()))[0]
    examples = [result.examples for _, _, result in first]
    return {
        "by_length": {
            name: [[result.value for _, _, result in each] for each in seeds] for name, seeds in buckets.items()
        },
        "buckets": [(low, high) for low, high, _ in first],
        "examples": examples,
        "left_out": len(run.outputs) - sum(examples),
        "label": run.label,
        "higher": run.higher_is_better,
        "unit": "words" if size == "full" else "letters",
    }


def axis(data: Mapping[str, Any]) -> str:
    """The label of the axis of the score."""
    return data["label"] + ("" if data["higher"] else " (lower is better)")


def metric(data: Mapping[str, Any]) -> str:
    """The name of the metric, without its unit."""
    return data["label"].removesuffix(", %")


def all_seeds(study: common.Study, name: str, seeds: int | None = None) -> list[Trained]:
    """A model of MODELS with several seeds, trained once for all claims.

    seeds: number of seeds, by default that of SEEDS; models with another number have a folder of their own.
    """
    usual = SEEDS[study.size]
    seeds = seeds or usual
    folder = name if seeds == usual else f"{name}-{seeds}-seeds"
    e = replace(SIZES[study.size](), name=name, model=MODELS[study.size][name])
    alone = {"at_once": 1} if name in TIMED and seeds == usual else {}
    found = study.sweep(folder, e, {"seed": range(seeds)}, _trained, shared=True, **alone)
    return [Trained(study.place(folder, shared=True) / member, *value) for member, value in found.items()]


def _trained(run: Run) -> list[Any]:
    evaluation = run.evaluations()[-1]
    metric = run.experiment.evaluate.metrics[0]
    weights = sum(leaf.size for leaf in jax.tree.leaves(run.params()[0]))
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    curve, seconds = [], 0.0
    for row in rows:
        seconds += row.get("seconds", 0.0)
        if "score" in row:
            curve.append({"step": row["step"], "seconds": seconds, "score": row[metric], "loss": row["dev_loss"]})
    outputs = [{key: each[key] for key in ("source", "hypothesis", "references")} for each in evaluation.outputs]
    better = evaluation[metric].higher_is_better
    return [weights, metric, better, evaluation[metric].value, curve[-1]["loss"], curve, outputs]
