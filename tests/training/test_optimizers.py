"""Optimizers and schedules by name: on every mesh, with micro-batches, skipped steps and a restart."""

import functools
import re
import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo

from s2sjax import config, models
from s2sjax.config.training import OPTIMIZERS
from s2sjax.errors import UserError
from s2sjax.training import mesh, optimizers, train_state
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.checkpoints.manager import Checkpoints

RULES = (("in/kernel", (None, "tensor")), ("in/bias", ("tensor",)), ("out/stack/kernel", ("tensor", None)))
ARGUMENTS = {"adafactor": ("min_dim_size_to_factor=16",), "sgd": ("momentum=0.9", "nesterov=True")}
MESHES = {
    "fsdp": (config.Mesh(fsdp=8), ()),
    "all three": (config.Mesh(data=2, fsdp=2, tensor=2), RULES),
}
NAMES = [*OPTIMIZERS, "optax.lamb"]


def settings(name: str, **others) -> config.Train:
    train = {
        "warmup_steps": 0,
        "learning_rate": 0.01,
        "schedule": "constant",
        "weight_decay": 0.0 if name == "adam" else 0.1,
    }
    return config.Train(optimizer=name, optimizer_args=ARGUMENTS.get(name, ()), ema=0.9, **train | others)


def init(optimizer):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "target_embedding": {"table": jax.random.normal(keys[2], (8, 16))},
        "in": {"kernel": jax.random.normal(keys[0], (16, 64)) / 4, "bias": jnp.zeros(64)},
        "out": {"stack": {"kernel": jax.random.normal(keys[1], (1, 64, 16)) / 8, "bias": jnp.zeros((1, 16))}},
    }
    return train_state.create(params, optimizer, ema=True)


def loss(params, batch, key, step):
    x = batch["x"] + params["target_embedding"]["table"][batch["word"]]
    hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
    y = hidden @ params["out"]["stack"]["kernel"][0] + params["out"]["stack"]["bias"][0]
    error = ((y - batch["x"]) ** 2).sum(1) * batch["weight"]
    return {"loss": (error.sum(), batch["weight"].sum())}


def batch(index: int) -> dict:
    """A batch; batch 1 has a loss that is not finite."""
    rng = np.random.default_rng(index)
    x = rng.normal(size=(16, 16)).astype(np.float32)
    weight = np.full(16, np.nan, np.float32) if index == 1 else np.arange(16, dtype=np.float32)
    return {"x": x, "word": (np.arange(16) % 8).astype(np.int32), "weight": weight}


def trained(train, where, rules, current=None, steps=range(4)):
    optimizer = optimizers.optimizer(train)
    current = current or mesh.init_sharded(lambda: init(optimizer), where, rules, min_size=1)
    step = jax.jit(train_state.make_train_step(loss, optimizer, train, seed=3))
    for index in steps:
        current, _ = step(current, mesh.global_batch(batch(index), where))
    return current


@functools.cache
def one_device(name: str):
    where = mesh.make_mesh(config.Mesh(), jax.devices()[:1])
    optimizer = optimizers.optimizer(settings(name))
    return init(optimizer), trained(settings(name), where, ())


@pytest.mark.parametrize("name", zoo.first(2, NAMES))
def test_it_learns_and_skips_a_step_that_is_not_finite(name):
    before, after = one_device(name)
    assert int(after.skipped_total) == 1 and int(after.step) == 4
    for leaf in jax.tree.leaves(after):
        assert np.isfinite(leaf).all()
    sums = [loss(each.params, batch(0), None, 0)["loss"][0] for each in (before, after)]
    assert sums[1] < sums[0]


# Adam's moments are tested for every mesh in test_mesh.py.
EIGHT = [
    ("muon", "all three"),
    ("adafactor", "all three"),
    ("adafactor", "fsdp"),
    ("lion", "all three"),
    ("optax.lamb", "all three"),
]


@pytest.mark.parametrize("name, which", zoo.first(0, EIGHT, most=2))
def test_one_device_equals_eight_also_after_a_restart(name, which, tmp_path):
    """Compares two micro-batches and a restart after two steps with one device, one batch and no restart."""
    shape, rules = MESHES[which]
    where, train = mesh.make_mesh(shape), settings(name, grad_accum_steps=2)
    half = trained(train, where, rules, steps=range(2))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(half, 2)
    checkpoints.wait()
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), half)
    restored, _ = Checkpoints(tmp_path).restore(template)
    jax.tree.map(np.testing.assert_array_equal, restored, half)
    eight = trained(train, where, rules, restored, range(2, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), eight.params, one_device(name)[1].params)


def test_a_moment_is_sharded_like_its_parameter():
    where = mesh.make_mesh(config.Mesh(fsdp=8))
    for name in NAMES:
        shapes = jax.eval_shape(lambda name=name: init(optimizers.optimizer(settings(name))))
        specs = mesh.shardings(shapes, where, min_size=1)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(shapes.optimizer), jax.tree.leaves(specs.optimizer), strict=True
        ):
            if leaf.shape in ((16, 64), (1, 64, 16)):
                assert "fsdp" in sharding.spec, f"{name}: {mesh.path_of(path)}"


# ------------------------------------------------------------------------------ what each one does


def updates_of(train: config.Train, params, gradient):
    optimizer = optimizers.optimizer(train)
    return optimizer.update(gradient, optimizer.init(params), params)


def test_muon_makes_matrices_orthogonal_and_leaves_tables_and_vectors_to_adam():
    params = {
        "encoder": {"blocks": {"stack": {"kernel": jnp.ones((3, 8, 8)), "bias": jnp.ones((3, 8))}}},
        "source_embedding": {"table": jnp.ones((9, 8))},
        "decoder": {"output": {"kernel": jnp.ones((8, 9)), "bias": jnp.ones(9)}},
    }
    numbers = optimizers.muon_matrices(params)
    stack = numbers["encoder"]["blocks"]["stack"]
    assert stack["kernel"] == optax.contrib.MuonDimensionNumbers((1,), (2,))
    assert stack["bias"] is None and numbers["source_embedding"]["table"] is None
    assert numbers["decoder"]["output"] == {"kernel": None, "bias": None}
    keys = iter(jax.random.split(jax.random.key(0), 9))
    gradient = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), params)
    train = config.Train(optimizer="muon", schedule="constant", warmup_steps=0, learning_rate=1.0, clip_norm=0.0)
    updates, _ = updates_of(train, params, gradient)
    for block in updates["encoder"]["blocks"]["stack"]["kernel"]:  # singular values near 1, each block by itself
        values = np.linalg.svd(block, compute_uv=False)
        assert values.min() > 0.3 and values.max() < 1.4
    sizes = np.abs(updates["source_embedding"]["table"])  # Adam's first step has the same size for any gradient
    np.testing.assert_allclose(sizes, sizes[0, 0], rtol=1e-4)


def test_muon_takes_the_heads_of_recurrences_apart_and_leaves_their_convolutions_to_adam():
    layer = {
        "recurrent": jnp.ones((2, 4, 16)), "input": jnp.ones((8, 8)), "query_convolution": jnp.ones((4, 8)),
        "log_rate": jnp.ones(2),
    }  # fmt: skip
    numbers = optimizers.muon_matrices({"decoder": {"layer_0": {"mixer": layer}}})["decoder"]["layer_0"]["mixer"]
    assert numbers["recurrent"] == optax.contrib.MuonDimensionNumbers((1,), (2,))
    assert numbers["input"] == optax.contrib.MuonDimensionNumbers((0,), (1,))
    assert numbers["query_convolution"] is None and numbers["log_rate"] is None


@pytest.mark.parametrize("name", ["transformer-pre-learned", "luong", "convs2s"])
def test_muon_takes_the_matrices_of_real_models(name):
    module, ids = models.build(zoo.MODELS[name], 7, 7), jnp.ones((2, 5), jnp.int32)
    params = jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"]
    numbers = optimizers.muon_matrices(params)
    at = lambda path: functools.reduce(lambda tree, name: tree[name], path.split("/"), numbers)
    chosen = [path for path, _ in named_leaves(params) if at(path) is not None]
    assert {path.rpartition("/")[2] for path in chosen} <= {"kernel", "input", "state", "memory", "fed", "direction"}, (
        chosen
    )
    assert not any("embedding" in path or path.startswith("decoder/output/") for path in chosen)
    optimizer = optimizers.optimizer(settings("muon"))
    updates = jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params)[0], params)
    assert jax.tree.map(lambda leaf: leaf.shape, updates) == jax.tree.map(lambda leaf: leaf.shape, params)


@pytest.mark.parametrize("name", zoo.first(2, NAMES[1:]))
def test_decay_is_that_of_adamw_for_every_optimizer(name):
    stack = {"kernel": jnp.ones((2, 4, 4)), "bias": jnp.ones((2, 4))}
    params = {"blocks": {"stack": stack}, "bias": jnp.ones(4)}
    zero = jax.tree.map(jnp.zeros_like, params)
    with_decay, without = (
        updates_of(settings(name, learning_rate=0.5, weight_decay=decay), params, zero)[0] for decay in (0.1, 0.0)
    )
    added = jax.tree.map(jnp.subtract, with_decay, without)
    np.testing.assert_allclose(added["blocks"]["stack"]["kernel"], -0.5 * 0.1, rtol=1e-5)
    assert not added["blocks"]["stack"]["bias"].any() and not added["bias"].any()


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_matrix_of_a_model_decays_and_no_vector(name):
    module, ids = models.build(zoo.MODELS[name], 7, 7), jnp.ones((2, 5), jnp.int32)
    params = jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"]
    vectors = re.compile(r"/(\w*bias|\w*scale|vector|length|beyond|\w*rate)$")
    expected = {path: not vectors.search(path) for path, _ in named_leaves(params)}
    assert dict(named_leaves(optimizers.matrices(params))) == expected


def test_adam_has_the_defaults_of_the_transformer_and_others_their_own():
    params = {"w": jnp.ones((2, 2))}
    for name, b2 in (("adamw", 0.98), ("optax.adamw", 0.999)):
        train = config.Train(optimizer=name, clip_norm=0.0)
        found = jax.tree.leaves(updates_of(train, params, params)[1])
        assert any(np.allclose(leaf, 1 - b2, rtol=1e-4) for leaf in found), name


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(optimizer="adamx"), "train.optimizer is 'adamx': it must be one of adam, adamw, adafactor, lion, muon"),
        (dict(optimizer="optax.nothing"), "train.optimizer optax.nothing cannot be imported (module 'optax' has no"),
        (dict(optimizer="nowhere.at_all"), "cannot be imported (No module named 'nowhere'): correct it, or install"),
        (dict(optimizer="optax.__version__"), "train.optimizer optax.__version__ is not a function: name another"),
        (dict(optimizer="optax.chain"), "train.optimizer optax.chain requires args: add args=VALUE"),
        (dict(optimizer="sgd", b1=0.9), "train.b1: sgd does not take b1: it takes momentum, nesterov, accumulator_"),
        (dict(optimizer="lion", eps=1e-3), "train.eps: lion does not take eps: it takes b1, b2, mu_dtype"),
        (dict(optimizer_args=("momentum=0.9",)), "train.optimizer_args: adamw does not take momentum: it takes b1, b2"),
        (dict(optimizer_args=("weight_decay=1",)), "train.optimizer_args has weight_decay: set train.weight_decay"),
        (dict(optimizer_args=("learning_rate=1",)), "has learning_rate: set train.learning_rate instead"),
        (dict(optimizer_args=("nesterov",)), "train.optimizer_args has 'nesterov': write name=value"),
        (
            dict(optimizer="sgd", optimizer_args=("momentum=abc",)),
            "train.optimizer sgd with momentum=abc does not work",
        ),
        (dict(optimizer="adam", weight_decay=0.1), "train.weight_decay is 0.1, but adam has none: set train.optimizer"),
        (dict(schedule="step"), "train.schedule is 'step': it must be one of cosine, linear, inverse_sqrt, constant"),
        (dict(schedule="optax.exponential_decay"), "requires init_value: add init_value=VALUE to train.schedule_args"),
        (dict(schedule_args=("decay=0.1",)), "train.schedule_args: cosine does not take decay: it takes no other arg"),
        (dict(schedule_args=("steps=9",)), "train.schedule_args has steps: set train.schedule_steps instead"),
        (dict(schedule="wsd", schedule_args=("decay=2",)), "decay is 2: it must be above 0 and at most 1"),
        (dict(schedule="wsd", schedule_args=("decay=x",)), "train.schedule wsd with decay=x does not work ("),
        (
            dict(schedule="constant", final_fraction=0.1),
            "train.final_fraction is 0.1, but the schedule constant has no",
        ),
        (dict(schedule_steps=-1), "train.schedule_steps is -1: it must be at least 0"),
    ],
)
def test_a_mistake_is_named_with_what_would_do(options, words):
    with pytest.raises(UserError) as caught:
        optimizers.optimizer(config.Train(**options))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_schedule_and_an_optimizer_of_a_users_own(monkeypatch):
    mine = ModuleType("mine")
    mine.halves = lambda peak, steps, times=2.0: lambda step: peak * 0.5 ** (times * step / steps)
    mine.descent = lambda learning_rate, scale=1.0: optax.chain(optax.scale(scale), optax.sgd(learning_rate))
    monkeypatch.setitem(sys.modules, "mine", mine)
    train = config.Train(
        steps=100, learning_rate=8.0, clip_norm=0.0, schedule="mine.halves", schedule_args=("times=3",),
        optimizer="mine.descent", optimizer_args=("scale=10",),
    )  # fmt: skip
    assert [optimizers.rate_at(train, step) for step in (0, 100)] == [8.0, 1.0]
    updates, _ = updates_of(train, {"w": jnp.ones(2)}, {"w": jnp.ones(2)})
    np.testing.assert_allclose(updates["w"], -80.0)
