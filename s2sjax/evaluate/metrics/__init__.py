"""Scores of corpora, edit distance, and tests of significance."""

from s2sjax.evaluate.metrics.corpus_metrics import (
    BLEU_ORDERS,
    METRICS,
    Line,
    References,
    Result,
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
