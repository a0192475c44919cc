"""The runner: one training loop for every model and task.

schedules     step -> learning rate; the optimizer
functions     functions that settings name by import path
state         TrainState and the pure train_step
hosts         multi-process runs
mesh          the device mesh, and the sharding of each parameter
memory        what each device holds, and what a step adds
fingerprints  checksums of sharded arrays
damage        what counts as damage to a checkpoint
transfer      parameters of another run as the start of this one
checkpoints   saved completely or not at all, and verified when read
progress      the progress line, metrics.jsonl, nonfinite.jsonl, samples.txt, TensorBoard
preemption    SIGTERM and Ctrl-C
loop          fit: restore, evaluate, save, batch, step, log
"""

import sys
from types import ModuleType
from typing import Any

import s2sjax

_train = s2sjax.train


class _CallableModule(ModuleType):
    """`s2sjax.train(experiment, folder)` trains. Importing this package gives its name, s2sjax.train, to the package
    itself: a call of it is a call of that function.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _train(*arguments, **named)


sys.modules[__name__].__class__ = _CallableModule
