"""Attention against one-line formulas, a loop, Flax and PyTorch."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from s2sjax.core import attention
from s2sjax.core.attention import position_encodings

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
    np.testing.assert_allclose(alpha, [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], rtol=1e-6)
    np.testing.assert_array_equal(np.round(alpha, 2), np.float32([0.88, 0.12]))
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
    slope = jax.jit(jax.grad(lambda s: jnp.sum(attention.masked_softmax(s, everywhere) * np.arange(4)[None])))
    assert np.isfinite(slope(scores)).all()


# ---------------------------------------------------------------------------------------- scores


def score_example(name: str):
    """weights, queries [B, T, Q], memory [B, S, M]; Q = M where the score needs it."""
    score = attention.SCORES[name]
    memory = WIDTH if name in ("dot", "scaled_dot", "cosine") else WIDTH + 3
    shapes = score.shapes(WIDTH, memory, HIDDEN)
    weights = {key: draw(seed, *shape) for seed, (key, shape) in enumerate(shapes.items())}
    return score, weights, draw(10, ROWS, QUERIES, WIDTH), draw(11, ROWS, MEMORY, memory)


FORMULAS = {
    "dot": lambda w, q, h: q @ h,
    "scaled_dot": lambda w, q, h: q @ h / np.sqrt(WIDTH),
    "general": lambda w, q, h: q @ w["memory"].T @ h,
    "additive": lambda w, q, h: w["vector"] @ np.tanh(w["memory"].T @ h + w["query"].T @ q),
    "cosine": lambda w, q, h: q @ h / np.linalg.norm(q) / np.linalg.norm(h),
}


@every_score
def test_a_score_is_its_formula(name):
    score, weights, queries, memory = score_example(name)
    ask, prepare = partial(score.query, weights), partial(score.prepare, weights)
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


def test_cosine_equals_pytorch():
    theirs, score = references.of_pytorch("cosine"), attention.SCORES["cosine"]
    ours = jax.jit(lambda q, h: score.score({}, score.query({}, q), score.prepare({}, h)))
    np.testing.assert_allclose(ours(theirs["query"], theirs["memory"]), theirs["scores"], atol=BAR)


def test_a_vector_without_direction_has_cosine_zero_and_a_gradient_of_zero():
    """Zeros and what is as good as zero; next to them the gradient is that of the formula."""
    x = jnp.array([[3, 4], [0, 0], [1e-20, 0], [1e-7, 1e-7]], jnp.float32)
    value, pull = jax.vjp(jax.jit(attention.unit), x)
    np.testing.assert_allclose(value, [[0.6, 0.8], [0, 0], [0, 0], [0, 0]], rtol=1e-6)
    # d(x / |x|) of (1, 0) = (y^2, -x y) / |x|^3.
    np.testing.assert_allclose(pull(jnp.eye(2)[jnp.zeros(4, int)])[0], [[0.128, -0.096]] + 3 * [[0, 0]], rtol=1e-5)


def test_a_window_thins_the_weights_and_a_bias_moves_the_scores():
    """alpha = softmax over where the window is above 0, times the window; a bias is added before."""
    query, keys, window, bias = (
        draw(13, WIDTH),
        draw(14, MEMORY, WIDTH),
        np.array([0, 0.5, 1, 1, 0.2]),
        draw(15, MEMORY),
    )
    real = np.array([True, True, False, True, True])
    one = jax.jit(partial(attention.attend, attention.SCORES["dot"], {}))
    context, alpha = one(query, keys, keys, real, bias=bias, window=window.astype(np.float32))
    weight = np.exp(keys @ query + bias) * (real & (window > 0))
    expected = weight / weight.sum() * window
    np.testing.assert_allclose(alpha, expected, atol=BAR)
    np.testing.assert_allclose(context, expected @ keys, atol=BAR)


def test_coverage_enters_the_additive_score():
    """e_i = v . tanh(W_1 h_i + W_2 s + w_c cov_i)."""
    score, weights, queries, memory = score_example("additive")
    weights["coverage"], coverage = draw(16, HIDDEN), np.abs(draw(17, ROWS, MEMORY))
    keys = attention.add_coverage(weights, score.prepare(weights, memory), coverage)
    found = score.score(weights, score.query(weights, queries[0, 0]), keys[0])
    hidden = (
        memory[0] @ weights["memory"] + queries[0, 0] @ weights["query"] + coverage[0][:, None] * weights["coverage"]
    )
    np.testing.assert_allclose(found, np.tanh(hidden) @ weights["vector"], atol=BAR)


@every_score
def test_pooling_is_a_learned_query_for_every_memory(name):
    """Whatever the order of the memory and the length of its padding; an empty memory gives zeros."""
    score, weights, queries, memory = score_example(name)
    pool = jax.jit(partial(attention.pool, score, weights))
    pooled, alpha = pool(queries[0], memory, MASK)
    assert pooled.shape == (ROWS, QUERIES, memory.shape[-1])
    for row, n in enumerate(LENGTHS):
        for q in range(QUERIES):
            e = np.array([FORMULAS[name](weights, queries[0, q], h) for h in memory[row, :n]])
            weight = np.exp(e) / np.exp(e).sum()
            np.testing.assert_allclose(alpha[row, q, :n], weight, atol=BAR)
            np.testing.assert_allclose(pooled[row, q], weight @ memory[row, :n], atol=BAR)
    shuffled = pool(queries[0], memory[:, ::-1], MASK[:, ::-1])[0]
    np.testing.assert_allclose(shuffled, pooled, atol=BAR)


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


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_many_heads_equal_flax_and_pytorch(biased):
    torch = references.of_pytorch("heads-biased" if biased else "heads-plain")
    queries, keys, values, theirs = (torch[name].swapaxes(1, 2) for name in ("queries", "keys", "values", "ys"))
    mask, bias = torch["mask"], torch["bias"] if biased else None
    ours = jax.jit(attention.multi_head)(queries, keys, values, mask, bias)
    np.testing.assert_allclose(ours, theirs, atol=BAR)
    flax = jax.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, bias, mask[:, None]))(queries, keys, values)
    np.testing.assert_allclose(ours, flax, atol=BAR)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("causal, memory", [(False, MEMORY), (True, QUERIES)], ids=["cross", "causal"])
def test_the_fused_kernel_equals_the_definition(causal, memory, biased):
    """Values and gradients, for whole, padded and empty memories."""
    lengths = np.array([memory, 2, 0])
    mask = np.repeat((np.arange(memory) < lengths[:, None])[:, None], QUERIES, axis=1)
    if causal:
        mask &= np.tri(QUERIES, memory, dtype=bool)
    definition = lambda *heads, bias=None: attention.multi_head(*heads, mask, bias)
    fused = lambda *heads, bias=None: attention.fused_multi_head(*heads, lengths, causal=causal, bias=bias)
    arrays = heads_example(memory=memory)
    if biased:
        bias = draw(26, 1, HEADS, QUERIES, memory)
        definition, fused = (lambda *a, f=f: f(*a[:3], bias=a[3]) for f in (definition, fused))
        arrays = (*arrays, bias)

    def value_and_gradients(attend, *arrays):
        value, pull = jax.vjp(attend, *arrays)
        return value, pull(draw(24, *value.shape))

    expected, found = (jax.jit(partial(value_and_gradients, f))(*arrays) for f in (definition, fused))
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), found, expected)
    value, gradients = found
    assert all((leaf[2] == 0).all() for leaf in (value, *gradients[:3]))  # the empty memory, and its gradients


def test_queries_that_tell_their_weights_attend_as_all_do():
    """Each with the shared keys and values, or with a copy of its own; with a bias and without."""
    queries, keys, values = heads_example()
    everyone = np.repeat(MASK[:, None], QUERIES, axis=1)
    shared = [memory.swapaxes(1, 2) for memory in (keys, values)]  # [B, N, S, D]
    own = [np.repeat(memory[:, :, None], QUERIES, axis=2) for memory in shared]  # [B, N, K, S, D]
    for bias in (None, draw(26, ROWS, HEADS, QUERIES, MEMORY)):
        expected = jax.jit(attention.multi_head)(queries, keys, values, everyone, bias)
        for memory in (shared, own):
            attended, alpha = jax.jit(attention.attend_heads)(queries, *memory, everyone, bias)
            np.testing.assert_allclose(attended, expected, atol=BAR)
            total = np.broadcast_to((LENGTHS > 0)[:, None, None], alpha.shape[:3])
            np.testing.assert_allclose(alpha.sum(-1), total, atol=1e-6)
            assert (np.asarray(alpha)[np.broadcast_to(~MASK[:, None, None], alpha.shape)] == 0).all()


def test_only_positions_tell_order():
    """ATT(A, B, C) = ATT(B, C, A) up to order; with positions of any kind it is not."""
    everyone = np.ones((1, MEMORY, MEMORY), bool)
    attend = jax.jit(lambda x, bias=None: attention.multi_head(x, x, x, everyone, bias))
    rotary = jax.jit(
        lambda x, place: attention.multi_head(*(position_encodings.rotate(y, place) for y in (x, x)), x, everyone)
    )
    words, shift = draw(25, 1, MEMORY, 1, WIDTH), np.roll(np.arange(MEMORY), -1)
    place = np.arange(MEMORY)
    where = np.asarray(jax.jit(position_encodings.sinusoidal, static_argnums=1)(place, WIDTH))[None, :, None]
    table = draw(27, position_encodings.BUCKETS, 1)
    bias = position_encodings.relative_bias(table, place - place[:, None], causal=False)[None]

    moved = lambda f: np.abs(f(words[:, shift]) - f(words)[:, shift]).max()
    assert moved(attend) < BAR
    assert moved(lambda x: attend(x + where)) > 0.1
    assert moved(lambda x: rotary(x, place[:, None])) > 0.1
    assert moved(lambda x: attend(x, bias)) > 0.1


def test_fused_attention_takes_either_lengths_or_a_mask():
    heads, lengths, mask = heads_example(), np.full(3, MEMORY), np.ones((3, QUERIES, MEMORY), bool)
    for options in ({}, {"lengths": lengths, "mask": mask}):
        with pytest.raises(ValueError, match="either lengths"):
            attention.fused_multi_head(*heads, **options)
