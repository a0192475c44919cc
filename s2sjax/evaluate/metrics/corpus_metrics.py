"""Metrics of a decoded corpus. Each is computed from corpus-wide sums, not as a mean of line scores.

An error rate (PER over phones, WER over words, CER over characters) compares each line with its *closest*
reference: the one with the smallest edit distance (the first one on ties):

    rate = 100 * sum_i distance(hypothesis_i, closest_i) / sum_i length(closest_i)

Error rates and exact match compare text in NFC, since an accent may be written as one code point or as two.

If all references are empty, the denominator is 1: the rate stays finite, and it is 0 if and only if every
line matches. BLEU, chrF and TER are computed by sacreBLEU (Post 2018) on the unchanged text, including empty lines,
and each score comes with its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from s2sjax import former_names
from s2sjax.data.text.vocabulary import normalized
from s2sjax.errors import UserError, nearest
from s2sjax.evaluate.metrics.edit_distance import distance

Line = Literal["sentence", "word"]
References = Sequence[tuple[str, ...]]
Terms = Sequence[tuple[float, float]]
__getattr__ = partial(former_names.name_in, __name__)


class MetricResult(NamedTuple):
    """The value of one metric on a set of examples."""

    name: str
    """lower-case name of the metric, its key in results.json"""
    value: float
    """score in percent, or in sacreBLEU's points"""
    higher_is_better: bool
    signature: str | None
    """signature of sacreBLEU, or None for the error rates, which have no options to record"""
    examples: int
    label: str
    """printed name of the metric"""
    format: str = "{:.2f}%"
    """format of the printed value"""
    terms: Terms = ()
    """(numerator, denominator) of each example: value = sum of numerators / max(sum of denominators, 1); empty if the
    value is not such a ratio"""

    def __str__(self) -> str:
        return f"{self.label} {self.format.format(self.value)}"

    def number(self, value: float) -> str:
        """A value of this metric with its number of digits, without the sign of percent."""
        return self.format.format(value).removesuffix("%")

    def __repr__(self) -> str:  # without the terms
        return f"<{self} on {self.examples:,} examples>"


def mean_result(
    name: str, label: str, terms: Terms, signature: str | None = None, higher_is_better: bool = True
) -> MetricResult:
    """The result whose value is the sum of the numerators divided by the sum of the denominators."""
    value = sum(above for above, _ in terms) / max(sum(below for _, below in terms), 1)
    return MetricResult(name, value, higher_is_better, signature, len(terms), label, terms=terms)


def score(
    metrics: Sequence[str], hypotheses: Sequence[str], references: References, line: Line = "sentence"
) -> dict[str, MetricResult]:
    """Scores `hypotheses` by each of `metrics`; `references[i]` contains one or more references of line i.

    line: the unit that a line consists of. If it is one word, written as phones or letters, WER is the fraction of
    lines that equal none of their references, ignoring white space.

    >>> results = score(["per", "wer"], ["K AE T", "D AO G"], [("K AE T",), ("D AA G", "D AO G Z")], line="word")
    >>> {name: result.value for name, result in results.items()}  # 1 of 6 phones, 1 of 2 words
    {'per': 16.666666666666668, 'wer': 50.0}
    """
    _check(metrics, hypotheses, references)
    return {name: METRICS[name](name, hypotheses, references, line) for name in metrics}


def score_by_length(
    metric: str,
    hypotheses: Sequence[str],
    references: References,
    lengths: Sequence[int],
    bounds: Sequence[int] = (10, 20, 30, 40, 50),
    line: Line = "sentence",
) -> list[tuple[int, int, MetricResult]]:
    """Scores by source length: (low, high, MetricResult) for the lines with low <= length <= high.

    `lengths[i]` is the source length of line i. `bounds` are the upper bounds of the buckets; longer lines form one
    more bucket. Empty buckets are left out.
    With bounds (10, 20) and lengths up to 37, the buckets are 0 to 10, 11 to 20, and 21 to 37.
    """
    _check([metric], hypotheses, references)
    if len(lengths) != len(hypotheses):
        raise UserError(f"{len(lengths)} source lengths for {len(hypotheses)} hypotheses: give one length per line")
    if list(bounds) != sorted(set(bounds)):
        raise UserError(f"bounds is {tuple(bounds)}: give the upper bounds of the buckets in ascending order")
    buckets, low = [], 0
    for high in (*bounds, max(lengths)):
        rows = [i for i, length in enumerate(lengths) if low <= length <= high]
        if rows:
            part = score([metric], [hypotheses[i] for i in rows], [references[i] for i in rows], line)
            buckets.append((low, high, part[metric]))
        low = high + 1
    return buckets


def summary(results: dict[str, MetricResult], noun: str = "sentence") -> str:
    """Formats the results: the error rates on one line, then each sacreBLEU score on a line with its signature.

    PER 7.93%  WER 33.10%  on 6,012 words
    BLEU 27.31  on 3,003 sentences  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0
    """

    def on(result: MetricResult) -> str:
        return f"on {result.examples:,} {noun}{'' if result.examples == 1 else 's'}"

    rates = [result for result in results.values() if result.signature is None]
    signed = [result for result in results.values() if result.signature is not None]
    first = ["  ".join([*map(str, rates), on(rates[0])])] if rates else []
    return "\n".join(first + [f"{result}  {on(result)}  {result.signature}" for result in signed])


def higher_is_better(name: str) -> bool:
    """Whether higher values of a metric are better; False for error rates and TER."""
    _check_names([name])
    return METRICS[name] is not _rate and name != "ter"


# ------------------------------------------------------------------------------- checks of the input


def _check_names(metrics: Sequence[str]) -> None:
    for name in metrics:
        if name not in METRICS:
            meant = nearest(name.lower(), METRICS)
            raise UserError(f"unknown metric {name!r}: did you mean {meant!r}? The metrics are {', '.join(METRICS)}")


def _check(metrics: Sequence[str], hypotheses: Sequence[str], references: References) -> None:
    _check_names(metrics)
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} hypotheses but {len(references)} lines of references: decode and score the same lines"
        )
    if not hypotheses:
        raise UserError("there are no lines to score: choose a split that is not empty")
    for number, answers in enumerate(references, start=1):
        if isinstance(answers, str):
            raise UserError(f"the references of line {number} are a string: give a tuple of strings")
        if not answers:
            raise UserError(f"line {number} has no reference: remove it, or give it at least one")


# --------------------------------------------------------------------------------------- the metrics


def _rate(name: str, hypotheses: Sequence[str], references: References, line: Line) -> MetricResult:
    symbols: Callable[[str], Sequence[str]] = list if name == "cer" else str.split

    def closest(hypothesis: str, answers: tuple[str, ...]) -> tuple[int, int]:
        """The (distance, length) of the closest reference of a line."""
        predicted, *correct = (symbols(normalized(each, "nfc")) for each in (hypothesis, *answers))
        pairs = [(distance(predicted, answer), len(answer)) for answer in correct]
        return min(pairs, key=lambda pair: pair[0])  # min returns the first on ties

    lines = list(map(closest, hypotheses, references))
    if name == "wer" and line == "word":  # the line is one word: correct or wrong
        lines = [(min(errors, 1), 1) for errors, _ in lines]
    terms = [(100.0 * errors, length) for errors, length in lines]
    return mean_result(name, name.upper(), terms, higher_is_better=False)


def _exact(name: str, hypotheses: Sequence[str], references: References, line: Line) -> MetricResult:
    """The percentage of lines that equal one of their references exactly."""
    terms = [(100.0 * equals_one_of(*pair), 1.0) for pair in zip(hypotheses, references)]
    return mean_result(name, "exact", terms)


def equals_one_of(hypothesis: str, answers: Sequence[str]) -> bool:
    """Whether the hypothesis equals one of the answers, in NFC."""
    return normalized(hypothesis, "nfc") in [normalized(answer, "nfc") for answer in answers]


def _sacrebleu(name: str, hypotheses: Sequence[str], references: References, line: Line) -> MetricResult:
    metric = sacrebleu_metric(name)
    points = metric.corpus_score(hypotheses, reference_streams(references))
    label = "legacy tokenised BLEU (not comparable)" if name == "bleu_tokenized" else points.name
    if name in BLEU_ORDERS:
        label = f"BLEU-{BLEU_ORDERS.index(name) + 1}"
    signature = str(metric.get_signature())
    return MetricResult(name, points.score, higher_is_better(name), signature, len(hypotheses), label, "{:.2f}")


def sacrebleu_metric(name: str) -> Any:
    """sacreBLEU's object for a metric of METRICS."""
    from sacrebleu.metrics import BLEU, CHRF, TER  # imported here because it is slow and most tasks do not need it

    if name == "bleu_tokenized":
        return BLEU(tokenize="none", smooth_method="none", force=True)
    if name in BLEU_ORDERS:
        return BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=BLEU_ORDERS.index(name) + 1)
    return {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()


def reference_streams(references: References) -> list[list[Any]]:
    """The references in sacreBLEU's layout: stream k has the k-th reference of every line, or None if there is none."""
    most = max(map(len, references))
    return [[answers[k] if k < len(answers) else None for answers in references] for k in range(most)]


BLEU_ORDERS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4")
"""BLEU of captions: n-grams up to n of words separated by blanks, without smoothing, as in Xu et al. 2015"""
METRICS: dict[str, Callable[[str, Sequence[str], References, Line], MetricResult]] = {
    "per": _rate,
    "wer": _rate,
    "cer": _rate,
    "exact": _exact,
    "bleu": _sacrebleu,
    "chrf": _sacrebleu,
    "ter": _sacrebleu,
    "bleu_tokenized": _sacrebleu,
    **dict.fromkeys(BLEU_ORDERS, _sacrebleu),
}
