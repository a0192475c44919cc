"""How it learns."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, require, settings


@settings
class Mesh:
    """How many ways each kind of parallelism splits the devices; `data` -1 takes what is left."""

    data: int = -1
    """copies of the model, each with its share of the batch"""
    fsdp: int = 1
    """parts that parameters and batch are cut into"""
    tensor: int = 1
    """parts that each matrix product is cut into"""


@settings
class ScheduledSampling:
    """The decoder reads the truth with probability p, else what it wrote itself: see s2sjax/core/scheduled.py."""

    schedule: Literal["none", "constant", "linear", "exponential", "inverse_sigmoid"] = "none"
    """how p falls; `none` is teacher forcing"""
    k: float = 1.0
    """at update i: constant p = k; linear 1 - i / k; exponential k^i; inverse_sigmoid k / (k + exp(i / k))"""
    floor: float = 0.0
    """p never falls below this"""
    feed: Literal["sample", "argmax"] = "sample"
    """read a token drawn from the model's distribution, or its likeliest"""

    def __post_init__(self):
        where = "train.scheduled_sampling"
        require(0 <= self.floor <= 1, f"{where}.floor is {self.floor}: it must be from 0 to 1")
        match self.schedule:
            case "constant":
                require(0 <= self.k <= 1, f"{where}.k is {self.k}: as a constant probability it must be from 0 to 1")
            case "exponential":
                require(0 < self.k < 1, f"{where}.k is {self.k}: k^i falls only for a k between 0 and 1")
            case "linear" | "inverse_sigmoid":
                require(self.k >= 1, f"{where}.k is {self.k}: for {self.schedule} it must be at least 1 (steps)")


@settings
class Softmax:
    """Over which words the output is normalised while training; evaluation always takes all of them."""

    samples: int = 0
    """sampled softmax: draw so many words a batch to estimate the normaliser; 0 takes all words"""
    distribution: Literal["log_uniform", "unigram"] = "log_uniform"
    """what they are drawn from: Zipf's law over the ids (frequent first), or the counts in the training text plus 1"""
    subset: int = 0
    """split the training text in parts with at most so many different target words, and take a part's words alone"""

    def __post_init__(self):
        at_least(0, self, "train.softmax", "samples", "subset")
        require(
            not (self.samples and self.subset),
            "train.softmax has both samples and subset: a part's words are all taken, so set one of them to 0",
        )


@settings
class Train:
    steps: int = 10_000
    """updates in all; raise it and run again to go on"""
    micro_batches: int = 1
    """split each batch in so many parts, one after the other; the result is the same"""
    remat: Literal["none", "products", "layers"] = "none"
    """keep everything for the backward pass, or only products or what enters each layer, and compute the rest again"""

    learning_rate: float = 1e-3
    """the peak of the schedule"""
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    """how the rate goes on after the warm-up"""
    warmup: int = 100
    """steps in which the rate climbs to its peak"""
    final_fraction: float = 0.0
    """the cosine schedule ends at this fraction of the peak"""
    b1: float = 0.9
    """Adam's decay of the gradient's mean"""
    b2: float = 0.98
    """Adam's decay of the gradient's square"""
    eps: float = 1e-9
    """Adam's guard against dividing by zero"""
    weight_decay: float = 0.0
    """of matrices, times the learning rate"""
    clip: float = 1.0
    """largest global norm of the gradient; 0 clips nothing"""
    label_smoothing: float = 0.0
    """probability spread over the whole vocabulary"""
    scheduled_sampling: ScheduledSampling = ScheduledSampling()
    """learn from the model's own outputs"""
    softmax: Softmax = Softmax()
    """for large target vocabularies"""
    ema: float = 0.0
    """decay of an exponential moving average of the parameters, used to evaluate; 0 keeps none"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the computation; parameters, softmax, norms, logits and loss stay float32"""
    mesh: Mesh = Mesh()
    """how the work is shared among devices"""

    log_every: int = 50
    """steps between lines of metrics.jsonl"""
    evaluate_every: int = 1000
    """steps between evaluations on dev; 0 never"""
    save_every: int = 1000
    """steps between checkpoints, besides the last step and a SIGTERM"""
    keep: int = 2
    """newest checkpoints kept, besides the best"""
    patience: int = 0
    """stop after so many evaluations without a better score; 0 never"""
    max_skipped: int = 5
    """so many non-finite steps in a row end the run"""

    def __post_init__(self):
        at_least(1, self, "train", "steps", "micro_batches", "log_every", "save_every", "keep", "max_skipped")
        at_least(0, self, "train", "warmup", "weight_decay", "clip", "evaluate_every", "patience")
        for name in ("learning_rate", "eps"):
            require(getattr(self, name) > 0, f"train.{name} is {getattr(self, name)}: it must be above 0")
        for name in ("b1", "b2", "ema", "label_smoothing"):
            require(0 <= getattr(self, name) < 1, f"train.{name} is {getattr(self, name)}: it must be in [0, 1)")
        require(0 <= self.final_fraction <= 1, f"train.final_fraction is {self.final_fraction}: it must be from 0 to 1")
        require(
            self.patience == 0 or self.evaluate_every > 0,
            "train.patience needs evaluations: set train.evaluate_every",
        )
        if self.softmax.samples or self.softmax.subset:
            field = "train.softmax.samples" if self.softmax.samples else "train.softmax.subset"
            require(
                self.label_smoothing == 0,
                f"train.label_smoothing spreads over all words, which {field} does not look at: set one of them to 0",
            )
            require(
                self.scheduled_sampling.schedule == "none",
                f"train.scheduled_sampling needs the output of all words, which {field} does not look at: drop one",
            )
