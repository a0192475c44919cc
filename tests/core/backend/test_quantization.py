"""Parameters in fewer bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import product_in_float32, product_with_table
from s2sjax.core.backend.quantization import Quantised, restored, stored

RNG = np.random.default_rng(0)
PARAMS = {
    "dense": {"kernel": RNG.normal(size=(16, 8)) * np.logspace(-3, 3, 8), "bias": RNG.normal(size=8)},
    "blocks": {"stack": {"kernel": RNG.normal(size=(2, 16, 8))}},
    "convolution": {"kernel": RNG.normal(size=(3, 16, 8))},
    "cell": {"state": RNG.normal(size=(8, 8))},
    "embedding": {"table": RNG.normal(size=(20, 4)) * np.logspace(-3, 3, 20)[:, None]},
    "empty": {"kernel": np.zeros((3, 2))},
}
PARAMS = jax.tree.map(jnp.float32, PARAMS)
is_quantised = lambda leaf: isinstance(leaf, Quantised)


def test_an_int8_entry_is_off_by_at_most_half_a_scale(monkeypatch):
    """Each column of a matrix has its own scale, each row of an embedding table, each layer of a stack."""
    monkeypatch.setattr(device, "multiplies_int8", lambda: False)
    quantised = stored(PARAMS, "int8")
    whole = restored(quantised)
    assert not any(map(is_quantised, jax.tree.leaves(whole, is_leaf=is_quantised)))
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(PARAMS), jax.tree.leaves(whole), strict=True):
        if path[-1].key == "bias":
            continue
        axis = -1 if path[-1].key == "table" else -2
        scale = np.abs(before).max(axis, keepdims=True) / 127
        assert (np.abs(before - after) <= scale * 0.5001).all()
        assert np.abs(before - after).max() > 0 or not before.any()
        np.testing.assert_allclose(np.abs(after).max(axis), np.abs(before).max(axis), rtol=1e-6)
    assert quantised["dense"]["kernel"].numbers.dtype == jnp.int8
    np.testing.assert_array_equal(whole["dense"]["bias"], PARAMS["dense"]["bias"])
    np.testing.assert_array_equal(whole["empty"]["kernel"], 0)
    assert not isinstance(quantised["dense"]["bias"], Quantised)


def test_a_cpu_keeps_the_matrices_that_layers_multiply_with(monkeypatch):
    monkeypatch.setattr(device, "multiplies_int8", lambda: True)
    kept = jax.tree.map(is_quantised, restored(stored(PARAMS, "int8")), is_leaf=is_quantised)
    assert kept == {
        "dense": {"kernel": True, "bias": False},
        "blocks": {"stack": {"kernel": True}},
        "convolution": {"kernel": False},
        "cell": {"state": False},
        "embedding": {"table": True},
        "empty": {"kernel": True},
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_in_int8_is_that_of_the_rounded_numbers(dtype):
    """(p q) step scale, summed without error: x is rounded row by row as W is column by column."""
    x = jnp.asarray(RNG.normal(size=(2, 3, 16)) * np.logspace(-2, 2, 6).reshape(2, 3, 1), dtype)
    quantised = stored(PARAMS, "int8")
    kernel, table = quantised["dense"]["kernel"], stored({"table": PARAMS["dense"]["kernel"].T}, "int8")["table"]
    exact = np.asarray(x, np.float64)
    step = np.abs(exact).max(-1, keepdims=True) / 127
    rounded = np.round(exact / step) * step
    weights = np.asarray(kernel.numbers, np.float64) * np.asarray(kernel.scale, np.float64)
    expected = rounded @ weights
    scale = np.abs(exact).max(-1, keepdims=True) * np.abs(weights).max(0)
    for product, eps in ((product_in_float32(x, kernel), 1e-6), (product_with_table(x, table), 1e-6)):
        assert product.dtype == jnp.float32
        assert np.all(np.abs(product - expected) <= eps * scale)
    plain = x @ kernel
    assert plain.dtype == x.dtype
    assert np.all(
        np.abs(np.asarray(plain, np.float64) - expected) <= (1e-6 if dtype == "float32" else 2**-8 * 16) * scale
    )
    # Each factor is off by half a step at most, 16 times.
    error = np.abs(exact @ np.asarray(PARAMS["dense"]["kernel"], np.float64) - expected)
    assert np.all(error <= 16 * scale / 127) and error.max() > 0


def test_rows_without_numbers_and_rows_of_a_table():
    quantised = stored(PARAMS, "int8")
    assert not np.any(jnp.zeros((1, 16)) @ quantised["dense"]["kernel"])
    assert not np.any(jnp.ones((1, 3)) @ quantised["empty"]["kernel"])
    table = quantised["embedding"]["table"]
    ids = jnp.array([[3, 0]])
    np.testing.assert_array_equal(table[ids], (table.numbers * table.scale)[ids])


def test_bfloat16_rounds_and_trained_leaves_alone():
    rounded = stored(PARAMS, "bfloat16")["dense"]["kernel"]
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), PARAMS["dense"]["kernel"], rtol=2**-8)
    layer = {"mixer": {"log_rate": jnp.ones(3), "query": jnp.ones((3, 3))}, "norm": {"scale": jnp.ones(3)}}
    dtypes = jax.tree.map(lambda leaf: str(leaf.dtype), stored(layer, "bfloat16"))
    kept = {"log_rate": "float32", "query": "bfloat16"}  # a decay near 1 has no exact bfloat16
    assert dtypes == {"mixer": kept, "norm": {"scale": "bfloat16"}}
    assert stored(PARAMS, "trained") is PARAMS
    assert restored(stored(PARAMS, "float32"))["dense"]["kernel"] is PARAMS["dense"]["kernel"]
