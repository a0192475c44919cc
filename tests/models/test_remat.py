"""What is computed again is what was forgotten: the same loss, the same gradient, less memory."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.models import objectives
from s2sjax.train.loop import compiler_options

FORCED = config.Train()
QUICK = ("luong", "convs2s", "transformer-post")


@cache
def start(name: str):
    """A batch and parameters."""
    source, target = zoo.batch(np.random.default_rng(0))
    module = models.build(zoo.MODELS[name], zoo.VOCABULARY, zoo.VOCABULARY)
    return jax.jit(module.init)(jax.random.key(0), source, target)["params"], {"source": source, "target": target}


def learning(model: config.ModelConfig, remat: str, train: config.Train = FORCED):
    """(params, batch) -> the loss and its gradient, dropout on."""
    module = models.build(model, zoo.VOCABULARY, zoo.VOCABULARY, remat=remat)
    learn = objectives.choose(module, train)
    total = lambda params, batch: learn(params, batch, jax.random.key(1), jnp.int32(1))["loss"][0]
    return jax.jit(jax.value_and_grad(total))


@cache
def learnt(name: str, remat: str, train: config.Train = FORCED):
    return jax.device_get(learning(zoo.MODELS[name], remat, train)(*start(name)))


def same(name: str, kind: str, train: config.Train = FORCED):
    loss, gradient = learnt(name, "none", train)
    again, gradient_again = learnt(name, kind, train)
    np.testing.assert_allclose(again, loss, rtol=1e-6)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6 * scale), gradient_again, gradient)


@pytest.mark.parametrize("kind", ["layers", pytest.param("products", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in zoo.FAMILIES])
def test_the_gradient_is_the_same(name, kind):
    """Dropout is on: what is computed again meets the same random numbers."""
    same(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layers", "products"])
@pytest.mark.parametrize("name", ["rnnsearch-mingru-variational", "luong-peephole-zoneout-project", "gnmt"])
def test_the_gradient_is_the_same_with_noise_in_the_steps(name, kind):
    same(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["luong", "transformer-post"])
def test_the_gradient_is_the_same_where_a_model_reads_itself(name):
    sampling = config.ScheduledSampling("constant", k=0.5)
    same(name, "layers", config.Train(scheduled_sampling=sampling))


def temporary_bytes(model: config.ModelConfig, remat: str, rows: int, length: int) -> int:
    """Of the compiled gradient, all else but its arguments and results."""
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    module = models.build(model, zoo.VOCABULARY, zoo.VOCABULARY)
    params = jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"]
    program = learning(model, remat).lower(params, {"source": ids, "target": ids})
    return program.compile(compiler_options=compiler_options()).memory_analysis().temp_size_in_bytes


@pytest.fixture
def optimized():
    """As users compile: a test may be quick, but a program that needs little memory is an optimised one."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def test_a_deep_transformer_needs_less_memory(optimized):
    model = config.Transformer(width=16, heads=2, feedforward=64, encoder_layers=8, decoder_layers=8)
    everything, products, layers = (temporary_bytes(model, kind, 16, 16) for kind in ("none", "products", "layers"))
    assert layers < 0.6 * products < 0.6 * 0.6 * everything, (layers, products, everything)
