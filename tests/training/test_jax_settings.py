"""JAX settings that a user makes around training reach every thread, or are refused by name."""

import contextlib
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.serve.engine import Engine
from s2sjax.tasks import Translation
from s2sjax.training import jax_settings, loop, optimizers
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import create, make_train_step

TRAIN = config.Train(steps=3, learning_rate=0.05, warmup_steps=0, evaluate_every=0, log_every=1, clip_norm=0.0)
OPTIMIZER = optimizers.optimizer(TRAIN)
MANAGERS = {
    "default_matmul_precision": "highest",
    "debug_nans": True,
    "debug_infs": True,
    "disable_jit": True,
    "enable_x64": True,
    "threefry_partitionable": False,
    "default_prng_impl": "rbg",
    "numpy_rank_promotion": "raise",
    "numpy_dtype_promotion": "strict",
    "log_compiles": True,
    "transfer_guard": "log",
    "transfer_guard_host_to_device": "log",
    "default_device": "cpu",
}


def init():
    return create({"w": jnp.ones((4, 4)) / 8}, OPTIMIZER)


def batches(start):
    for number in range(start, TRAIN.steps):
        yield number, {"x": np.random.default_rng(number).normal(size=(2, 4)).astype(np.float32)}


def loss(params, batch, key, step):
    return {"loss": (((batch["x"] @ params["w"] - 1) ** 2).sum(), jnp.float32(len(batch["x"])))}


def fit(loss=loss, shapes=()):
    step = make_train_step(loss, OPTIMIZER, TRAIN, seed=7)
    return loop.fit(step, batches, template=jax.eval_shape(init), init=init, train=TRAIN, shapes=shapes).state


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.parametrize("name", MANAGERS)
def test_a_thread_sees_every_setting_of_its_caller(name):
    """Settings may be nested. The thread keeps its own settings afterwards."""
    plain = dict(jax.config.values)
    with jax.transfer_guard("allow"), getattr(jax, name)(MANAGERS[name]):
        mine = dict(jax.config.values)
        assert mine[f"jax_{name}"] != plain[f"jax_{name}"]
        assert in_a_thread(lambda: dict(jax.config.values)) != mine
        seen = jax_settings.inherit(lambda: dict(jax.config.values))
    assert in_a_thread(seen) == mine
    assert in_a_thread(lambda: (seen(), dict(jax.config.values)))[1] == plain


def test_a_thread_sees_the_context_variables_of_its_caller():
    with device.force_scan_unroll(7):
        seen = jax_settings.inherit(device.scan_unroll)
        assert in_a_thread(device.scan_unroll) == 1
    assert in_a_thread(seen) == 7 and device.scan_unroll() == 1


@pytest.mark.parametrize("precision", [None, "highest"])
def test_a_train_step_has_the_precision_of_its_caller(precision):
    programs = Programs(make_train_step(loss, OPTIMIZER, TRAIN, seed=7), jax.eval_shape(init))
    (_, batch) = next(batches(0))
    with jax.default_matmul_precision(precision):
        programs.prepare([batch], log := Log(None, 1, 1))
    programs.wait(batch, log)
    (program,) = programs._programs.values()
    assert ("operand_precision={highest,highest}" in program.as_text()) is (precision == "highest")


def test_an_engine_answers_under_the_settings_of_its_maker():
    with jax.default_matmul_precision("highest"):
        engine = Engine(lambda items: lambda: [jax.config.jax_default_matmul_precision for _ in items], [1], waiting=1)
    with contextlib.closing(engine):
        engine.start()
        assert engine.submit(["a"]).result(60) == ["highest"]


def test_a_nan_is_found_in_its_step_and_its_line():
    def dividing(params, batch, key, step):
        found = loss(params, batch, key, step)["loss"]
        return {"loss": (found[0] + jnp.where(step == 1, 0.0, 1.0) / jnp.where(step == 1, 0.0, 1.0), found[1])}

    line = inspect.getsourcelines(dividing)[1] + 2
    place = rf"\(test_jax_settings.py line {line}, in dividing\)"
    with jax.debug_nans(True), pytest.raises(UserError) as caught:
        fit(dividing)
    assert re.match(rf"step 2: invalid value \(nan\) encountered in .*{place}: lower train.learning", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("manager", zoo.first(1, [jax.debug_nans, jax.debug_infs, jax.disable_jit]))
def test_a_training_that_is_debugged_has_the_same_result(manager):
    plain = fit()
    with manager(True):
        debugged = fit()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), debugged, plain)


def test_without_jit_a_step_sees_numbers():
    seen = []

    def looking(params, batch, key, step):
        found = loss(params, batch, key, step)
        seen.append(found["loss"][1])
        return found

    with jax.disable_jit():
        fit(looking)
    assert len(seen) == TRAIN.steps and all(float(weight) == 2 for weight in seen)


def test_64_bits_are_refused_before_anything_is_read(tmp_path):
    with jax.enable_x64(True), pytest.raises(UserError, match=r"^jax_enable_x64 is on, .*: unset JAX_ENABLE_X64, or"):
        run.train(Translation("never"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
