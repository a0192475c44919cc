"""Loggers: TensorBoard, Weights & Biases, MLflow, beside metrics.jsonl.

A thread feeds each of them, so that one that is slow, hangs or fails neither delays nor ends the training. Accounts,
servers and offline modes are set as these libraries document: `wandb login`, WANDB_MODE, MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from s2sjax.errors import UserError, nearest, one_line
from s2sjax.files import copy_folder, in_storage, replace_file
from s2sjax.training import multihost

FOLDER = "loggers"
"""folder of a run that says, for each logger, under which id it knows the run, and its last step"""
PATIENCE = 60.0
"""seconds that the end of a run waits for a logger"""
PUT_EVERY = 60.0
"""seconds after which the event files of TensorBoard are put into object storage again"""
_opening = threading.Lock()
"""the members of a sweep open their loggers at once, which these libraries do not expect"""


class Watched(NamedTuple):
    """A run, for a logger."""

    folder: Path
    step: int
    """last step before this start"""
    settings: Mapping[str, Any]
    """the experiment, by dotted name"""
    sweep: str | None
    """name of the sweep that the run is a member of"""
    id: str = ""
    """`id` of the logger that an earlier start has opened for this run, if any"""


class Logger:
    """Opens or continues the log of a run. A subclass is a row of LOGGERS."""

    package: ClassVar[str]
    """the module to import"""
    install: ClassVar[str]
    """the command that installs it"""
    rewinds: ClassVar[bool] = False
    """whether it removes the steps that run again itself; otherwise it is not given them twice"""
    id: str = ""
    """id under which a later start continues the log"""
    where: str = ""
    """where the log is, which is printed"""

    def __init__(self, run: Watched):
        raise NotImplementedError

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class TensorBoard(Logger):
    """Event files in RUN/tensorboard. In object storage, they are put there every minute and at the end."""

    package, install, rewinds = "tensorboardX", "pip install tensorboardX", True

    def __init__(self, run: Watched):
        from tensorboardX import SummaryWriter

        self._folder, self._put_at = run.folder / "tensorboard", time.monotonic()
        self._local = Path(tempfile.mkdtemp(prefix="s2sjax-")) if in_storage(run.folder) else self._folder
        # No limit: if its thread fails, as on a full disk, the queue is not emptied, and a full one blocks.
        self._events = SummaryWriter(str(self._local), purge_step=run.step + 1, max_queue=0)

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._events.add_scalar(name, value, step)
        if self._local != self._folder and time.monotonic() > self._put_at + PUT_EVERY:
            self._events.flush()
            self._put_at = time.monotonic()
            with contextlib.suppress(OSError):  # what fails is put the next time
                copy_folder(self._local, self._folder)

    def close(self) -> None:
        self._events.close()
        if self._local != self._folder:
            copy_folder(self._local, self._folder)
            shutil.rmtree(self._local)


class WandB(Logger):
    """Weights & Biases. Its own files are in RUN/wandb."""

    package, install = "wandb", 'pip install -e ".[wandb]"'

    def __init__(self, run: Watched):
        import wandb

        online = wandb.setup().settings.mode not in ("offline", "disabled")
        if online and not wandb.login(prompt=False, verify=False):  # a prompt would stop the training
            raise UserError("there is no API key: run wandb login, or set WANDB_MODE=offline")
        self.id = run.id or uuid.uuid4().hex
        project = os.environ.get("WANDB_PROJECT", "s2sjax")
        self._run = wandb.init(
            id=self.id, resume="allow", name=run.folder.name, group=run.sweep, project=project,
            dir=tempfile.mkdtemp(prefix="s2sjax-") if in_storage(run.folder) else run.folder,
            reinit="create_new", settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self._run.config.update(dict(run.settings), allow_val_change=True)
        self._run.define_metric("*", step_metric="step")  # its own step cannot repeat, as after an evaluation
        self.where = str(self._run.url if online else self._run.dir)

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()


class MLflow(Logger):
    """MLflow, by the client that leaves the active run of a notebook alone."""

    package, install = "mlflow", 'pip install -e ".[mlflow]"'

    def __init__(self, run: Watched):
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "s2sjax")
        if self._client.get_experiment_by_name(name) is None:
            with contextlib.suppress(Exception):  # another process makes it now
                self._client.create_experiment(name)
        experiment = self._client.get_experiment_by_name(name).experiment_id
        if run.id:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
        else:
            tags = {"sweep": run.sweep} if run.sweep else {}
            self.id = self._client.create_run(experiment, run_name=run.folder.name, tags=tags).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in run.settings.items()]
            for first in range(0, len(params), 100):  # at most 100 at once, of at most 500 characters
                self._client.log_batch(self.id, params=params[first : first + 100])
        self.where = f"run {self.id} of experiment {name}"

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        name = lambda key: re.sub(r"[^\w\-./ :]", "_", key)
        self._client.log_batch(self.id, [Metric(name(key), value, now, step) for key, value in numbers.items()])

    def close(self) -> None:
        self._client.set_terminated(self.id)


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""the loggers that train.loggers names; an experiment file may add its own"""


def check(names: Sequence[str]) -> None:
    """Raises for a logger that does not exist or cannot be imported. Only process 0 needs them."""
    for name in names:
        if name not in LOGGERS:
            known = ", ".join(LOGGERS)
            raise UserError(
                f"there is no logger {name!r}: did you mean {nearest(name, LOGGERS)!r}? (train.loggers: {known})"
            )
        if multihost.is_leader():
            try:
                importlib.import_module(LOGGERS[name].package)
            except Exception as error:  # a package that is too old for another may raise anything
                raise UserError(
                    f"train.loggers has {name}, which cannot be imported ({one_line(error)}): {LOGGERS[name].install}"
                ) from None


class Feed:
    """The thread of a logger. `say` prints one line if the logger fails; it is then dropped."""

    def __init__(self, name: str, run: Watched, say: Callable[[str], None]):
        self._name, self._run, self._say = name, run, say
        self._lines: queue.SimpleQueue[tuple[str, int, dict[str, float]] | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._feed, name=name, daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """Adds the numbers of a step. kind: what they are; each kind of a step is written once."""
        if not self._failed:
            self._lines.put((kind, step, numbers))

    def close(self) -> None:
        """Waits until everything is written, but not for ever."""
        self._lines.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._say(f"{self._name}: it has not taken its last metrics within {PATIENCE:.0f} s, and is left behind")

    def _feed(self) -> None:
        path = self._run.folder / FOLDER / f"{self._name}.json"
        try:
            state: dict[str, Any] = {"id": "", "steps": {}}
            state |= json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            with _opening:
                logger = LOGGERS[self._name](self._run._replace(id=state["id"]))
            keep = lambda: None if logger.rewinds else replace_file(path, json.dumps(state) + "\n")
            with contextlib.closing(logger):
                state["id"] = logger.id
                keep()
                if logger.where:
                    self._say(f"{self._name}: {logger.where}")
                while (line := self._lines.get()) is not None:
                    kind, step, numbers = line
                    if logger.rewinds or step > state["steps"].get(kind, 0):
                        state["steps"][kind] = step
                        keep()  # first: after a kill in between, the step is missing rather than there twice
                        logger.scalars(step, numbers)
        except Exception as error:
            self._failed = True
            reason = getattr(error, "strerror", None) or one_line(error) or type(error).__name__
            self._say(f"{self._name}: {reason}: the training goes on without it")
