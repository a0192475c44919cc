"""The laws on a real GPU, as users compile: every family in float32 and in bfloat16, kernels, and restarts.

`make test-gpu` runs them, with the tests of the Pallas kernels in tests/core/; they are skipped elsewhere.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from conftest import ON_GPU
from interop import folders
from models import test_laws as laws
from models.test_training_laws import restarted_is_straight

from s2sjax import config, models
from s2sjax.core import attention, losses
from s2sjax.core.attention import decode_kernel, kv_cache, short_sequence_kernel
from s2sjax.core.backend import device
from s2sjax.core.special_tokens import PAD
from s2sjax.testing import model_laws

pytestmark = [pytest.mark.skipif(not ON_GPU, reason="needs a GPU: make test-gpu"), pytest.mark.exhaustive]
every_family = pytest.mark.parametrize("name", zoo.FAMILIES)
RESTARTED = ("luong", "transformer-post", "convs2s", "cho", "pair-transformer-rnnsearch")
"""for a law whose programs take half a minute each to compile"""
BAR = 0.05
"""relative error of bfloat16, as everywhere: eight bits of mantissa, a dozen products deep"""


@cache
def built(name: str, dtype: str = "float32") -> zoo.Pure:
    """With heads of 16, which the kernels take."""
    return zoo.Pure(zoo.widened(zoo.MODELS[name], 32), sharp=1.5 if dtype == "float32" else 1.0, dtype=dtype)


def relative_error(found, exact) -> float:
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True))
    size = lambda arrays: np.sqrt(sum(np.sum(np.square(np.asarray(array, np.float64))) for array in arrays))
    return size([np.float64(a) - np.float64(b) for a, b in pairs]) / size([b for _, b in pairs])


@every_family
@pytest.mark.parametrize("law", laws.OF_STRUCTURE, ids=laws.law_name)
def test_the_laws_hold_in_float32(law, name):
    law(built(name))


@every_family
def test_beam_one_equals_greedy(name):
    laws.test_beam_one_equals_greedy(name, built(name))


@every_family
def test_the_laws_hold_in_bfloat16(name):
    """Teacher forced, step by step, padded, with gradients, and as a search scores it: each is near float32."""
    source, target = zoo.batch(np.random.default_rng(1))
    half = built(name, "bfloat16")
    single = zoo.Pure(zoo.widened(zoo.MODELS[name], 32))
    real = (target != PAD)[..., None]
    exact = single.logits(source, target) * real
    longer = [np.pad(side, ((0, 2), (0, 3))) for side in (source, target)]
    found = single.decode(source, 5, **model_laws.BEAM)
    gradient = single.gradient(source, target)
    with jax.default_matmul_precision("default"):
        assert half.logits(source, target).dtype == np.float32
        assert 0 < relative_error(half.logits(source, target) * real, exact) < BAR
        assert relative_error(half.step_by_step(source, target)[0] * real, exact) < BAR
        assert relative_error(half.logits(*longer)[:4, : target.shape[1]] * real, exact) < BAR
        assert relative_error(half.gradient(source, target), gradient) < 2 * BAR  # twice as deep
        found = half.decode(source, 5, **model_laws.BEAM)
    for place in range(3):
        tokens = found.tokens[:, place]
        log_p = losses.log_likelihood(single.logits(source, tokens), tokens, tokens != PAD)
        np.testing.assert_allclose(found.log_probs[:, place], log_p, rtol=BAR)


@pytest.mark.parametrize("name", folders.IMPORTED)
def test_pretrained_models_compute_what_transformers_computes(name, tmp_path):
    imported, case = folders.load(name, tmp_path), folders.stored(name)
    source, target = case["source"].astype(np.int32), case["target"].astype(np.int32)
    real = (target != PAD)[..., None]
    for dtype in ("float32", "bfloat16"):
        model = models.build(imported.settings, *folders.sizes(name), dtype)
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            found = jax.jit(model.apply)({"params": imported.params}, source, target)
        if dtype == "float32":
            np.testing.assert_allclose(found * real, case["logits"] * real, atol=1e-4, rtol=0)
        else:
            assert 0 < relative_error(found * real, case["logits"] * real) < BAR


@pytest.mark.parametrize("name", RESTARTED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restart_changes_no_bit(name, dtype, tmp_path):
    """Without the option, sums of the gradients of an embedding are in no fixed order: no two runs have equal bits."""
    with jax.default_matmul_precision("default"):
        restarted_is_straight(name, {}, tmp_path, dtype, {"xla_gpu_exclude_nondeterministic_ops": True})


@pytest.mark.parametrize(("length", "kernel"), [(64, "short"), (128, "short"), (160, "cudnn"), (161, "xla")])
def test_attention_of_every_length(length, kernel):
    """Whichever kernel computes it: values and gradients near those of float32."""
    model = config.Transformer(width=64, heads=2, feedforward=64, encoder_layers=1, decoder_layers=1, dropout=0.0)
    heads = jax.ShapeDtypeStruct((4, length, 2, 32), jnp.bfloat16)
    assert device.attention_kernel(heads, heads) == kernel
    half, single = (zoo.Pure(model, dtype=dtype) for dtype in ("bfloat16", "float32"))
    both = zoo.batch(np.random.default_rng(2), source=length, target=length)
    exact, gradient = single.logits(*both), single.gradient(*both)
    real = (both[1] != PAD)[..., None]
    with jax.default_matmul_precision("default"):
        assert relative_error(half.logits(*both) * real, exact * real) < BAR
        assert relative_error(half.gradient(*both), gradient) < 2 * BAR


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.bfloat16)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [61, 64, 128])
def test_short_attention_at_the_sizes_of_training(length, causal):
    """Transformer-base: 8 heads of 64."""
    heads = [drawn(32, length, 8, 64, seed=seed) for seed in range(3)]
    gradient = drawn(32, length, 8, 64, seed=3)
    lengths = jnp.asarray(np.random.default_rng(0).integers(0, length + 1, 32))
    seen = (jnp.arange(length) < lengths[:, None, None]) & (jnp.tri(length, dtype=bool) | (not causal))
    exact, pull = jax.vjp(
        lambda *heads: attention.multi_head(*heads, seen), *(head.astype(jnp.float32) for head in heads)
    )
    expected = exact, *pull(gradient.astype(jnp.float32))
    found, pull = jax.vjp(
        lambda *heads: short_sequence_kernel.attend(*heads, lengths, short_sequence_kernel.Static(causal)), *heads
    )
    for mine, other in zip((found, *pull(gradient)), expected):
        assert relative_error(mine, other) < 0.01  # products of bfloat16, each rounded once


@pytest.mark.parametrize(("batch", "beams", "length"), [(64, 5, 64), (1, 5, 200), (512, 1, 64)])
def test_kernels_at_the_sizes_of_decoding(batch, beams, length):
    at = jnp.asarray(np.random.default_rng(0).integers(0, length, batch))
    index = jnp.asarray(np.random.default_rng(1).integers(0, beams, (batch, beams, length)))
    index = jnp.where(jnp.arange(length) == at[:, None, None], jnp.arange(beams)[:, None], index)
    qkv, cache = drawn(batch, beams, 3, 8, 64), tuple(drawn(batch, 8, length, beams, 64, seed=s) for s in (1, 2))
    wide = qkv.astype(jnp.float32), tuple(part.astype(jnp.float32) for part in cache)
    expected = kv_cache.attend(*wide, index, at)[0]
    attended, written = decode_kernel.attend_and_write(qkv, cache, index, at)
    assert relative_error(attended, expected) < 0.01
    for mine, other in zip(written, kv_cache.attend(qkv, cache, index, at)[1]):
        np.testing.assert_array_equal(mine, other)

    keys, values = (drawn(batch, 8, length, 64, seed=seed) for seed in (3, 4))
    mask = jnp.asarray(np.random.default_rng(2).random((batch, beams, length)) < 0.8)
    wide = [array.astype(jnp.float32) for array in (qkv[:, :, 0], keys, values)]
    expected = attention.attend_heads(*wide, mask)[0]
    assert relative_error(decode_kernel.attend(qkv[:, :, 0], keys, values, mask), expected) < 0.01
