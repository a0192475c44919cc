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
class Train:
    steps: int = 10_000
    """updates in all; raise it and run again to go on"""
    micro_batches: int = 1
    """split each batch in so many parts, one after the other; the result is the same"""

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
