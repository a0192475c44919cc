"""How text is written: the part of the configuration that `decode` and `evaluate` can set anew."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, require, settings


@settings
class Sampling:
    """Outputs drawn at random. See s2sjax/core/sampling.py for the specification."""

    count: int = 0
    """draw so many outputs for each line; 0 searches for the best instead"""
    temperature: float = 1.0
    """below 1 prefers the likely, above 1 the unlikely"""
    top_k: int = 0
    """draw from the so many likeliest tokens; 0 from all"""
    top_p: float = 1.0
    """draw from the fewest tokens that have this probability together"""
    min_p: float = 0.0
    """draw from tokens that have at least this share of the likeliest one's probability"""
    seed: int = 0
    """other seeds draw other outputs; a line is drawn by its number, whatever its neighbours"""
    mbr: Literal["none", "chrf", "edit"] = "none"
    """put first the sample that is most like all others (minimum Bayes risk), by chrF or edit distance"""

    def __post_init__(self):
        at_least(0, self, "search.sampling", "count", "top_k", "seed")
        require(self.temperature > 0, f"search.sampling.temperature is {self.temperature}: it must be above 0")
        require(0 < self.top_p <= 1, f"search.sampling.top_p is {self.top_p}: it must be above 0 and at most 1")
        require(0 <= self.min_p <= 1, f"search.sampling.min_p is {self.min_p}: it must be from 0 to 1")
        require(
            self.mbr == "none" or self.count > 1,
            f"search.sampling.mbr {self.mbr} compares samples: set search.sampling.count to 2 or more",
        )


@settings
class Search:
    """How text is written. See s2sjax/core/search.py for the specification."""

    beam: int = 4
    """1 is greedy"""
    penalty: Literal["none", "mean", "gnmt"] = "mean"
    """select by the sum of log-probabilities, by its mean, or with the length penalty of GNMT"""
    alpha: float = 0.6
    """strength of the GNMT length penalty ((5 + length) / 6)^alpha"""
    coverage: float = 0.0
    """strength beta of GNMT's penalty for source positions that attention passed over"""
    stop: Literal["bound", "first", "never"] = "bound"
    """when nothing better can come, when `beam` outputs have ended, or at the longest length"""
    nbest: int = 1
    """outputs for each line, at most `beam`, or the samples drawn"""
    max_length: int = 0
    """most tokens an output may have, <eos> included; 0 takes max_ratio x source + 10"""
    max_ratio: float = 2.0
    """most tokens for each of the source"""
    min_length: int = 0
    """fewest tokens an output may have, <eos> included"""
    min_ratio: float = 0.0
    """fewest tokens for each of the source"""
    no_repeat: int = 0
    """write no sequence of so many tokens twice; 0 allows it"""
    repetition: float = 1.0
    """multiply the log-probability of tokens that are written again"""
    prefix: str = ""
    """every output begins with this"""
    without: tuple[str, ...] = ()
    """words that no output may have; <unk> is one"""
    containing: tuple[str, ...] = ()
    """words that every output must have"""
    groups: int = 1
    """share the beam among so many groups that avoid each other's words"""
    diversity: float = 0.5
    """what a word costs a group for each prefix of the groups before it that took it"""
    ensemble: Literal["log", "linear"] = "log"
    """where several models write: the mean of log-probabilities, or of probabilities"""
    precision: Literal["trained", "float32", "bfloat16", "int8"] = "trained"
    """of the parameters: compute in float32 or bfloat16, or keep matrices as int8 with a scale for each column"""
    sampling: Sampling = Sampling()
    """draw at random instead"""

    def __post_init__(self):
        at_least(1, self, "search", "beam", "groups")
        at_least(0, self, "search", "max_length", "min_length", "min_ratio", "coverage", "no_repeat", "diversity")
        draws = self.sampling.count
        most, name = (draws, "search.sampling.count") if draws else (self.beam, "search.beam")
        require(
            1 <= self.nbest <= most,
            f"search.nbest {self.nbest} is not from 1 to {name} {most}: "
            f"raise the {name.rpartition('.')[2]} or lower nbest",
        )
        for name in ("max_ratio", "repetition"):
            require(getattr(self, name) > 0, f"search.{name} is {getattr(self, name)}: it must be above 0")
        require(
            self.max_length == 0 or self.min_length <= self.max_length,
            f"search.min_length {self.min_length} is above search.max_length {self.max_length}: lower it",
        )
        require(
            self.max_length > 0 or self.min_ratio <= self.max_ratio,
            f"search.min_ratio {self.min_ratio} is above search.max_ratio {self.max_ratio}: lower it",
        )
        require(
            self.beam % self.groups == 0,
            f"search.groups {self.groups} does not divide search.beam {self.beam}: "
            f"try beam {self.groups * max(1, round(self.beam / self.groups))}",
        )
        for name, usual in (("coverage", 0), ("groups", 1), ("stop", "bound")):
            value = getattr(self, name)
            require(
                value == usual or (self.beam > 1 and not draws),
                f"search.{name} {value} is of the beam alone: "
                + ("set search.sampling.count 0" if draws else "raise search.beam above 1"),
            )
