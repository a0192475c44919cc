"""How text that a model writes is judged."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, require, settings

Metric = Literal["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]


@settings
class Evaluate:
    metrics: tuple[Metric, ...] = ("exact",)
    """the first one decides which checkpoint is best"""
    line: Literal["sentence", "word"] = "sentence"
    """what a line of the target is; if it is one word (as letters or phones), WER is the share of wrong lines"""
    lines: int = 500
    """dev lines decoded at each evaluation during training"""
    samples: int = 4
    """dev lines shown at each evaluation"""
    rows: int = 64
    """sentences decoded at once"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: name at least one metric")
