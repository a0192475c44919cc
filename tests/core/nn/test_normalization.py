"""Layer norm and its gradient by hand, against the definition and JAX's own derivative of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.nn.normalization import layer_norm, norm_by_gate, standardise


def defined(x, scale, bias):
    return (standardise(x)[0] * jnp.broadcast_to(scale, x.shape) + jnp.broadcast_to(bias, x.shape)).astype(x.dtype)


def example(*shape, dtype="float32"):
    rng = np.random.default_rng(0)
    x, gradient = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2))
    scale, bias = (jnp.asarray(rng.normal(size=shape[-1]), jnp.float32) for _ in range(2))
    return (3 * x + 2, scale, bias), gradient


def test_a_row_of_two():
    np.testing.assert_allclose(layer_norm(jnp.array([[1.0, 3.0]]), jnp.ones(2), jnp.zeros(2)), [[-1, 1]], rtol=1e-6)


def test_a_constant_row_is_its_bias():
    np.testing.assert_array_equal(
        layer_norm(jnp.full((1, 4), 7.0), jnp.ones(4), jnp.full(4, 0.5)), np.full((1, 4), 0.5)
    )


@pytest.mark.parametrize("shape", [(5,), (3, 8), (2, 3, 16)])
def test_value_and_gradient_are_those_of_the_definition(shape):
    arguments, gradient = example(*shape)
    for one, other in zip(jax.vjp(layer_norm, *arguments), jax.vjp(defined, *arguments)):
        one, other = (side(gradient) if callable(side) else (side,) for side in (one, other))
        for found, expected in zip(one, other):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_sums_over_many_rows_are_in_float32():
    """The gradients of scale and bias are float32, and so near to the exact ones, though x is bfloat16."""
    (x, scale, bias), gradient = example(4096, 8, dtype="bfloat16")
    exact = jax.vjp(defined, x.astype(jnp.float32), scale, bias)[1](gradient.astype(jnp.float32))
    d_x, *rest = jax.vjp(layer_norm, x, scale, bias)[1](gradient)
    assert d_x.dtype == jnp.bfloat16
    for found, expected in zip(rest, exact[1:]):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)  # they are up to 200


def test_gates_are_normalised_one_by_one():
    (x, _, _), _ = example(3, 8)
    parts = [layer_norm(part, jnp.ones(4), jnp.zeros(4)) for part in jnp.split(x, 2, axis=-1)]
    np.testing.assert_allclose(norm_by_gate(x, jnp.ones(8), width=4), jnp.concatenate(parts, -1), rtol=1e-5, atol=1e-6)
