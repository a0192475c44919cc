"""Training settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from s2sjax.config.settings import at_least, must_be, require, settings
from s2sjax.errors import UserError

# Short names of import paths; any other function is given by its import path. See s2sjax/training/optimizers.py.
OPTIMIZERS = {
    "adam": "optax.adam", "adamw": "optax.adamw", "adafactor": "optax.adafactor", "lion": "optax.lion",
    "muon": "optax.contrib.muon", "sgd": "optax.sgd",
}  # fmt: skip
SCHEDULES = {
    name: f"s2sjax.training.optimizers.{name}" for name in ("cosine", "linear", "inverse_sqrt", "constant", "wsd")
}


EPOCHS, FEWEST, MOST = 20, 500, 10_000
"""number of epochs, and the minimum and maximum number of updates, if train.steps is not set"""
SIZED_BY_DATA = ("steps", "evaluate_every", "save_every")
"""fields that depend on the size of the data if train.steps is not set"""


@settings
class Mesh:
    """The device mesh. `data` -1 uses all devices that the other axes do not use.

    Of several slices of TPUs, each has its own fsdp, tensor and context: only data crosses the network between them.
    """

    data: int = -1
    """data parallelism: number of copies of the model, each with a part of the batch"""
    fsdp: int = 1
    """fully sharded data parallelism: number of parts of the parameters and the batch"""
    tensor: int = 1
    """tensor parallelism: number of parts of each matrix product"""
    context: int = 1
    """context parallelism: number of parts of each sequence, for long inputs"""


@settings
class ScheduledSampling:
    """Scheduled sampling: the decoder reads the true token with probability p, otherwise its own prediction.

    See s2sjax/core/losses/scheduled_sampling.py.
    """

    schedule: Literal["none", "constant", "linear", "exponential", "inverse_sigmoid"] = "none"
    """schedule by which p decreases; `none` is teacher forcing"""
    k: float = 1.0
    """parameter of p at update i: constant k; linear 1 - i / k; exponential k^i; inverse_sigmoid k / (k + e^(i / k))"""
    floor: float = 0.0
    """minimum of p"""
    feed: Literal["sample", "argmax"] = "sample"
    """prediction to read: a token sampled from the model's distribution, or the most likely one"""

    def __post_init__(self):
        where = "train.scheduled_sampling"
        must_be("from 0 to 1", self, where, "floor")
        match self.schedule:
            case "constant":
                require(0 <= self.k <= 1, f"{where}.k is {self.k}: for constant it must be from 0 to 1")
            case "exponential":
                require(0 < self.k < 1, f"{where}.k is {self.k}: for exponential it must be between 0 and 1")
            case "linear" | "inverse_sigmoid":
                require(self.k >= 1, f"{where}.k is {self.k}: for {self.schedule} it must be at least 1")


@settings
class Softmax:
    """The words over which the softmax is normalised during training. Evaluation always uses all words."""

    samples: int = 0
    """sampled softmax: number of words sampled per batch to estimate the normaliser; 0 for all words"""
    distribution: Literal["log_uniform", "unigram"] = "log_uniform"
    """sampling distribution: Zipf's law over the ids (frequent first), or the counts in the training text plus 1"""
    subset: int = 0
    """maximum number of target words per part of the training text; the softmax uses only those; 0 for no parts"""

    def __post_init__(self):
        at_least(0, self, "train.softmax", "samples", "subset")
        require(not (self.samples and self.subset), "train.softmax has both samples and subset: set one of them to 0")


@settings
class Train:
    """Optimization, checkpoints and evaluations during training."""

    steps: int = 0
    """total number of updates; to train longer, raise it and run again; 0 for 20 epochs, at least 500 and at most
    10,000 updates, with ten evaluations and checkpoints unless their intervals are set"""
    grad_accum_steps: int = 1
    """number of parts of a batch that are computed one after another to save memory; the result is the same"""
    remat: Literal["none", "products", "layers"] = "none"
    """activations saved for the backward pass: all, only matrix products, or only the inputs of layers"""

    learning_rate: float = 1e-3
    """peak learning rate"""
    schedule: str = "cosine"
    """learning rate schedule: cosine, linear, inverse_sqrt, constant, wsd, or an import path"""
    schedule_args: tuple[str, ...] = ()
    """other arguments of the schedule as name=value, such as decay=0.1 for wsd"""
    schedule_steps: int = 0
    """length of the schedule in steps; 0 for train.steps when the run starts"""
    warmup_steps: int = 100
    """number of warmup steps"""
    final_fraction: float = 0.0
    """learning rate at the end of cosine, linear and wsd, as a fraction of the peak"""
    optimizer: str = "adamw"
    """adam, adamw, adafactor, lion, muon (adam for non-matrices), sgd, or an import path such as optax.lamb"""
    optimizer_args: tuple[str, ...] = ()
    """other arguments of the optimizer as name=value, such as momentum=0.9"""
    b1: float | None = None
    """decay rate of the first moment; None for the optimizer's own, 0.9 for adam"""
    b2: float | None = None
    """decay rate of the second moment; None for the optimizer's own, 0.98 for adam"""
    eps: float | None = None
    """constant against division by zero; None for the optimizer's own, 1e-9 for adam"""
    weight_decay: float = 0.0
    """weight decay of matrices, multiplied by the learning rate; for every optimizer except adam"""
    clip_norm: float = 1.0
    """maximum global norm of the gradient; 0 for no clipping"""
    frozen: tuple[str, ...] = ()
    """regular expressions of the paths of parameters that do not change, such as ^encoder/ or embedding"""
    layer_decay: float = 1.0
    """factor of the learning rate from each layer to the one below it, of the encoder and of the decoder; embeddings
    are below the lowest layer (Howard and Ruder 2018; Clark et al. 2020); 1 for none"""
    label_smoothing: float = 0.0
    """probability distributed over the whole vocabulary"""
    r_drop: float = 0.0
    """weight of the divergence between two predictions with different dropout (R-Drop, Liang et al. 2021), which
    doubles the cost of a step; 5 is usual for translation, 0 for none"""
    scheduled_sampling: ScheduledSampling = ScheduledSampling()
    """training on the model's own predictions"""
    softmax: Softmax = Softmax()
    """approximations of the softmax for large target vocabularies"""
    ema: float = 0.0
    """decay of an exponential moving average of the parameters, used for evaluation; 0 for none"""
    average_from: int = 0
    """first step of a running mean of the parameters, used for evaluation (averaged SGD); 0 for none"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the computation; parameters, softmax, norms, logits and loss stay float32"""
    mesh: Mesh = Mesh()
    """parallelism over devices"""

    log_every: int = 50
    """steps between lines of metrics.jsonl"""
    loggers: tuple[str, ...] = ("tensorboard",)
    """where the numbers of metrics.jsonl also go: tensorboard, wandb, mlflow; see s2sjax/training/loggers.py"""
    evaluate_every: int = 1000
    """steps between evaluations on dev; 0 for none"""
    save_every: int = 1000
    """steps between checkpoints; one is also saved at the last step, on SIGTERM and on Ctrl-C"""
    max_to_keep: int = 2
    """number of latest checkpoints to keep, in addition to the best one"""
    patience: int = 0
    """number of evaluations without improvement after which training stops; 0 for no limit"""
    max_skipped: int = 5
    """number of consecutive non-finite steps after which training stops"""

    def __post_init__(self):
        at_least(1, self, "train", "grad_accum_steps", "log_every", "save_every", "max_to_keep", "max_skipped")
        at_least(0, self, "train", "steps", "warmup_steps", "schedule_steps", "evaluate_every", "patience")
        at_least(0, self, "train", "weight_decay", "clip_norm", "average_from", "r_drop")
        must_be("above 0", self, "train", "learning_rate", "eps")
        must_be("in [0, 1)", self, "train", "b1", "b2", "ema", "label_smoothing")
        must_be("from 0 to 1", self, "train", "final_fraction")
        must_be("above 0 and at most 1", self, "train", "layer_decay")
        self._check_frozen()
        require(
            self.ema == 0 or self.average_from == 0,
            "train has both ema and average_from, which both average the parameters: set one of them to 0",
        )
        self._check_functions()
        require(
            self.patience == 0 or self.evaluate_every > 0,
            "train.patience requires evaluations: set train.evaluate_every above 0",
        )
        if self.softmax.samples or self.softmax.subset:
            field = "train.softmax.samples" if self.softmax.samples else "train.softmax.subset"
            sampled = self.scheduled_sampling.schedule != "none"
            used = {"label_smoothing": self.label_smoothing, "scheduled_sampling": sampled, "r_drop": self.r_drop}
            for name, value in used.items():
                require(
                    not value, f"train.{name} requires the softmax over all words, but {field} is set: turn one off"
                )
        require(
            self.r_drop == 0 or self.scheduled_sampling.schedule == "none",
            "train has both r_drop and scheduled_sampling: turn one off",
        )

    def resolve_defaults(self, epoch: int) -> Train:
        """Replaces `steps` 0, and intervals that are not set, by values for data with `epoch` updates per epoch."""
        if self.steps:
            return self
        steps = min(max(EPOCHS * epoch, FEWEST), MOST)
        often: dict[str, Any] = {
            name: steps // 10 for name in SIZED_BY_DATA[1:] if getattr(self, name) == getattr(Train, name)
        }
        return replace(self, steps=steps, **often)

    @property
    def averages(self) -> bool:
        """Whether training maintains and evaluates an average of the parameters."""
        return self.ema > 0 or self.average_from > 0

    def _check_frozen(self) -> None:
        for pattern in self.frozen:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"train.frozen {pattern!r} is no regular expression ({error}): correct it") from None

    def _check_functions(self) -> None:
        for field, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            name = getattr(self, field)
            require(
                name in known or "." in name.strip("."),
                f"train.{field} is {name!r}: it must be one of {', '.join(known)}, or an import path such as "
                "package.module.function",
            )
            for argument in getattr(self, f"{field}_args"):
                require(
                    argument.partition("=")[0].isidentifier() and "=" in argument,
                    f"train.{field}_args has {argument!r}: write name=value",
                )
        require(
            self.optimizer != "adam" or self.weight_decay == 0,
            f"train.weight_decay is {self.weight_decay}, but adam has none: set train.optimizer to adamw",
        )
        require(
            self.final_fraction == 0 or self.schedule not in ("inverse_sqrt", "constant"),
            f"train.final_fraction is {self.final_fraction}, but the schedule {self.schedule} has no end: set it to 0",
        )
