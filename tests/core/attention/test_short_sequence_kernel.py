"""The attention of short sequences equals its definition, forward and backward.

It is interpreted on a CPU; `make test-gpu` compiles it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from conftest import ON_GPU, needs_eight_devices
from jax.sharding import NamedSharding, PartitionSpec

from s2sjax import config
from s2sjax.core import attention
from s2sjax.core.attention import short_sequence_kernel
from s2sjax.training import mesh as meshes

INTERPRET = not ON_GPU


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def both_ways(attend, gradient, *arrays):
    attended, pull = jax.vjp(attend, *arrays)
    return attended, *pull(gradient)


with_and_without_bias = pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])


def bias_if(biased, queries, keys):
    return [drawn(2, queries, keys, seed=4)] * biased


@with_and_without_bias
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(("queries", "keys"), zoo.first(1, [(20, 20), (1, 17), (17, 1), (5, 5)], most=3))
def test_it_is_multi_head_attention(queries, keys, causal, biased):
    """Rows of every length: full, one key, and none, which gives zeros and no gradient; odd sizes."""
    lengths = jnp.array([keys, 1, 0, (keys + 1) // 2])
    heads = drawn(4, queries, 2, 16), drawn(4, keys, 2, 16, seed=1), drawn(4, keys, 2, 16, seed=2)
    gradient, bias = drawn(4, queries, 2, 16, seed=3), bias_if(biased, queries, keys)
    seen = (jnp.arange(keys)[None, None] < lengths[:, None, None]) & (
        jnp.tri(queries, keys, dtype=bool) | (not causal)
    )[None]
    reference = lambda *arrays: attention.multi_head(*arrays[:3], seen, *(bias[None] for bias in arrays[3:]))
    expected = both_ways(reference, gradient, *heads, *bias)
    static = short_sequence_kernel.Static(causal, interpret=INTERPRET)
    kernel = lambda *arrays: short_sequence_kernel.attend(*arrays[:3], lengths, static, *arrays[3:])
    found = both_ways(kernel, gradient, *heads, *bias)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)
    assert not any(one[2].any() for one in found[:4])


def test_what_is_beyond_a_length_is_never_read():
    lengths, static = jnp.array([3, 1]), short_sequence_kernel.Static(False, interpret=INTERPRET)
    queries, keys, values = drawn(2, 4, 2, 16), drawn(2, 5, 2, 16, seed=1), drawn(2, 5, 2, 16, seed=2)
    beyond = (jnp.arange(5)[None] >= lengths[:, None])[..., None, None]
    other = [jnp.where(beyond, 1e3, array) for array in (keys, values)]
    found = short_sequence_kernel.attend(queries, keys, values, lengths, static)
    np.testing.assert_array_equal(found, short_sequence_kernel.attend(queries, *other, lengths, static))


def test_half_precision():
    """Its products have operands of bfloat16, its softmax is of float32: only weights and results are rounded."""
    narrow = [drawn(2, 9, 2, 32, seed=seed).astype(jnp.bfloat16) for seed in range(3)]
    lengths = jnp.array([9, 4])
    seen = jnp.broadcast_to(jnp.arange(9)[None, None] < lengths[:, None, None], (2, 9, 9))
    found = short_sequence_kernel.attend(*narrow, lengths, short_sequence_kernel.Static(False, interpret=INTERPRET))
    assert found.dtype == jnp.bfloat16
    exact = attention.multi_head(*(array.astype(jnp.float32) for array in narrow), seen)
    # Half of the last of 8 bits is 0.002: of the weights, and of the result.
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=0, atol=0.005 * float(abs(exact).max()))


@with_and_without_bias
def test_under_vmap_the_calls_are_one_batch(biased):
    """As the blocks of a stack are initialised, and ensembles run."""
    static = short_sequence_kernel.Static(True, interpret=INTERPRET)
    heads, gradient = [drawn(3, 2, 6, 2, 16, seed=seed) for seed in range(3)], drawn(3, 2, 6, 2, 16, seed=3)
    heads += [jnp.stack([scale * array for scale in (1, 2, 3)]) for array in bias_if(biased, 6, 6)]
    lengths = jnp.array([6, 2])
    one = lambda gradient, *heads: both_ways(
        lambda *heads: short_sequence_kernel.attend(*heads[:3], lengths, static, *heads[3:]), gradient, *heads
    )
    for found, expected in zip(jax.vmap(one)(gradient, *heads), jax.lax.map(lambda x: one(*x), (gradient, *heads))):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@needs_eight_devices
@with_and_without_bias
def test_each_device_serves_its_own_sentences_and_heads(biased):
    """On a mesh of 4 x 2, batch and heads split: the same values and gradients, and nothing is gathered."""
    mesh = meshes.make_mesh(config.Mesh(tensor=2))
    split = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))
    heads = drawn(4, 6, 2, 16), drawn(4, 7, 2, 16, seed=1), drawn(4, 7, 2, 16, seed=2)
    of_heads, bias = NamedSharding(mesh, PartitionSpec("tensor")), bias_if(biased, 6, 7)
    lengths, gradient = jnp.array([7, 3, 0, 1]), drawn(4, 6, 2, 16, seed=3)
    static = short_sequence_kernel.Static(False, interpret=INTERPRET)
    kernel = lambda *arrays: short_sequence_kernel.attend(*arrays[:3], lengths, static, *arrays[3:])
    find = jax.jit(lambda *arrays: both_ways(kernel, gradient, *arrays))
    sharded = [jax.device_put(array, split) for array in heads] + [jax.device_put(array, of_heads) for array in bias]
    compiled = find.lower(*sharded).compile()
    assert "all-gather" not in compiled.as_text()
    for one, other in zip(compiled(*sharded), find(*heads, *bias)):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@needs_eight_devices
def test_every_device_gets_the_arrays_of_its_own_heads():
    """Arrays that are whole on every device, while the queries are split."""
    mesh = meshes.make_mesh(config.Mesh(tensor=2))
    heads = drawn(4, 6, 2, 16), drawn(4, 7, 2, 16, seed=1), drawn(4, 7, 2, 16, seed=2)
    lengths, bias, gradient = jnp.array([7, 3, 0, 1]), drawn(2, 6, 7, seed=4), drawn(4, 6, 2, 16, seed=3)
    static = short_sequence_kernel.Static(False, interpret=INTERPRET)
    find = jax.jit(
        lambda lengths, *arrays: both_ways(
            lambda *arrays: short_sequence_kernel.attend(*arrays[:3], lengths, static, *arrays[3:]), gradient, *arrays
        )
    )
    put = lambda array, *axes: jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))
    split = [put(array, "data", None, "tensor") for array in heads]
    for one, other in zip(find(put(lengths), *split, put(bias)), find(lengths, *heads, bias)):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
