"""The kernels of what a chunk's positions read equal their definition, forward and backward.

They are interpreted on a CPU; `make test-gpu` compiles them.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ON_GPU, needs_eight_devices
from jax.sharding import NamedSharding, PartitionSpec

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.core.mixers import chunk_kernels, chunks, decayed, forms
from s2sjax.training import mesh as meshes

INTERPRET = not ON_GPU


def case(heads=2, groups=2, positions=16, keys=16, values=32, dtype="float32"):
    """Gradient, value, query, key [B, M, C, N, ...], row, column, from_start [B, M, N, C], states [B, M, N, K, V]."""
    rng = np.random.default_rng(0)
    draw = lambda *shape, dtype=dtype: jnp.asarray(rng.normal(size=(2, 3, *shape)), dtype)
    shared = (groups,) if groups > 1 else ()
    gradient, value = (draw(positions, heads, values) for _ in range(2))
    query, key = (draw(positions, *shared, keys) for _ in range(2))
    decay = -jnp.abs(draw(heads, positions, dtype="float32")) / 4
    b = jnp.cumsum(decay, axis=-1)
    return gradient, value, query, key, b, -b, jnp.exp(b), draw(heads, keys, values)


def reference(pairs):
    """`chunks.read` without kernels, for the inputs of the kernels."""

    def read(value, query, key, row, column, from_start, states):
        query, key = (part if part.ndim == 5 else part[:, :, :, None] for part in (query, key))
        swapped = (jnp.swapaxes(part, 0, 1) for part in (row, column, from_start, states))
        seen = pairs[None, None] if pairs.ndim == 2 else jnp.swapaxes(pairs, 0, 1)
        return chunks.read(query, key, value, *swapped, seen != 0)

    return read


def kernel(pairs):
    return lambda *inputs: chunk_kernels.read(*inputs, pairs, INTERPRET)


def both_ways(read, gradient, *inputs):
    y, pull = jax.vjp(read, *inputs)
    return y, *pull(gradient)


def causal(positions):
    return jnp.tri(positions, dtype=jnp.int8)


@pytest.mark.parametrize("groups", [2, 1], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("positions", [16, 20, 5])
def test_they_compute_what_xla_computes(positions, groups):
    pairs, inputs = causal(positions), case(groups=groups, positions=positions)
    for one, other in zip(both_ways(kernel(pairs), *inputs), both_ways(reference(pairs), *inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_positions_read_only_what_they_see():
    """Packed segments: each chunk has its own pairs."""
    segments = jnp.asarray(np.random.default_rng(1).integers(0, 3, (2, 3, 16))).sort(axis=-1)
    pairs = causal(16)[None, None] * (segments[..., :, None] == segments[..., None, :])
    inputs = case()
    for one, other in zip(both_ways(kernel(pairs), *inputs), both_ways(reference(pairs), *inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [2, 1], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"])
def test_recurrences_use_them(packed, groups, monkeypatch):
    """A recurrence in chunks is the same with them, when the device allows them."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(2, 37, *shape)), jnp.float32)
    inputs = {"query": draw(groups, 16), "key": draw(groups, 16), "value": draw(2, 16), "log_decay": -abs(draw(2))}
    segments = jnp.asarray(rng.integers(0, 3, (2, 37))).sort(axis=1) if packed else None

    def outputs(inputs):
        return forms.run(decayed.DECAYED, inputs, segments=segments, chunk=16)[0]

    gradient = draw(2, 16)
    expected = both_ways(outputs, gradient, inputs)
    calls = []
    read = lambda *inputs: calls.append(1) or kernel(inputs[-1])(*inputs[:-1])
    monkeypatch.setattr(chunks, "chunk_kernels", SimpleNamespace(fits=lambda *_: True, read=read))
    found = both_ways(outputs, gradient, inputs)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4), found, expected)
    assert calls


def test_half_precision():
    """Only operands and results are rounded."""
    exact = both_ways(reference(causal(16)), *case())
    inputs = [part.astype(jnp.bfloat16) if part.ndim == 5 else part for part in case()]
    for one, other in zip(both_ways(kernel(causal(16)), *inputs), exact, strict=True):
        error = float(abs(one.astype(jnp.float32) - other).max() / abs(other).max())
        assert error < 0.02, error


def test_under_vmap_the_calls_are_one_batch():
    pairs, inputs = causal(16), case()
    several = [jnp.stack([part, 0.5 * part]) for part in inputs]
    one = lambda inputs: both_ways(kernel(pairs), *inputs)
    for found, expected in zip(jax.vmap(one)(several), jax.lax.map(one, several), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_eight_devices
@pytest.mark.parametrize("groups", [2, 1], ids=["own keys", "shared keys"])
def test_each_device_computes_its_own_sentences_and_heads(groups):
    """On a mesh of 2 x 2, batch and heads split: the same values and gradients, and nothing is gathered."""
    mesh = meshes.make_mesh(config.Mesh(tensor=2), jax.devices()[:4])
    gradient, value, query, key, *rows, states = inputs = case(groups=groups)
    put = lambda array, *axes: jax.device_put(array, NamedSharding(mesh, PartitionSpec("data", None, *axes)))
    of_heads = lambda array: put(array, None, "tensor") if array.ndim == 5 else put(array)
    split = [of_heads(gradient), of_heads(value), of_heads(query), of_heads(key)]
    split += [put(row, "tensor") for row in (*rows, states)]
    find = jax.jit(lambda *inputs: both_ways(kernel(causal(16)), *inputs))
    compiled = find.lower(*split).compile()
    assert "all-gather" not in compiled.as_text()
    for one, other in zip(compiled(*split), find(*inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_where_they_run(monkeypatch):
    """On recent GPUs, for the sizes and dtypes that they are made for; elsewhere XLA computes the same."""
    monkeypatch.setattr(device, "runs_triton", lambda _: True)
    draw = lambda *shape, dtype="bfloat16": jax.ShapeDtypeStruct((2, 3, *shape), dtype)
    fits = lambda key, value: chunk_kernels.fits(draw(*key), draw(*value))
    assert fits((64, 8, 64), (64, 8, 64))
    assert fits((64, 1, 128), (64, 8, 64))
    assert not fits((64, 2, 64), (64, 8, 64))  # groups of heads
    assert not fits((128, 8, 64), (128, 8, 64))  # a longer chunk
    assert not fits((64, 8, 128), (64, 8, 128))  # a larger state
    assert not fits((64, 8, 48), (64, 8, 64))
    assert not chunk_kernels.fits(draw(64, 8, 64, dtype="float32"), draw(64, 8, 64, dtype="float32"))
    monkeypatch.setattr(device, "runs_triton", lambda _: False)
    assert not fits((64, 8, 64), (64, 8, 64))
