"""Products of many rows, of a few, and of half precision, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import product, product_in_float32, product_with_table, summed_products


def example(dtype):
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((2, 3, 16), (16, 8)))
    return x, kernel, jnp.asarray(rng.normal(size=(2, 3, 8)), jnp.float32)


def gradients(x, kernel, cotangent):
    logits, backward = jax.vjp(product_in_float32, x, kernel)
    assert logits.dtype == np.float32
    return backward(cotangent)


def test_the_gradient_in_half_precision_is_near_that_in_float32():
    x, kernel, cotangent = example(jnp.bfloat16)
    half = gradients(x, kernel, cotangent)
    exact = gradients(x.astype(jnp.float32), kernel.astype(jnp.float32), cotangent)
    for one, other in zip(half, exact):
        assert one.dtype == jnp.bfloat16 and one.shape == other.shape
        # Half of the last of 8 bits is 0.002; the gradient is rounded before the product, and the result after it.
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=0, atol=0.005 * float(abs(other).max()))


def test_no_product_of_the_backward_pass_reads_float32():
    """XLA multiplies a float32 gradient with a bfloat16 matrix in TF32, at a fraction of the speed."""
    lowered = jax.jit(gradients).lower(*example(jnp.bfloat16)).as_text()
    products = [line for line in lowered.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 2 and not any("f32" in line for line in products)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_types_are_left_alone(dtype):
    with jax.enable_x64(dtype == np.float64):
        x, kernel, cotangent = example(dtype)
        x, cotangent = x[0], cotangent[0].astype(dtype)
        for one, other in zip(
            jax.vjp(product_in_float32, x, kernel)[1](cotangent),
            jax.vjp(jnp.dot, x, kernel)[1](cotangent),
        ):
            np.testing.assert_array_equal(one, other)
        jax.jvp(product_in_float32, (x, kernel), (x, kernel))  # forward mode too


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_with_a_table_is_that_with_its_transpose(monkeypatch, few, dtype):
    monkeypatch.setattr(device, "reads_table_as_stored", lambda rows: few)
    x, kernel, _ = example(dtype)
    found = product_with_table(x, kernel.T)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, product_in_float32(x, kernel), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("multiply", [product, product_in_float32])
def test_a_product_of_rows_is_that_of_all_axes(monkeypatch, multiply):
    x, kernel, cotangent = example(jnp.float32)
    results = []
    for rows in (True, False):
        monkeypatch.setattr(device, "multiplies_rows", lambda rows=rows: rows)
        y, backward = jax.vjp(multiply, x, kernel)
        results.append((y, *backward(cotangent), summed_products(x, cotangent)))
        np.testing.assert_allclose(results[-1][2], results[-1][3], rtol=1e-5)
    for one, other in zip(*results):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert multiply(jnp.zeros((0, 3, 16)), kernel).shape == (0, 3, 8)


def test_rows_that_devices_split_are_not_multiplied_as_one():
    """A row of [T, B, D] is not on the device of the next one: as [T B, D] all of them would be gathered."""
    split = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    whole = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    found = []
    for mesh in (split, whole):
        with jax.set_mesh(mesh):
            jax.eval_shape(lambda: found.append(device.multiplies_rows()))
    assert found == [False, True] and device.multiplies_rows()
