"""Functions that tests/training/test_failures.py runs in processes that are killed, or lack space or permissions.

They are forked by multiprocessing's fork server, which has imported this module, hence JAX and Orbax, but has started
none of their threads: a life begins in milliseconds instead of seconds, and forking is safe.
"""

import contextlib
import io
import os
import resource
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint  # noqa: F401  here, while the files of Python can be read: the library imports it late

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import loop, optimizers, run_log, train_state
from s2sjax.training.checkpoints.manager import Checkpoints

KEEP, EVERY = 2, 3


def begin(function, cache: Path, *arguments) -> None:
    """Runs a function with a separate compilation cache, because a kill may also truncate what is written there."""
    server = Path(f"/proc/{os.getppid()}/task")
    assert not server.exists() or len(list(server.iterdir())) == 1, "a process of many threads cannot be forked safely"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    function(*arguments)


def state_at(step: int) -> train_state.TrainState:
    """A state whose numbers depend on its step."""
    values = (np.arange(256 * 512, dtype=np.float32) + 1000 * step).reshape(256, 512)
    optimizer = {"mean": values + 0.25, "count": np.int32(step)}
    return jax.device_put(
        train_state.TrainState(np.int32(step), {"net": values}, optimizer, None, np.int32(0), np.int32(0))
    )


def open_and_restore(folder: Path) -> tuple[Checkpoints, int]:
    """Opens the folder and restores the newest checkpoint, which must be, bit for bit, the state of its step."""
    checkpoints = Checkpoints(folder, KEEP)
    found = checkpoints.restore(state_at(0))
    if found is None:
        return checkpoints, 0
    jax.tree.map(np.testing.assert_array_equal, found[0], state_at(found[1]))
    return checkpoints, found[1]


def live(mouth: Connection, folder: Path) -> None:
    """Continues from the newest checkpoint without end; sends ("restored" | "saving" | "saved", step, names)."""
    checkpoints, step = open_and_restore(folder)
    mouth.send(("restored", step, os.listdir(folder)))
    while True:
        step += 1
        time.sleep(0.01)
        checkpoints.check()
        if step % EVERY == 0:
            mouth.send(("saving", step, []))
            checkpoints.save(state_at(step), step)
            mouth.send(("saved", step, os.listdir(folder)))


def live_on(mouth: Connection, folder: Path) -> None:
    """Restores, saves one more step and ends normally."""
    checkpoints, step = open_and_restore(folder)
    mouth.send(("restored", step, os.listdir(folder)))
    checkpoints.save(state_at(step + 1), step + 1)
    checkpoints.close()
    mouth.send(("closed", step + 1, os.listdir(folder)))


def replace(mouth: Connection, folder: Path) -> None:
    """Saves one state after the other as step 20; sends ("saving" | "saved", number, [])."""
    checkpoints = Checkpoints(folder, KEEP)
    for number in count(21):
        mouth.send(("saving", number, []))
        checkpoints.save(state_at(number)._replace(step=jnp.int32(20)), 20)
        checkpoints.wait()
        mouth.send(("saved", number, []))


def run_out_of_space(mouth: Connection, folder: Path) -> None:
    """Trains for 300 steps, saving every 100, on a disk that is full from step 150 on."""
    train = config.Train(steps=300, learning_rate=0.05, warmup_steps=0, evaluate_every=0, save_every=100, log_every=100)
    optimizer = optimizers.optimizer(train)
    init = lambda: train_state.create({"w": jax.random.normal(jax.random.key(0), (100_000,))}, optimizer)
    loss = lambda params, batch, key, step: {"loss": (jnp.sum((params["w"] - batch["x"]) ** 2), jnp.float32(1))}
    checkpoints = Checkpoints(folder / "checkpoints")
    batch = 0

    def batches(step: int) -> Iterator[tuple[int, dict]]:
        nonlocal batch
        for batch in range(step, train.steps):
            while batch in (150, 200) and checkpoints._manager.is_saving_in_progress():
                time.sleep(0.01)
            if batch == 150:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            yield batch, {"x": np.float32(0)}

    log = run_log.Log(folder, train.steps, train.log_every)
    step = train_state.make_train_step(loss, optimizer, train, seed=0)
    options = dict(template=jax.eval_shape(init), init=init, train=train, checkpoints=checkpoints, log=log)
    with contextlib.redirect_stdout(io.StringIO()):
        said = _attempt(lambda: loop.fit(step, batches, **options))
    mouth.send((said, batch, Checkpoints(folder / "checkpoints", read_only=True).steps()))


def lack_rights(mouth: Connection, folders: list[Path]) -> None:
    """Opens each folder as a user who is not its owner. Root ignores permissions, so it becomes nobody."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for folder in folders:
        training = _attempt(lambda folder=folder: open_and_restore(folder)[1])
        decoding = _attempt(lambda folder=folder: Checkpoints(folder, read_only=True).restore_params()[1])
        mouth.send((training, decoding))


def _attempt(action):
    try:
        return action()
    except UserError as error:
        return str(error)
