"""Low-rank adapters: their equation, their gradients, and merging."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, layers, models

RANK, SCALE = 2, 0.5


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_an_adapter_adds_a_product_of_two_matrices():
    dense = layers.Dense(4, 6, adapter_rank=RANK, adapter_scale=SCALE)
    params = {
        "kernel": drawn(1, 4, 6),
        "bias": drawn(2, 6),
        "adapter_a": drawn(3, 4, RANK),
        "adapter_b": drawn(4, RANK, 6),
    }
    x = drawn(5, 3, 4)
    kernel = params["kernel"] + SCALE * params["adapter_a"] @ params["adapter_b"]
    expected = x @ kernel + params["bias"]
    np.testing.assert_allclose(dense.apply({"params": params}, x), expected, atol=1e-5)
    parts = dense.apply({"params": params}, x, 2, method="in_parts")
    np.testing.assert_allclose(np.concatenate(parts, axis=-1), expected, atol=1e-5)
    merged = layers.merge_adapters(params, SCALE)
    assert set(merged) == {"kernel", "bias"}
    np.testing.assert_allclose(merged["kernel"], kernel, atol=1e-6)
    np.testing.assert_allclose(dense.apply({"params": merged}, x), expected, atol=1e-5)


def test_a_new_adapter_changes_nothing():
    dense = layers.Dense(4, 6, adapter_rank=RANK)
    params = dense.init(jax.random.key(0), jnp.zeros((1, 4)))["params"]
    assert params["adapter_a"].shape == (4, RANK) and np.abs(params["adapter_a"]).max() > 0.1
    np.testing.assert_array_equal(params["adapter_b"], np.zeros((RANK, 6)))


@pytest.mark.parametrize("tie", ["output", "embeddings"])
def test_merged_parameters_give_the_same_model(tie):
    """Teacher forced and step by step, with the stacked layers of a Transformer."""
    settings = config.Transformer(**zoo.TINY_TRANSFORMER, tie=tie, adapter_rank=RANK, adapter_scale=SCALE)
    module = models.build(settings, zoo.VOCABULARY, zoo.VOCABULARY)
    params = zoo.parameters(module)
    merged = {"params": layers.merge_adapters(params["params"], SCALE)}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(merged)]
    assert not any("adapter" in path for path in paths)
    source, target = zoo.batch(np.random.default_rng(0))
    forward = jax.jit(module.apply)
    np.testing.assert_allclose(forward(merged, source, target), forward(params, source, target), atol=1e-5)

    @partial(jax.jit, static_argnums=1)
    def first_step(params, steps):
        memory = module.apply(params, source, method="encode")
        state = module.apply(params, memory, steps, method="init_state")
        return module.apply(params, memory, state, jnp.full(len(source), module.start_token), method="step")[1]

    np.testing.assert_allclose(first_step(merged, 3), first_step(params, 3), atol=1e-5)
