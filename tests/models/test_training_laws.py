"""The laws of training, for one model of each family: devices, micro-batches and restarts change nothing."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from conftest import refused
from jax.sharding import Mesh

from s2sjax import config, models
from s2sjax.core.losses import sampled_softmax
from s2sjax.models import objectives
from s2sjax.tasks import Translation
from s2sjax.tasks.task import task_of
from s2sjax.training import mesh as meshes
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.loop import fit
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import create, make_train_step

SPLIT_BY_ALL = ("transformer-post", "convs2s", "dense-dense")
KINDS = ("luong", "transformer-post")  # step by step, or all steps at once
RARE = set(zoo.FAMILIES) - set(KINDS)
every_family = zoo.each(zoo.FAMILIES, quick=(), rare=RARE)
both_kinds = zoo.each(KINDS, quick=(), rare=("transformer-post",))
VOCABULARY = 8
PARTS = jnp.array([[0, 1, 2, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7]])
OBJECTIVES = {
    "scheduled sampling": {"scheduled_sampling": config.ScheduledSampling("linear", k=4)},
    "sampled softmax": {"softmax": config.Softmax(samples=5)},
    "softmax of a part": {"softmax": config.Softmax(subset=7)},
    "r-drop": {"r_drop": 3.0},
}


def setting(name: str, train: config.Train, mesh: Mesh, dropout: bool, dtype: str = "float32"):
    """(state, step) of a model of the zoo, on a mesh."""
    model = zoo.MODELS[name] if dropout else zoo.without_dropout(zoo.MODELS[name])
    module = models.build(model, VOCABULARY, VOCABULARY, dtype)
    params = zoo.parameters(module)["params"]

    def init(key):
        return create(params, optimizer(train), ema=train.ema > 0)

    rules = models.tensor_rules(model) if mesh.shape["tensor"] > 1 else ()
    state = meshes.init_sharded(init, mesh, rules, jax.random.key(0), min_size=1)
    loss = objectives.choose(module, train, sampled_softmax.log_uniform(VOCABULARY), PARTS)
    return state, make_train_step(loss, optimizer(train), train, seed=0)


def batch_of(number: int, length: int = 5) -> dict:
    rng = np.random.default_rng(number)
    source, target = zoo.batch(rng, rows=16, source=length, target=length, vocabulary=VOCABULARY)
    return {"source": source, "target": target, "part": np.full(16, number % 2, np.int32)}


@cache
def losses_and_parameters(name: str, mesh: Mesh, steps: int = 3, dropout: bool = True, length: int = 5, **train):
    # Some gradients are zero but for rounding (a key's bias moves all scores alike), and Adam with its usual eps would
    # blow that rounding up to whole steps.
    smoothing = 0.0 if "softmax" in train else 0.1
    train = config.Train(learning_rate=1e-2, warmup_steps=1, eps=1e-2, label_smoothing=smoothing, **train)
    state, step = setting(name, train, mesh, dropout)
    compiled, losses = jax.jit(step), []
    with jax.set_mesh(mesh):
        for number in range(steps):
            state, metrics = compiled(state, meshes.global_batch(batch_of(number, length), mesh))
            losses.append(metrics["loss"][0] / metrics["loss"][1])
    return np.array(losses), jax.device_get(state.params)


def one_device() -> Mesh:
    return meshes.make_mesh(config.Mesh(), jax.devices()[:1])


@every_family
def test_one_device_equals_eight(name):
    eight_are_one(name, dict(data=2, fsdp=2, tensor=2) if name in SPLIT_BY_ALL else dict(data=1, fsdp=4, tensor=2))


@zoo.each(zoo.FAMILIES, quick=(), rare=zoo.FAMILIES)
def test_one_device_equals_eight_on_three_axes(name):
    """On a busy CPU, simulated devices may wait for each other for ever in a loop over time."""
    eight_are_one(name, dict(data=2, fsdp=2, tensor=2))


@zoo.each(zoo.FAMILIES, quick=(), rare=set(zoo.FAMILIES) - {"luong"})
@pytest.mark.parametrize(
    "mesh",
    zoo.first(1, [dict(data=4, tensor=2), dict(data=8), dict(data=2, fsdp=4)], most=1),
    ids=str,
)
def test_one_device_equals_eight_on_each_axis(name, mesh):
    eight_are_one(name, mesh)


PRETRAINED = (
    "transformer-t5", "transformer-t5-gated", "transformer-umt5", "transformer-bart", "transformer-nllb",
    "transformer-adapters",
)  # fmt: skip


@zoo.each(PRETRAINED, quick=(), rare=set(PRETRAINED) - {"transformer-t5-gated"})
def test_one_device_equals_eight_for_the_options_of_pretrained_models(name):
    eight_are_one(name, dict(data=2, fsdp=2, tensor=2))


SPLIT_IN_TIME = {*zoo.FAMILIES, "transformer-window", "transformer-relative-pre", "transformer-rotary"}
SPLIT_IN_TIME |= {name for name in zoo.MODELS if name.startswith("hybrid")}


@zoo.each(sorted(SPLIT_IN_TIME), quick=(), rare=SPLIT_IN_TIME - {"transformer-post", "convs2s", "hybrid-ssd-attention"})
def test_one_device_equals_eight_that_split_the_time(name):
    eight_are_one(name, dict(context=8), length=8)


@zoo.each(("transformer-post", "hybrid-ssd-attention"), quick=(), rare=("hybrid-ssd-attention",))
@pytest.mark.parametrize("mesh", zoo.first(1, [dict(fsdp=2, tensor=2), dict(tensor=2), dict(fsdp=4)], most=1), ids=str)
def test_one_device_equals_eight_that_split_the_time_and_more(name, mesh):
    eight_are_one(name, dict(context=2) | mesh, length=8)


@pytest.mark.parametrize("name", ["transformer-post", "hybrid-ssd-attention", "dense-dense", "pair-cnn-luong"])
def test_a_mesh_whose_products_would_be_wrong_is_refused(name):
    task = task_of(Translation("any", model=zoo.MODELS[name]))
    for sizes in (dict(tensor=2, context=1), dict(tensor=1, context=8)):
        task.check_mesh(dict(data=1, fsdp=2) | sizes)
    both = lambda: task.check_mesh(dict(data=1, fsdp=1, tensor=2, context=4))
    if name in ("transformer-post", "hybrid-ssd-attention"):
        both()
    else:
        assert "by tensor and context" in refused(both)


@zoo.each(("transformer-post", "convs2s", "hybrid-ssd-attention"), quick=(), rare=("hybrid-ssd-attention",))
def test_eight_devices_that_split_the_time_share_work_and_memory(name):
    model = zoo.MODELS[name]
    model = config.replace(model, max_length=600) if name == "convs2s" else model
    module = models.build(model, VOCABULARY, VOCABULARY)
    params = zoo.parameters(module)["params"]
    loss = objectives.choose(module, config.Train(), None, None)
    total = lambda params, batch: loss(params, batch, jax.random.key(0), 0)["loss"][0]

    def compiled(mesh):
        batch = {name: jnp.ones((2, 512), jnp.int32) for name in ("source", "target")}
        batch = jax.tree.map(lambda x: jax.device_put(x, meshes.column_sharding(mesh, x.shape)), batch)
        with jax.set_mesh(mesh):
            program = jax.jit(jax.grad(total)).lower(jax.device_put(params, meshes.EVERYWHERE), batch).compile()
        return np.array([program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes])

    flops, memory = compiled(one_device()) / compiled(meshes.make_mesh(config.Mesh(context=8)))
    assert flops > 6 and memory > 4, (flops, memory)


def test_a_length_that_does_not_divide_is_not_split():
    eight_are_one("transformer-post", dict(context=4), length=5)


def eight_are_one(name, mesh, **options):
    """Dropout is on: its masks do not depend on where the rows lie."""
    alone, parameters = losses_and_parameters(name, one_device(), **options)
    together, spread = losses_and_parameters(name, meshes.make_mesh(config.Mesh(**mesh)), **options)
    assert np.all(np.diff(alone) != 0)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), spread, parameters)


@both_kinds
@zoo.each(OBJECTIVES, "learning", quick=("scheduled sampling",), rare=set(OBJECTIVES) - {"scheduled sampling"})
def test_one_device_equals_eight_whatever_is_learnt_from(name, learning):
    """Random draws depend on the seed and the step, not on the device of the rows."""
    eight = meshes.make_mesh(config.Mesh(data=2, fsdp=4))
    alone, parameters = losses_and_parameters(name, one_device(), **OBJECTIVES[learning])
    together, spread = losses_and_parameters(name, eight, **OBJECTIVES[learning])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), spread, parameters)


@both_kinds
@pytest.mark.parametrize(
    "learning",
    [
        {"scheduled_sampling": config.ScheduledSampling("constant", k=0.0, feed="argmax")},
        {"softmax": config.Softmax(subset=7)},
    ],
    ids=["reading itself", "softmax of a part"],
)
def test_micro_batches_equal_one_batch_where_nothing_is_drawn(name, learning):
    same_in_micro_batches(name, **learning)


@every_family
def test_micro_batches_equal_one_batch(name):
    same_in_micro_batches(name)


def same_in_micro_batches(name, **learning):
    """Rows of uneven length, so that a mean of means would differ."""
    one_step = dict(steps=1, dropout=False, clip_norm=0.0, **learning)
    whole, parameters = losses_and_parameters(name, one_device(), **one_step)
    parts, summed = losses_and_parameters(name, one_device(), **one_step, grad_accum_steps=4)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(parameters))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6 * scale), summed, parameters)


@zoo.each(zoo.FAMILIES, quick=(), rare=zoo.FAMILIES)
def test_a_restart_changes_no_bit(name, tmp_path):
    restarted_is_straight(name, {}, tmp_path)


@both_kinds
@zoo.each(OBJECTIVES, "learning", quick=("scheduled sampling",), rare=set(OBJECTIVES) - {"scheduled sampling"})
def test_a_restart_changes_no_bit_whatever_is_learnt_from(name, learning, tmp_path):
    restarted_is_straight(name, OBJECTIVES[learning], tmp_path)


def restarted_is_straight(name, learning, tmp_path, dtype="float32", options=None):
    """n steps equal k steps, a save, a restore, and n - k steps: dropout on, average kept, to the last bit."""

    def trained(folder, stops):
        for steps in stops:
            often = dict(steps=steps, ema=0.9, evaluate_every=0, save_every=100, schedule="constant")
            train = config.Train(**often, **learning)
            state, step = setting(name, train, one_device(), True, dtype)
            batches = lambda start: ((number, batch_of(number)) for number in range(start, 7))
            checkpoints = Checkpoints(tmp_path / folder)
            init = lambda state=state: state
            where = dict(checkpoints=checkpoints, mesh=one_device(), compiler_options=options)
            state = fit(step, batches, template=state, init=init, train=train, **where).state
            checkpoints.close()
        return jax.device_get(state)

    jax.tree.map(np.testing.assert_array_equal, trained("restarted", [3, 5]), trained("straight", [5]))
