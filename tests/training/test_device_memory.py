"""Device memory, counted by hand: two matrices of 4 kB, a bias, Adam's two moments of each, an average."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config
from s2sjax.training import device_memory, loop, mesh, optimizers, run_log, train_state
from s2sjax.training.device_memory import Memory

TRAIN = config.Train(steps=1, evaluate_every=0, ema=0.9)
RULES = (("in/kernel", (None, "tensor")), ("in/bias", ("tensor",)), ("out/kernel", ("tensor", None)))
ROWS, WIDTH, HIDDEN = 16, 16, 64
KERNEL, BIAS, ROW = 4 * WIDTH * HIDDEN, 4 * HIDDEN, 4 * WIDTH  # bytes
COUNTERS = 4 * 5  # step, skipped, skipped_total; the update counts of Adam and of the schedule


def init():
    params = {
        "in": {"kernel": jnp.ones((WIDTH, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "out": {"kernel": jnp.ones((HIDDEN, WIDTH))},
    }
    return train_state.create(params, optimizers.optimizer(TRAIN), ema=True)


def loss(params, batch, key, step):
    hidden = jax.nn.relu(batch["x"] @ params["in"]["kernel"] + params["in"]["bias"])
    error = (hidden @ params["out"]["kernel"] - batch["x"]) ** 2
    return {"loss": (error.sum(), jnp.float32(ROWS))}


def batches(start):
    while True:
        yield start, {"x": np.ones((ROWS, WIDTH), np.float32)}
        start += 1


TRAIN_STEP = train_state.make_train_step(loss, optimizers.optimizer(TRAIN), TRAIN, seed=0)


@pytest.mark.parametrize(
    "shape, parameters, batch",
    [
        (config.Mesh(data=8), 2 * KERNEL + BIAS, ROWS * ROW // 8),
        (config.Mesh(fsdp=8), 2 * KERNEL // 8 + BIAS // 8, ROWS * ROW // 8),
        (config.Mesh(data=4, tensor=2), 2 * KERNEL // 2 + BIAS // 2, ROWS * ROW // 4),
    ],
    ids=["data 8", "fsdp 8", "tensor 2"],
)
def test_the_numbers_are_those_counted_by_hand(shape, parameters, batch):
    where = mesh.make_mesh(shape)
    begin = mesh.init_sharded(init, where, RULES if shape.tensor > 1 else (), min_size=1)
    rows = mesh.global_batch(next(batches(0))[1], where)
    program = jax.jit(TRAIN_STEP, donate_argnums=0).lower(begin, rows).compile()
    found, analysis = device_memory.measure(begin, rows, program), program.memory_analysis()
    assert found is not None
    assert found[:4] == (parameters, 2 * parameters + COUNTERS, parameters, batch)
    assert sum(found[:4]) == analysis.argument_size_in_bytes
    assert found.step >= analysis.temp_size_in_bytes > 0


def test_it_is_told_once_before_the_first_step(capsys):
    where = mesh.make_mesh(config.Mesh(data=2, fsdp=4))
    template = mesh.abstract_state(init, where, min_size=1)
    start = lambda: mesh.init_sharded(init, where, min_size=1)
    log = run_log.Log(None, 1, 1)
    options = dict(template=template, init=start, train=TRAIN, log=log, mesh=where)
    loop.fit(TRAIN_STEP, batches, shapes=[next(batches(0))[1]], **options)
    compiled, named, held, step, spent = capsys.readouterr().out.splitlines()
    assert compiled.startswith("compiled") and step.startswith("step 1/1") and spent.startswith("steps took ")
    assert named == "mesh: data 2 x fsdp 4 x tensor 1 on 8 cpu devices, 1 host"
    assert held.startswith(
        "each device holds parameters 2.1 kB, optimizer 4.2 kB, average 2.1 kB; a step adds batch 0.1 kB, activations "
    )


def test_one_device_has_no_mesh_and_a_limit_is_told_where_it_is_known():
    needs = Memory(parameters=4_000_000, optimizer=8_000_000, average=0, batch=30_000, step=345_600_000)
    (line,) = device_memory.describe(needs, mesh.make_mesh(config.Mesh(), jax.devices()[:1]), 24 * 10**9)
    held = "the device holds parameters 4.0 MB, optimizer 8.0 MB"
    assert line == f"{held}; a step adds batch 30 kB, activations 346 MB: 358 MB of 24 GB"


def test_what_does_not_fit_is_warned_of():
    needs = Memory(parameters=2 * 10**9, optimizer=4 * 10**9, average=2 * 10**9, batch=10**6, step=24 * 10**9)
    *_, warning = device_memory.describe(needs, None, 24 * 10**9)
    assert warning == (
        "warning: 32 GB is more than the 24 GB of a device: raise train.grad_accum_steps or train.mesh.fsdp, "
        "or set train.remat layers"
    )


def test_a_backend_that_tells_nothing_is_passed_over():
    class Silent:
        def memory_analysis(self):
            return None

    assert device_memory.measure(init(), {}, Silent()) is None
