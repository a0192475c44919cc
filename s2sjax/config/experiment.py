"""What every experiment has, whatever its task.

An experiment file builds one `experiment`: an instance of its task's own class, such as `tasks.Translation`, which
inherits from `Experiment`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from s2sjax.config.settings import require
from s2sjax.config.training import Train
from s2sjax.errors import UserError


class Experiment:
    """One page of a lab notebook. A subclass is a dataclass (see config/settings.py) with at least these fields.

    `data` has at least `buckets`, `tokens` and `prefetch`; `evaluate` has `lines` and `samples`, the numbers of dev
    examples that are predicted and shown at each evaluation.
    """

    name: str
    """the run goes to runs/NAME"""
    data: Any
    """what to learn from"""
    model: Any
    """what learns"""
    train: Train
    """how it learns"""
    evaluate: Any
    """how it is judged"""
    seed: int
    """of the initial parameters, the order of the examples, and dropout"""

    decode_fields: ClassVar[tuple[str, ...]] = ()
    """fields that `s2sjax decode RUN` may change"""
    evaluate_fields: ClassVar[tuple[str, ...]] = ("evaluate",)
    """fields that `s2sjax evaluate RUN` may change"""
    free_fields: ClassVar[tuple[str, ...]] = ()
    """dotted names that may change between two starts of one run, besides those of `train`"""

    sized_by_data: ClassVar[tuple[str, ...]] = ()
    """fields of `model` that follow the size of the data where they are 0 (`Task.resolve_defaults`)"""

    def task(self) -> Any:
        """The `tasks.Task` of this experiment, before it has any assets."""
        raise UserError(f"{type(self).__name__} defines no task(): return the Task of this experiment from it")

    def refuse_train(self, what: str, *names: str) -> None:
        """Refuses fields of `train` that have no effect on this task. `what` the task is: "a regression"."""
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
