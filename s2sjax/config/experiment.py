"""The settings that all experiments share.

An experiment file builds one `experiment`: an instance of its task's own class, such as `tasks.Translation`, which
inherits from `Experiment`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from s2sjax.config.paths import AnyPath
from s2sjax.config.settings import require, settings
from s2sjax.config.training import Train
from s2sjax.errors import UserError


@settings
class Experiment:
    """An experiment: data, model, training and evaluation. A task narrows the types of data, model and evaluate.

    `data` has at least `buckets`, `batch_tokens` and `prefetch`; `evaluate` has `dev_examples` and `samples`, the
    numbers of dev examples that are predicted and shown at each evaluation.
    """

    name: str
    """name of the run; its folder is runs/NAME"""
    _: KW_ONLY
    data: Any = None
    """training and evaluation data"""
    model: Any = None
    """model to train"""
    train: Train = Train()
    """training settings"""
    evaluate: Any = None
    """evaluation settings"""
    seed: int = 0
    """seed of the initial parameters, the order of the examples, their random changes, and dropout"""
    data_seed: int | None = None
    """seed of the order of the examples and their random changes, if it is another; None for seed"""
    init: AnyPath = ""
    """folder of the run to fine-tune, relative to the experiment file: settings of the model and the vocabularies that
    are left at their defaults, the vocabularies and the initial parameters are taken from it"""

    decode_fields: ClassVar[tuple[str, ...]] = ()
    """fields that `s2sjax decode RUN` may change"""
    evaluate_fields: ClassVar[tuple[str, ...]] = ("evaluate",)
    """fields that `s2sjax evaluate RUN` may change"""
    free_fields: ClassVar[tuple[str, ...]] = ()
    """dotted names of fields that may change between two starts of one run, in addition to those of `train`"""
    init_fields: ClassVar[tuple[str, ...]] = ("model",)
    """dotted names of the fields that are taken from the run `init`: the model, and what its vocabularies depend on"""
    offered_fields: ClassVar[tuple[str, ...]] = ()
    """dotted names of the fields that experiments of other classes take from a run of this one, if they have them"""
    sized_by_data: ClassVar[tuple[str, ...]] = ()
    """fields of `model` that depend on the size of the data if they are 0 (`Task.resolve_defaults`)"""

    @property
    def order_seed(self) -> int:
        """The seed of the order of the examples and their random changes."""
        return self.seed if self.data_seed is None else self.data_seed

    def task(self) -> Any:
        """The `tasks.Task` of this experiment, without assets."""
        raise UserError(f"{type(self).__name__} defines no task(): return the Task of this experiment from it")

    def refuse_train(self, what: str, *names: str) -> None:
        """Raises if fields of `train` that have no effect on this task are set. what: the task, "a regression"."""
        for name in names:
            require(
                getattr(self.train, name) == getattr(Train(), name),
                f"train.{name} applies to translation, and {what} does not use it: leave it out",
            )

    def check_name(self) -> None:
        require(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\\0"),
            f"name is {self.name!r}: it must be the name of a folder, because the run goes to runs/NAME",
        )
