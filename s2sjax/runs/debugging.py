"""Trains a few steps without jit: `s2sjax train FILE --debug`.

Every operation runs by itself, and loops are Python loops, so `print` and `pdb` see numbers. If the loss or gradient
is not finite, the run ends with an error that names the step, the layer and the line of the first NaN. One device is
used, and nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.data.batching import batch_plan
from s2sjax.errors import UserError
from s2sjax.runs import initial_settings
from s2sjax.runs.train_run import make_init_fn
from s2sjax.tasks.task import task_of
from s2sjax.training import jax_settings
from s2sjax.training.heartbeat import working
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import make_train_step

STEPS = 3


def debug(experiment: config.Experiment, report: Callable[[str], None]) -> None:
    """Trains `STEPS` steps, and reports the loss and time of each. Raises UserError at the first NaN."""
    jax_settings.check()
    task: Any = task_of(experiment)
    with working("reading the data"):
        data = task.read()
        task = task.replace(task.resolve_defaults(data), initial_settings.assets_of(task, data))
        task.check_examples("train", data)
        columns = task.columns(data)
    e = task.experiment
    plan = task.plan(columns, e.train.grad_accum_steps)
    state = jax.jit(make_init_fn(task, plan.rows[0]))(jax.random.key(e.seed))
    step = make_train_step(task.loss(columns), optimizer(e.train), e.train, e.seed)
    report(f"{e.name}: {task.model_name}, debugging {STEPS} steps without jit on one device")
    for number in range(1, STEPS + 1):
        batch = jax.device_put(batch_plan.make_batch(columns, plan, number - 1))
        began = time.perf_counter()
        with _debugged(number, nans=False):
            after, metrics = step(state, batch)
        (total, weight), norm = jax.device_get((metrics["loss"], metrics["grad_norm"]))
        if not (np.isfinite(total) and np.isfinite(norm)):  # only now: some NaNs are masked, as in a loss like CTC
            with _debugged(number, nans=True):
                step(state, batch)
        state = after
        loss = float(total) / max(float(weight), 1e-30)
        note = "" if np.isfinite(loss) else ", not finite: training would skip this step"
        report(f"step {number}: loss {loss:.4g}{note}, {time.perf_counter() - began:.1f} s")
    report(f"debugging is finished: no NaN in {STEPS} steps; nothing was written")


@contextlib.contextmanager
def _debugged(step: int, nans: bool) -> Iterator[None]:
    """Runs a step without jit and without attention kernels. nans: raises UserError at the first NaN."""
    before = os.environ.get(device.ATTENTION)
    os.environ[device.ATTENTION] = "xla"
    layers = _Layers()
    try:
        with jax.disable_jit(), jax.debug_nans(nans), nn.intercept_methods(layers.call):
            yield
    except FloatingPointError as error:
        # In the backward pass, JAX gives the frames of the forward operation as the cause.
        found, place = jax_settings.reason(error), jax_settings.place_of(error.__cause__ or error, __file__)
        raise UserError(f"step {step}: {found} in {layers.describe()} ({place})") from error
    finally:
        os.environ.pop(device.ATTENTION)
        if before is not None:
            os.environ[device.ATTENTION] = before


class _Layers:
    """Keeps track of the layer that runs, by its Flax module path."""

    def __init__(self) -> None:
        self._failed = self._backward = ""

    def describe(self) -> str:
        if self._failed:
            return f"the layer {self._failed}"
        return f"the gradient of the layer {self._backward}" if self._backward else "the loss or the update"

    def call(self, method: Any, arguments: Any, options: Any, context: nn.module.InterceptorContext) -> Any:
        """Calls a method of a layer, and marks its inputs and outputs for the backward pass, which enters at these."""
        *parents, _ = path = context.module.path or (type(context.module).__name__,)
        arguments = self._marked("/".join(parents), arguments)
        try:
            return self._marked("/".join(path), method(*arguments, **options))
        except FloatingPointError:
            self._failed = self._failed or "/".join(path)  # the innermost
            raise

    def _marked(self, layer: str, arrays: Any) -> Any:
        """The same arrays. The backward pass runs the operations of `layer` when it has reached them."""

        @jax.custom_vjp
        def mark(array: jax.Array) -> jax.Array:
            return array

        def backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
            self._backward = layer
            return (gradient,)

        mark.defvjp(lambda array: (array, None), backward)
        is_float = lambda leaf: isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return jax.tree.map(lambda leaf: mark(leaf) if is_float(leaf) else leaf, arrays)
