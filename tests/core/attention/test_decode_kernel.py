"""The kernels for one query a prefix equal their definitions, on one device and on eight.

They are interpreted on a CPU; `make test-gpu` compiles them.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from conftest import ON_GPU, needs_eight_devices
from jax.sharding import NamedSharding, PartitionSpec

from s2sjax import config, models
from s2sjax.core import attention, search
from s2sjax.core.attention import decode_kernel, kv_cache
from s2sjax.core.backend import device
from s2sjax.training import mesh as meshes

INTERPRET = not ON_GPU


def drawn(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


@pytest.mark.parametrize(("capability", "runs"), [("9.0", True), ("8.0", True), ("7.5", False), ("gfx942", False)])
def test_old_and_other_devices_are_left_to_xla(capability, runs):
    assert device.runs_triton(SimpleNamespace(compute_capability=capability)) == runs
    assert decode_kernel.fits(drawn(1, 1, 1, 16)) == ON_GPU


@pytest.fixture
def use_kernels(monkeypatch):
    """use_kernels(True) makes searches use the kernels; use_kernels(False), their definitions."""
    for name in ("attend", "attend_and_write"):
        monkeypatch.setattr(decode_kernel, name, partial(getattr(decode_kernel, name), interpret=INTERPRET))
    return lambda use: monkeypatch.setattr(decode_kernel, "fits", lambda heads: use)


def a_cache(at, K=5, N=2, D=16, L=7, dtype="float32"):
    """qkv, cache, beam_index; where a prefix writes, its index is its own row."""
    B = len(at)
    beam_index = jnp.asarray(np.random.default_rng(0).integers(0, K, (B, K, L)))
    beam_index = jnp.where(jnp.arange(L)[None, None] == (at % L)[:, None, None], jnp.arange(K)[:, None], beam_index)
    cache = tuple(drawn(B, N, L, K, D, seed=seed, dtype=dtype) for seed in (1, 2))
    return drawn(B, K, 3, N, D, dtype=dtype), cache, beam_index


@pytest.mark.parametrize(("prefixes", "length"), zoo.first(2, [(1, 64), (17, 150), (5, 1), (5, 150), (17, 64)]))
def test_a_shared_memory(prefixes, length):
    queries, keys, values = drawn(2, prefixes, 3, 16), drawn(2, 3, length, 16, seed=1), drawn(2, 3, length, 16, seed=2)
    mask = jnp.asarray(np.random.default_rng(0).random((2, prefixes, length)) < 0.5).at[1, -1].set(False)
    attended = decode_kernel.attend(queries, keys, values, mask, INTERPRET)
    np.testing.assert_allclose(attended, attention.attend_heads(queries, keys, values, mask)[0], rtol=1e-5, atol=1e-6)
    assert not attended[1, -1].any()  # it sees nothing


@pytest.mark.parametrize(("length", "prefixes"), zoo.first(1, [(70, 5), (1, 5), (32, 1), (70, 1)]))
def test_the_cache_of_each_prefix_and_what_is_written(length, prefixes):
    for position in ([0, 1, length - 1], [length, length + 3, 2 * length]):  # the second: a cache that rolls
        at = jnp.asarray(position)
        qkv, cache, beam_index = a_cache(at, K=prefixes, L=length)
        expected, caches = kv_cache.attend(qkv, cache, beam_index, at)
        attended, written = decode_kernel.attend_and_write(qkv, cache, beam_index, at, INTERPRET)
        np.testing.assert_allclose(attended, expected, rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(written, caches, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_half_precision_is_summed_in_float32():
    at = jnp.array([5, 40, 63])
    qkv, cache, beam_index = a_cache(at, dtype="bfloat16", L=64)
    exact = kv_cache.attend(qkv.astype("float32"), tuple(part.astype("float32") for part in cache), beam_index, at)[0]
    attended, _ = decode_kernel.attend_and_write(qkv, cache, beam_index, at, INTERPRET)
    assert attended.dtype == jnp.bfloat16
    np.testing.assert_allclose(attended.astype("float32"), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(("positions", "window"), zoo.first(0, [("rotary", 4), ("sinusoidal", 0)], most=1))
def test_a_search_finds_the_same(positions, window, use_kernels):
    small = {"width": 32, "heads": 2, "feedforward": 32, "encoder_layers": 1, "decoder_layers": 2}
    module = models.build(config.Transformer(positions=positions, window=window, **small), 30, 30)
    source = np.random.default_rng(0).integers(4, 30, (3, 6)).astype(np.int32)
    params = jax.jit(module.init)(jax.random.key(0), source, source)["params"]

    def found(kernels: bool):
        use_kernels(kernels)
        memory = module.apply({"params": params}, source, method="encode")
        state = module.apply({"params": params}, memory, 12, method="init_state")
        limit = jnp.array([12, 7, 0])
        return search.beam_search(module.beams(params, memory), state, limit, 12, width=4, nbest=4, penalty="mean")

    plain, kernels = found(False), found(True)
    np.testing.assert_array_equal(kernels.tokens, plain.tokens)
    np.testing.assert_allclose(kernels.scores, plain.scores, rtol=1e-5)


@pytest.mark.slow
@needs_eight_devices
def test_each_of_eight_devices_serves_its_own_sentences_and_heads():
    mesh = meshes.make_mesh(config.Mesh(tensor=2))
    put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
    at = jnp.arange(8)
    qkv, cache, beam_index = a_cache(at, N=4)
    expected, caches = kv_cache.attend(qkv, cache, beam_index, at)
    batch = ("data", "fsdp")
    placed = (
        put(qkv, batch, None, None, "tensor"),
        tuple(put(part, batch, "tensor") for part in cache),
        put(beam_index, batch),
        put(at, batch),
    )
    program = jax.jit(partial(decode_kernel.attend_and_write, interpret=True)).lower(*placed).compile()
    assert "all-gather" not in program.as_text()
    attended, written = program(*placed)
    assert attended.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(batch, None, "tensor")), 4)
    np.testing.assert_allclose(attended, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(written[0], caches[0])

    queries, keys = put(qkv[:, :, 0], batch, None, "tensor"), put(drawn(8, 4, 9, 16), batch, "tensor")
    mask = put(jnp.ones((8, 5, 9), bool), batch)
    program = jax.jit(partial(decode_kernel.attend, interpret=True)).lower(queries, keys, keys, mask).compile()
    assert "all-gather" not in program.as_text()
    expected = attention.attend_heads(queries, keys, keys, mask)[0]
    np.testing.assert_allclose(program(queries, keys, keys, mask), expected, rtol=1e-5, atol=1e-6)
