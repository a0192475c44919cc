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


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(("queries", "keys"), zoo.first(1, [(20, 20), (1, 17), (17, 1), (5, 5)], most=3))
def test_it_is_multi_head_attention(queries, keys, causal):
    """Rows of every length: full, one key, and none, which gives zeros and no gradient; odd sizes."""
    lengths = jnp.array([keys, 1, 0, (keys + 1) // 2])
    heads = drawn(4, queries, 2, 16), drawn(4, keys, 2, 16, seed=1), drawn(4, keys, 2, 16, seed=2)
    gradient = drawn(4, queries, 2, 16, seed=3)
    seen = (jnp.arange(keys)[None, None] < lengths[:, None, None]) & (
        jnp.tri(queries, keys, dtype=bool) | (not causal)
    )[None]
    expected = both_ways(lambda *heads: attention.multi_head(*heads, seen), gradient, *heads)
    static = short_sequence_kernel.Static(causal, interpret=INTERPRET)
    found = both_ways(lambda *heads: short_sequence_kernel.attend(*heads, lengths, static), gradient, *heads)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)
        assert not one[2].any()


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


def test_under_vmap_the_calls_are_one_batch():
    """As the blocks of a stack are initialised, and ensembles run."""
    static = short_sequence_kernel.Static(True, interpret=INTERPRET)
    heads, gradient = [drawn(3, 2, 6, 2, 16, seed=seed) for seed in range(3)], drawn(3, 2, 6, 2, 16, seed=3)
    lengths = jnp.array([6, 2])
    one = lambda gradient, *heads: both_ways(
        lambda *heads: short_sequence_kernel.attend(*heads, lengths, static), gradient, *heads
    )
    for found, expected in zip(jax.vmap(one)(gradient, *heads), jax.lax.map(lambda x: one(*x), (gradient, *heads))):
        np.testing.assert_array_equal(found, expected)


@needs_eight_devices
def test_each_device_serves_its_own_sentences_and_heads():
    """On a mesh of 4 x 2, batch and heads split: the same values and gradients, and nothing is gathered."""
    mesh = meshes.make_mesh(config.Mesh(tensor=2))
    split = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))
    arrays = drawn(4, 6, 2, 16), drawn(4, 7, 2, 16, seed=1), drawn(4, 7, 2, 16, seed=2)
    lengths, gradient = jnp.array([7, 3, 0, 1]), drawn(4, 6, 2, 16, seed=3)
    static = short_sequence_kernel.Static(False, interpret=INTERPRET)
    find = jax.jit(
        lambda *heads: both_ways(lambda *heads: short_sequence_kernel.attend(*heads, lengths, static), gradient, *heads)
    )
    compiled = find.lower(*(jax.device_put(array, split) for array in arrays)).compile()
    assert "all-gather" not in compiled.as_text()
    for one, other in zip(compiled(*(jax.device_put(array, split) for array in arrays)), find(*arrays)):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
