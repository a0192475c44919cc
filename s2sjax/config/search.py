"""Search settings. `decode` and `evaluate` can override them."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, must_be, require, settings


@settings
class Sampling:
    """Random sampling of outputs. See s2sjax/core/search/sampling.py for the specification."""

    count: int = 0
    """number of samples for each line; 0 searches for the best output instead"""
    temperature: float = 1.0
    """sampling temperature: below 1 sharpens the distribution, above 1 flattens it"""
    top_k: int = 0
    """number of most likely tokens to sample from; 0 for all"""
    top_p: float = 1.0
    """total probability of the smallest set of likely tokens to sample from (nucleus sampling)"""
    min_p: float = 0.0
    """minimum probability of a token to sample, as a fraction of the highest probability"""
    seed: int = 0
    """random seed; the samples of a line depend on its line number, not on its batch"""
    mbr: Literal["none", "chrf", "edit"] = "none"
    """utility for ranking the samples by minimum Bayes risk: chrF or edit distance"""

    def __post_init__(self):
        at_least(0, self, "search.sampling", "count", "top_k", "seed")
        must_be("above 0", self, "search.sampling", "temperature")
        must_be("above 0 and at most 1", self, "search.sampling", "top_p")
        must_be("from 0 to 1", self, "search.sampling", "min_p")
        require(
            self.mbr == "none" or self.count > 1,
            f"search.sampling.mbr {self.mbr} compares samples: set search.sampling.count to 2 or more",
        )


@settings
class Search:
    """Search for outputs. See s2sjax/core/search/beam_decoding.py for the specification."""

    beam_size: int = 4
    """number of hypotheses that the search keeps; 1 is greedy search"""
    length_penalty: Literal["none", "mean", "power", "gnmt"] = "mean"
    """ranking of outputs: by the sum of log-probabilities, by their mean, by the sum divided by a power of the length,
    or with GNMT's length penalty"""
    alpha: float = 0.6
    """exponent of the length penalties power, length^alpha, and gnmt, ((5 + length) / 6)^alpha"""
    coverage: float = 0.0
    """strength beta of GNMT's coverage penalty for source positions with little attention; 0 for none"""
    stop: Literal["bound", "heuristic", "first", "never"] = "bound"
    """end of a search: no better output is possible, none is better at its present length, `beam_size` outputs are
    finished, or the length limit is met. Greedy search and samples end at <eos>"""
    nbest: int = 1
    """number of outputs for each line, at most `beam_size` or the number of samples"""
    max_source: int = 0
    """maximum source length in tokens, <eos> included; longer lines are cut; 0 for four times the longest bucket"""
    max_length: int = 0
    """maximum output length in tokens, <eos> included; 0 for max_ratio * source length + 10"""
    max_ratio: float = 2.0
    """maximum output tokens per source token"""
    min_length: int = 0
    """minimum output length in tokens, <eos> included"""
    min_ratio: float = 0.0
    """minimum output tokens per source token"""
    no_repeat_ngram_size: int = 0
    """size of n-grams that may not occur twice in an output; 0 for no limit"""
    repetition_penalty: float = 1.0
    """multiplier of the log-probability of repeated tokens; 1 for no penalty"""
    prefix: str = ""
    """text that every output must begin with; if empty, what a pretrained vocabulary forces, such as a language"""
    forced: Literal["scored", "free"] = "scored"
    """contribution to scores of forced tokens, those of the prefix and <eos> at the length limit: their
    log-probability, or 0"""
    forbidden_words: tuple[str, ...] = ()
    """words that no output may contain, for example <unk>"""
    required_words: tuple[str, ...] = ()
    """words that every output must contain"""
    groups: int = 1
    """number of groups of diverse beam search"""
    diversity: float = 0.5
    """penalty for a token for each prefix of an earlier group that chose it"""
    ensemble: Literal["log", "linear"] = "log"
    """combination of several models: the mean of log-probabilities, or of probabilities"""
    precision: Literal["trained", "float32", "bfloat16", "int8"] = "trained"
    """precision of the parameters: as trained, float32, bfloat16, or int8 matrices with a scale per column, which a CPU
    also multiplies in int8"""
    sampling: Sampling = Sampling()
    """random sampling instead of search"""

    def __post_init__(self):
        at_least(1, self, "search", "beam_size", "groups")
        at_least(0, self, "search", "max_length", "min_length", "min_ratio", "max_source")
        at_least(0, self, "search", "coverage", "no_repeat_ngram_size", "diversity")
        require(self.max_source != 1, "search.max_source is 1, which leaves only <eos>: set it to 2 or more, or 0")
        draws = self.sampling.count
        most, name = (draws, "search.sampling.count") if draws else (self.beam_size, "search.beam_size")
        require(
            1 <= self.nbest <= most,
            f"search.nbest {self.nbest} is not from 1 to {name} {most}: "
            f"raise the {name.rpartition('.')[2]} or lower nbest",
        )
        must_be("above 0", self, "search", "max_ratio", "repetition_penalty")
        require(
            self.max_length == 0 or self.min_length <= self.max_length,
            f"search.min_length {self.min_length} is above search.max_length {self.max_length}: lower it",
        )
        require(
            self.max_length > 0 or self.min_ratio <= self.max_ratio,
            f"search.min_ratio {self.min_ratio} is above search.max_ratio {self.max_ratio}: lower it",
        )
        require(
            self.beam_size % self.groups == 0,
            f"search.groups {self.groups} does not divide search.beam_size {self.beam_size}: "
            f"try {self.groups * max(1, round(self.beam_size / self.groups))}",
        )
        for name, usual in (("coverage", 0), ("groups", 1)):
            value = getattr(self, name)
            require(
                value == usual or (self.beam_size > 1 and not draws),
                f"search.{name} {value} requires beam search: "
                + ("set search.sampling.count to 0" if draws else "raise search.beam_size above 1"),
            )
