"""Evaluation settings."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.settings import at_least, require, settings

Metric = Literal["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]


@settings
class EvaluationSettings:
    """What the evaluation settings of every task have."""

    test: bool = field(default=True, kw_only=True)
    """score the test split after training; False leaves it alone, so that it cannot guide the choice of a model: dev is
    scored instead"""


@settings
class Evaluate(EvaluationSettings):
    metrics: tuple[Metric, ...] = ("exact",)
    """metrics to compute; the first one selects the best checkpoint"""
    line: Literal["sentence", "word"] = "sentence"
    """what a target line is; for `word` (as letters or phones), WER is the fraction of wrong lines"""
    lines: int = 500
    """dev lines decoded at each evaluation during training, spread over the whole file"""
    samples: int = 4
    """dev lines printed at each evaluation"""
    rows: int = 64
    """batch size of decoding, in sentences; fewer of those that are longer than the longest bucket"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: give at least one metric")
