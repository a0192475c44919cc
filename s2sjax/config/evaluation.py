"""Evaluation settings."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from s2sjax.config.settings import at_least, require, settings

Metric = Literal["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]


@settings
class EvaluationSettings:
    """Evaluation settings that all tasks share."""

    _: KW_ONLY
    test: bool = True
    """whether to score the test split after training; if not, dev is scored instead, so that test cannot guide the
    choice of a model"""


@settings
class PredictionSettings(EvaluationSettings):
    """Evaluation settings of tasks with a choice of metrics."""

    metrics: tuple[str, ...] = ()
    """metrics to compute; the first one selects the best checkpoint"""
    _: KW_ONLY
    dev_examples: int = 500
    """dev examples predicted at each evaluation during training, spread over the whole split"""
    samples: int = 0
    """dev examples shown at each evaluation"""
    batch_size: int = 64
    """examples predicted at once; fewer of those that are longer than the longest bucket"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "batch_size", "dev_examples")
        at_least(0, self, "evaluate", "samples")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: give at least one metric")


@settings
class Evaluate(PredictionSettings):
    """Evaluation of generated text."""

    metrics: tuple[Metric, ...] = ("exact",)
    target_unit: Literal["sentence", "word"] = "sentence"
    """unit of a target line; for `word` (as letters or phones), WER is the fraction of wrong lines"""
    _: KW_ONLY
    samples: int = 4
