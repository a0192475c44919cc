"""Scores of corpora, edit distance, and tests of significance."""

from functools import partial

from s2sjax import former_names
from s2sjax.evaluate.metrics.corpus_metrics import (
    BLEU_ORDERS,
    METRICS,
    Line,
    MetricResult,
    References,
    Terms,
    equals_one_of,
    higher_is_better,
    mean_result,
    reference_streams,
    sacrebleu_metric,
    score,
    score_by_length,
    summary,
)

__getattr__ = partial(former_names.name_in, __name__)
