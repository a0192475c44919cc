"""Convolution over time against PyTorch and against its own single step; what padding may not do; the gated unit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from s2sjax.core.nn import convolution

ROWS, TIME, INPUTS, OUTPUTS = 3, 6, 4, 5
LENGTHS = np.array([6, 3, 0])
MASK = np.arange(TIME) < LENGTHS[:, None]
BAR = 1e-5
every_shape = pytest.mark.parametrize("width, dilation", [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2)])


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights_of(width: int) -> dict[str, np.ndarray]:
    return {"kernel": draw(0, width, INPUTS, OUTPUTS), "bias": draw(1, OUTPUTS)}


XS = draw(2, ROWS, TIME, INPUTS)


@every_shape
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_sum_that_its_docstring_writes(width, dilation, causal):
    weights = weights_of(width)
    before = width - 1 if causal else (width - 1) // 2
    expected = np.zeros((ROWS, TIME, OUTPUTS))
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            places = [(j, t + dilation * (j - before)) for j in range(width)]
            inside = [XS[row, at] @ weights["kernel"][j] for j, at in places if 0 <= at < length]
            expected[row, t] = weights["bias"] + sum(inside)
    ys = convolution.convolve(weights, XS, MASK, causal, dilation)
    np.testing.assert_allclose(ys, expected, atol=BAR)


@every_shape
def test_it_equals_pytorch(width, dilation):
    """`conv1d` with its weights, on a sentence without padding."""
    theirs = references.of_pytorch(f"conv1d-{width}-{dilation}")
    weights = {"kernel": theirs["weight"].transpose(2, 1, 0), "bias": theirs["bias"]}
    xs, everywhere = theirs["xs"], np.ones(theirs["xs"].shape[:2], bool)
    ours = convolution.convolve(weights, xs, everywhere, causal=True, dilation=dilation)
    np.testing.assert_allclose(ours, theirs["ys"], atol=BAR)


@every_shape
def test_step_by_step_equals_all_at_once(width, dilation):
    weights = jax.tree.map(jnp.asarray, weights_of(width))
    past = convolution.start(weights, ROWS, jnp.float32, dilation)
    assert past.shape == (ROWS, (width - 1) * dilation, INPUTS)
    past, ys = jax.lax.scan(partial(convolution.step, weights, dilation=dilation), past, XS.swapaxes(0, 1))
    together = convolution.convolve(weights, XS, np.ones((ROWS, TIME), bool), causal=True, dilation=dilation)
    np.testing.assert_allclose(ys.swapaxes(0, 1), together, atol=BAR)
    np.testing.assert_array_equal(past, XS[:, TIME - (width - 1) * dilation :])


@pytest.mark.parametrize("causal", [False, True])
def test_what_lies_in_the_padding_is_not_seen(causal):
    """Neither its value nor its gradient, not even where it is not a number."""
    weights = weights_of(3)
    total = lambda xs: jnp.sum(convolution.convolve(weights, xs, MASK, causal) ** 2)
    clean, dirty = np.where(MASK[..., None], XS, 0), np.where(MASK[..., None], XS, np.nan)
    (value, slope), (same, again) = (jax.value_and_grad(total)(xs) for xs in (clean, dirty))
    assert value == same
    np.testing.assert_array_equal(slope, again)
    assert np.all(np.asarray(slope)[~MASK] == 0)


def test_a_causal_output_has_no_gradient_from_its_future():
    weights = weights_of(3)
    one_row = lambda xs: convolution.convolve(weights, xs[None], np.ones((1, TIME), bool), causal=True)[0]
    touched = np.abs(jax.jacobian(one_row)(XS[0])).sum((1, 3)) > 0  # [T out, T in]
    distance = np.arange(TIME)[:, None] - np.arange(TIME)
    np.testing.assert_array_equal(touched, (distance >= 0) & (distance < 3))


def test_the_gated_linear_unit():
    """A gate of 0 is half open; one of 100 is open; one of -100 is closed."""
    np.testing.assert_allclose(convolution.gated(jnp.array([2.0, 2, 2, 0, 100, -100])), [1, 2, 0], atol=1e-6)
    theirs = references.of_pytorch("glu")
    np.testing.assert_allclose(convolution.gated(theirs["xs"]), theirs["ys"], atol=1e-6)


def test_weight_norm_splits_a_kernel_into_length_and_direction():
    kernel = draw(3, 3, INPUTS, OUTPUTS)
    lengths = convolution.length(kernel)
    np.testing.assert_allclose(lengths, np.linalg.norm(kernel.reshape(-1, OUTPUTS), axis=0), rtol=1e-6)
    np.testing.assert_allclose(convolution.weight_norm(kernel, lengths), kernel, rtol=1e-5)
    np.testing.assert_allclose(convolution.weight_norm(7 * kernel, lengths), kernel, rtol=1e-5)
    theirs = references.of_pytorch("weight_norm")
    ours = convolution.weight_norm(theirs["direction"], theirs["length"].ravel())
    np.testing.assert_allclose(ours, theirs["kernel"], rtol=1e-5)


def test_halving_a_plane_is_its_sum_and_padding_changes_nothing():
    weights = {"kernel": draw(3, 3, 3, 2, 4), "bias": draw(4, 4)}
    planes, lengths = draw(5, 1, 5, 6, 2), np.array([4])
    halve = jax.jit(convolution.halve_plane)
    ys, half = halve(weights, planes, lengths)
    assert ys.shape == (1, 3, 3, 4) and half.tolist() == [2]
    around = np.pad(planes[0, :4], ((1, 2), (1, 1), (0, 0)))  # the fifth step is padding
    for t, f in np.ndindex(3, 3):
        expected = np.einsum("ijd,ijdo->o", around[2 * t : 2 * t + 3, 2 * f : 2 * f + 3], weights["kernel"])
        np.testing.assert_allclose(ys[0, t, f], expected + weights["bias"], atol=BAR)
    longer = np.concatenate([planes, draw(6, 1, 3, 6, 2)], axis=1)
    np.testing.assert_allclose(halve(weights, longer, lengths)[0][:, :2], ys[:, :2], atol=BAR)


def test_halving_the_steps_is_its_sum_and_padding_changes_nothing():
    weights = {"kernel": draw(3, 3, 2, 4), "bias": draw(4, 4)}
    xs, lengths = draw(5, 1, 6, 2), np.array([5])
    halve = jax.jit(convolution.halve)
    ys, half = halve(weights, xs, lengths)
    assert ys.shape == (1, 3, 4) and half.tolist() == [3]
    around = np.pad(xs[0, :5], ((1, 1), (0, 0)))  # the sixth step is padding
    for t in range(3):
        expected = np.einsum("id,ido->o", around[2 * t : 2 * t + 3], weights["kernel"]) + weights["bias"]
        np.testing.assert_allclose(ys[0, t], expected, atol=BAR)
    longer = np.concatenate([xs, draw(6, 1, 3, 2)], axis=1)
    np.testing.assert_allclose(halve(weights, longer, lengths)[0][:, :3], ys, atol=BAR)
