"""Attention against one-line formulas, a loop, Flax and PyTorch."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core import attention, positions

ROWS, QUERIES, MEMORY, WIDTH, HIDDEN, HEADS = 3, 4, 5, 6, 7, 2
LENGTHS = np.array([5, 2, 0])
MASK = np.arange(MEMORY) < LENGTHS[:, None]
BAR = 1e-5

every_score = pytest.mark.parametrize("name", attention.SCORES)

masked_softmax = jax.jit(attention.masked_softmax)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --------------------------------------------------------------------------------------- softmax


def test_the_worked_case():
    """q . k = 112 and 96 with d_k = 64: scores 14 and 12, weights 0.88 and 0.12."""
    query, keys = np.ones(64, np.float32), np.full((2, 64), [[112 / 64], [96 / 64]], np.float32)
    score = attention.SCORES["scaled_dot"]
    np.testing.assert_allclose(score.score({}, query, keys), [14, 12])
    context, alpha = attention.attend(score, {}, query, keys, np.eye(2, dtype=np.float32), np.array([True, True]))
    np.testing.assert_allclose(alpha, [0.88, 0.12], atol=0.005)
    np.testing.assert_array_equal(context, alpha)


def test_softmax_where_nothing_is_masked():
    scores = draw(0, ROWS, MEMORY)
    np.testing.assert_allclose(masked_softmax(scores, np.ones_like(MASK)), jax.nn.softmax(scores), rtol=1e-6)


def test_masked_positions_have_no_weight_and_an_empty_row_is_zero():
    found = np.asarray(masked_softmax(draw(1, ROWS, MEMORY), MASK))
    assert (found[~MASK] == 0).all()
    np.testing.assert_allclose(found.sum(1), LENGTHS > 0, rtol=1e-6)


@pytest.mark.parametrize("masked", [0, 1e30, -1e30, np.inf, -np.inf, np.nan])
def test_what_stands_at_masked_positions_does_not_matter(masked):
    """Neither to the weights nor to the gradient, which is zero there and everywhere in an empty row."""
    pull = jax.jit(lambda scores, by: jax.vjp(lambda s: attention.masked_softmax(s, MASK), scores)[1](by)[0])
    scores, by = draw(2, ROWS, MEMORY), draw(3, ROWS, MEMORY)
    other = np.where(MASK, scores, np.float32(masked))
    np.testing.assert_array_equal(masked_softmax(other, MASK), masked_softmax(scores, MASK))
    gradient = np.asarray(pull(other, by))
    np.testing.assert_array_equal(gradient, pull(scores, by))
    assert (gradient[~MASK] == 0).all()
    assert np.abs(gradient[MASK]).max() > 0.01


def test_huge_scores_are_finite():
    scores = np.array([[1e30, -1e30, 1e30, 0], [-1e30, -1e30, -3e38, -1e30], [-np.inf, 0, 3, -np.inf]], np.float32)
    third = 1 / 3
    expected = [[0.5, 0, 0.5, 0], [third, third, 0, third], [0, 0.0474, 0.9526, 0]]
    everywhere = np.ones(scores.shape, bool)
    np.testing.assert_allclose(masked_softmax(scores, everywhere), expected, atol=1e-4)
    slope = jax.jit(jax.grad(lambda s: jnp.sum(attention.masked_softmax(s, everywhere) * np.arange(4))))
    assert np.isfinite(slope(scores)).all()


# ---------------------------------------------------------------------------------------- scores


def score_example(name: str):
    """weights, queries [B, T, Q], memory [B, S, M]; Q = M where the score needs it."""
    score = attention.SCORES[name]
    memory = WIDTH if name in ("dot", "scaled_dot") else WIDTH + 3
    shapes = score.shapes(WIDTH, memory, HIDDEN)
    weights = {key: draw(seed, *shape) for seed, (key, shape) in enumerate(shapes.items())}
    return score, weights, draw(10, ROWS, QUERIES, WIDTH), draw(11, ROWS, MEMORY, memory)


FORMULAS = {
    "dot": lambda w, q, h: q @ h,
    "scaled_dot": lambda w, q, h: q @ h / np.sqrt(WIDTH),
    "general": lambda w, q, h: q @ w["memory"].T @ h,
    "additive": lambda w, q, h: w["vector"] @ np.tanh(w["memory"].T @ h + w["query"].T @ q),
}


@every_score
def test_a_score_is_its_formula(name):
    score, weights, queries, memory = score_example(name)
    ask, prepare = partial(score.ask, weights), partial(score.prepare, weights)
    one = jax.jit(lambda state, memory: score.score(weights, ask(state), prepare(memory)))
    expected = [FORMULAS[name](weights, queries[0, 0], h) for h in memory[0]]
    np.testing.assert_allclose(one(queries[0, 0], memory[0]), expected, atol=BAR)


@every_score
def test_many_queries_are_a_loop_over_one(name):
    """And one query is a weighted mean of the values; an empty memory gives zeros."""
    score, weights, queries, memory = score_example(name)
    values = draw(12, ROWS, MEMORY, 2)

    @jax.jit
    def attend(queries, memory, values, mask):
        keys = score.prepare(weights, memory)
        together = attention.attend_all(score, weights, queries, keys, values, mask)
        steps = [attention.attend_batch(score, weights, queries[:, t], keys, values, mask) for t in range(QUERIES)]
        return together, steps

    (contexts, alphas), steps = attend(queries, memory, values, MASK)
    assert contexts.shape == (ROWS, QUERIES, 2)
    assert alphas.shape == (ROWS, QUERIES, MEMORY)
    for t, (context, alpha) in enumerate(steps):
        np.testing.assert_allclose(contexts[:, t], context, atol=BAR)
        np.testing.assert_allclose(alphas[:, t], alpha, atol=BAR)
        for row, n in enumerate(LENGTHS):
            e = np.array([FORMULAS[name](weights, queries[row, t], h) for h in memory[row, :n]])
            weight = np.exp(e) / np.exp(e).sum()
            np.testing.assert_allclose(alpha[row], np.pad(weight, (0, MEMORY - n)), atol=BAR)
            np.testing.assert_allclose(context[row], weight @ values[row, :n], atol=BAR)


def test_half_precision_weighs_in_float32():
    score, weights, queries, memory = score_example("additive")
    half = partial(jax.tree.map, lambda x: jnp.asarray(x, jnp.bfloat16))
    attend = jax.jit(partial(attention.attend_all, score))
    keys = score.prepare(half(weights), half(memory))
    context, alpha = attend(half(weights), half(queries), keys, half(memory), MASK)
    assert (context.dtype, alpha.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(alpha.sum(-1), np.repeat(LENGTHS[:, None] > 0, QUERIES, 1), atol=1e-6)


# ------------------------------------------------------------------------------------ many heads


def heads_example(queries: int = QUERIES, memory: int = MEMORY):
    return (
        draw(20, ROWS, queries, HEADS, WIDTH),
        draw(21, ROWS, memory, HEADS, WIDTH),
        draw(22, ROWS, memory, HEADS, WIDTH),
    )


def test_many_heads_equal_flax_and_pytorch():
    mask = np.random.default_rng(23).random((ROWS, QUERIES, MEMORY)) < 0.6
    mask[..., 0] = True  # theirs do not define an empty row
    queries, keys, values = heads_example()
    ours = jax.jit(attention.multi_head)(queries, keys, values, mask)
    flax = jax.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, mask=mask[:, None]))(queries, keys, values)
    np.testing.assert_allclose(ours, flax, atol=BAR)

    torch = pytest.importorskip("torch", reason="PyTorch is the independent implementation here")
    tensors = [torch.tensor(x.swapaxes(1, 2)) for x in (queries, keys, values)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch.tensor(mask[:, None]))
    np.testing.assert_allclose(ours, theirs.numpy().swapaxes(1, 2), atol=BAR)


@pytest.mark.parametrize("causal, memory", [(False, MEMORY), (True, QUERIES)], ids=["cross", "causal"])
def test_the_fused_kernel_equals_the_definition(causal, memory):
    """Values and gradients, for whole, padded and empty memories."""
    lengths = np.array([memory, 2, 0])
    mask = np.repeat((np.arange(memory) < lengths[:, None])[:, None], QUERIES, axis=1)
    if causal:
        mask &= np.tri(QUERIES, memory, dtype=bool)
    definition = partial(attention.multi_head, mask=mask)
    fused = partial(attention.fused_multi_head, lengths=lengths, causal=causal)

    def value_and_gradients(attend, *arrays):
        value, pull = jax.vjp(attend, *arrays)
        return value, pull(draw(24, *value.shape))

    expected, found = (
        jax.jit(partial(value_and_gradients, f))(*heads_example(memory=memory)) for f in (definition, fused)
    )
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), found, expected)
    assert all((leaf[2] == 0).all() for leaf in jax.tree.leaves(found))  # the empty memory, and its gradients


def test_one_query_of_many_heads_is_a_row_of_all():
    queries, keys, values = heads_example()
    everyone = np.repeat(MASK[:, None], QUERIES, axis=1)
    expected = jax.jit(attention.multi_head)(queries, keys, values, everyone)
    one = jax.jit(attention.attend_heads)
    heads_first = [memory.swapaxes(1, 2) for memory in (keys, values)]
    for t in range(QUERIES):
        attended, alpha = one(queries[:, t], *heads_first, MASK)
        np.testing.assert_allclose(attended, expected[:, t], atol=BAR)
        np.testing.assert_allclose(alpha.sum(-1), np.repeat(LENGTHS[:, None] > 0, HEADS, 1), atol=1e-6)
        assert (np.asarray(alpha)[np.repeat(~MASK[:, None], HEADS, 1)] == 0).all()


def test_only_positions_tell_order():
    """ATT(A, B, C) = ATT(B, C, A) up to order; with sinusoidal positions it is not."""
    attend = jax.jit(lambda x: attention.multi_head(x, x, x, np.ones((1, MEMORY, MEMORY), bool)))
    words, shift = draw(25, 1, MEMORY, 1, WIDTH), np.roll(np.arange(MEMORY), -1)
    where = np.asarray(jax.jit(positions.sinusoidal, static_argnums=1)(np.arange(MEMORY), WIDTH))[None, :, None]
    np.testing.assert_allclose(attend(words[:, shift]), attend(words)[:, shift], atol=BAR)
    assert np.abs(attend(words[:, shift] + where) - attend(words + where)[:, shift]).max() > 0.1
