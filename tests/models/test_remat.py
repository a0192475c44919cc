"""Rematerialization: the same loss and gradient with less memory."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core.backend.device import compiler_options
from s2sjax.errors import UserError
from s2sjax.models import objectives
from s2sjax.tasks import Translation

FORCED = config.Train()
NOISY = ("rnnsearch-mingru-variational", "luong-peephole-zoneout-project", "gnmt")


@cache
def start(model: config.ModelConfig, rows: int = 3, length: int = 5):
    """Parameters and a batch."""
    source, target = zoo.batch(np.random.default_rng(0), rows, length, length)
    module = models.build(model, zoo.VOCABULARY, zoo.VOCABULARY)
    return zoo.parameters(module)["params"], {"source": source, "target": target}


def learning(model: config.ModelConfig, remat: str, train: config.Train = FORCED):
    """(params, batch) -> the loss and its gradient, dropout on."""
    module = models.build(model, zoo.VOCABULARY, zoo.VOCABULARY, remat_policy=remat)
    learn = objectives.choose(module, train)
    total = lambda params, batch: learn(params, batch, jax.random.key(1), jnp.int32(1))["loss"][0]
    return jax.jit(jax.value_and_grad(total))


def compiled(model: config.ModelConfig, remat: str, params, batch):
    return learning(model, remat).lower(params, batch).compile(compiler_options=compiler_options())


@cache
def learnt(name: str, remat: str, train: config.Train = FORCED):
    return learning(zoo.MODELS[name], remat, train)(*start(zoo.MODELS[name]))


def check_same(again, first):
    """(loss, gradient) twice, the gradient relative to its largest member."""
    np.testing.assert_allclose(again[0], first[0], rtol=1e-6)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(first[1]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6 * scale), again[1], first[1])


@zoo.each(zoo.FAMILIES, quick=(), rare=set(zoo.FAMILIES) - {"luong"})
def test_the_gradient_is_the_same(name):
    """Dropout is on: what is computed again meets the same random numbers."""
    check_same(learnt(name, "layers"), learnt(name, "none"))


@zoo.each(zoo.FAMILIES, quick=(), rare=set(zoo.FAMILIES) - {"transformer-post"})
def test_the_gradient_is_the_same_where_only_products_are_kept(name):
    check_same(learnt(name, "products"), learnt(name, "none"))


@pytest.mark.parametrize("kind", ["layers", "products"])
@zoo.each(NOISY, quick=(), rare=NOISY[1:])
def test_the_gradient_is_the_same_with_noise_in_the_steps(name, kind):
    check_same(learnt(name, kind), learnt(name, "none"))


@zoo.each(["luong", "transformer-post"], quick=(), rare=("transformer-post",))
def test_the_gradient_is_the_same_where_a_model_reads_itself(name):
    sampling = config.ScheduledSampling("constant", k=0.5)
    train = config.Train(scheduled_sampling=sampling)
    check_same(learnt(name, "layers", train), learnt(name, "none", train))


DEEP = {
    "transformer": config.Transformer(width=16, heads=2, feedforward=64, encoder_layers=6, decoder_layers=6),
    "convs2s": config.ConvS2S(encoder_layers=((16, 3),) * 3, decoder_layers=((16, 3),) * 3, embedding_size=16),
    "rnnsearch": config.RNNsearch(width=16, embedding_size=16),
}


@pytest.mark.slow
def test_a_deep_transformer_learns_the_same_with_less_memory():
    given = start(DEEP["transformer"], rows=16, length=16)
    kept, forgotten = (compiled(DEEP["transformer"], kind, *given) for kind in ("none", "layers"))
    assert temporary(forgotten) < 0.5 * temporary(kept)
    check_same(forgotten(*given), kept(*given))


def temporary(program) -> int:
    """Bytes of all but arguments and results."""
    return program.memory_analysis().temp_size_in_bytes


@zoo.each(DEEP, quick=(), rare=DEEP)
def test_the_more_is_forgotten_the_less_memory_is_needed(name):
    """Compiles as users do: XLA could merge the recomputed values with the saved ones."""
    given = start(DEEP[name], rows=32, length=32)
    with zoo.optimized():
        sizes = [temporary(compiled(DEEP[name], kind, *given)) for kind in ("none", "products", "layers")]
    everything, products, layers = sizes
    assert layers < 0.95 * products < 0.95 * 0.95 * everything, sizes


@pytest.mark.parametrize("model", [config.DenseDense(), config.RCTM(), config.Pair(config.RCTM(), config.LSTMDense())])
def test_what_frees_nothing_is_refused(model):
    with pytest.raises(UserError, match=r"^train.remat products frees nothing of .*: set layers, or none$"):
        Translation("one", model=model, train=config.Train(remat="products"))
    Translation("one", model=model, train=config.Train(remat="layers"))
