"""The layers of MIXERS: steps equal whole sequences, padding and other segments are invisible, in every form.

Letters: B batch, T time, W width, N heads, D width of a head.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax.core import mixers
from s2sjax.core.mixers import MIXERS, Sizes, short_convolution

SIZES = Sizes(width=8, heads=2, state=3, taps=4)
B, T = 3, 11
BAR = 1e-5

every_layer = pytest.mark.parametrize("name", MIXERS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@cache
def weights_of(name: str):
    """Random weights, and random numbers where a layer starts with constants."""
    rng = np.random.default_rng(1)
    drawn = mixers.draw(MIXERS[name], SIZES, jax.random.key(0))
    constant = lambda x: x.ndim == 1 and np.ptp(x) == 0
    return {
        key: np.asarray(x) + (rng.normal(size=x.shape).astype(np.float32) if constant(x) else 0)
        for key, x in drawn.items()
    }


@cache
def layer(name: str, **options):
    """`apply` with these options, compiled: weights, xs, mask, segments, state -> ys, state."""

    def one(weights, xs, mask=None, segments=None, state=None):
        return mixers.apply(MIXERS[name], SIZES, weights, xs, mask, segments=segments, state=state, **options)

    return jax.jit(one)


@cache
def one_step(name: str):
    return jax.jit(lambda weights, state, x: mixers.step(MIXERS[name], SIZES, weights, state, x))


def texts(rows: int = B, length: int = T, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, length, SIZES.width)).astype(np.float32)


def earlier(name: str, rows: int = B):
    """The state after some other positions."""
    return layer(name)(weights_of(name), texts(rows, 6, seed=9))[1]


def of_row(tree, row: int):
    return jax.tree.map(lambda leaf: leaf[row : row + 1], tree)


def assert_close(found, expected, bar=BAR):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=bar, atol=bar), found, expected)


def forms_of(name: str, *chunks: int):
    recurrence = MIXERS[name].recurrence(weights_of(name))
    associative = [{"form": "associative"}] if recurrence.combine else []
    return [{"form": "scan"}, *associative, *({"chunk": chunk} for chunk in chunks if recurrence.chunks)]


# ----------------------------------------------------------------------------------------------- forms


@every_layer
def test_steps_equal_whole_sequences_in_every_form(name):
    """Outputs and the last state; `start` is the state that `apply` begins with."""
    weights, xs = weights_of(name), texts()
    state = mixers.start(MIXERS[name], SIZES, weights, B, xs.dtype)
    shapes = jax.tree.map(jnp.shape, state)
    ys = []
    for t in range(T):
        y, state = one_step(name)(weights, state, xs[:, t])
        ys.append(y)
    assert jax.tree.map(jnp.shape, state) == shapes, "the state has constant size"
    np.testing.assert_array_equal(state.position, T)
    for options in forms_of(name, 4, 32):
        assert_close(layer(name, **options)(weights, xs), (np.stack(ys, axis=1), state))


@every_layer
def test_gradients_agree_between_forms(name):
    """By weights, inputs and the state before the row, with padding and segments."""
    mask, segments = np.arange(T) < np.array([[11], [7], [0]]), np.arange(T)[None] // 5 + np.zeros((B, 1), int)

    def gradients(options):
        def total(weights, xs, state):
            ys, last = layer(name, **options)(weights, xs, mask, segments, state)
            return jnp.sum(ys**2) + sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves((last.recurrence, last.past)))

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), allow_int=True))(weights_of(name), texts(), earlier(name))

    expected, *found = (gradients(options) for options in forms_of(name, 4))
    expected, *found = ((*tree[:2], tree[2]._replace(position=0)) for tree in (expected, *found))  # an integer
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    assert all(np.abs(leaf).max() > 0 for leaf in expected[0].values()), "every weight counts"
    for tree in found:
        assert_close(tree, expected, bar=1e-4)


# ------------------------------------------------------------------------------- padding and segments


@every_layer
@both_ways
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(name, side, reverse):
    """Real positions and the last state equal those of the row alone, after an earlier state; an empty row keeps it."""
    lengths = (11, 2, 0)  # 2 is less than the taps of the short convolution
    mask = np.arange(T) < np.array(lengths)[:, None]
    mask = mask if side == "right" else mask[:, ::-1]
    weights, xs, state = weights_of(name), texts(), earlier(name)
    ys, last = layer(name, reverse=reverse, chunk=4)(weights, np.where(mask[..., None], xs, 100), mask, None, state)
    assert np.isfinite(ys).all()
    for row, size in enumerate(lengths):
        if size:
            alone = layer(name, reverse=reverse, chunk=4)(
                weights, xs[row : row + 1, mask[row]], state=of_row(state, row)
            )
            assert_close((ys[row : row + 1, mask[row]], of_row(last, row)), alone)
        else:
            assert_close(of_row(last, row), of_row(state, row))


@every_layer
@both_ways
def test_segments_do_not_see_each_other(name, reverse):
    """A row of three texts and padding equals each text alone; the state is that of the last text."""
    parts = [(0, 4), (4, 5), (5, 9)]
    weights, xs = weights_of(name), texts(1)
    segments = np.array([[1, 1, 1, 1, 2, 3, 3, 3, 3, 0, 0]])
    ys, last = layer(name, reverse=reverse, chunk=4)(weights, xs, segments > 0, segments)
    for start, stop in parts:
        expected, state = layer(name, reverse=reverse, chunk=4)(weights, xs[:, start:stop])
        assert_close(ys[:, start:stop], expected)
        if (start, stop) == parts[0 if reverse else -1]:
            at = np.int32([9])  # positions are counted on, and only their differences matter
            assert_close(last._replace(recurrence=0, position=0), state._replace(recurrence=0, position=0))
            np.testing.assert_array_equal(last.position, at)


@every_layer
def test_a_state_carries_from_one_part_of_a_text_to_the_next(name):
    """Parts of lengths that differ between the rows, one of which has no position in the second part."""
    weights, xs = weights_of(name), texts()
    mask = np.arange(T) < np.array([[11], [7], [3]])
    whole, last = layer(name, chunk=4)(weights, xs, mask)
    state, ys = None, []
    for start, stop in ((0, 4), (4, 8), (8, 11)):
        part, state = layer(name, chunk=4)(weights, xs[:, start:stop], mask[:, start:stop], None, state)
        ys.append(part)
    assert_close(np.concatenate(ys, axis=1)[mask], whole[mask])
    assert_close(state, last)


@every_layer
def test_a_segment_may_continue_in_the_next_row(name):
    """The second row begins with the rest of a short text: it sees that text, and not the one before it."""
    weights, xs = weights_of(name), texts(1)
    first, second = np.array([[1, 1, 1, 1, 2]]), np.array([[2, 2, 2, 3, 3, 3]])
    _, state = layer(name, chunk=4)(weights, xs[:, :5], None, first)
    ys, _ = layer(name, chunk=4)(weights, xs[:, 5:], None, second, state)
    assert_close(ys[:, :3], layer(name, chunk=4)(weights, xs[:, 4:8])[0][:, 1:])
    assert_close(ys[:, 3:], layer(name, chunk=4)(weights, xs[:, 8:])[0])


@every_layer
@both_ways
def test_outputs_do_not_depend_on_later_positions(name, reverse):
    weights, xs, other = weights_of(name), texts(), texts(seed=3)
    run = layer(name, reverse=reverse, chunk=4)
    whole, _ = run(weights, xs)
    for t in (2, 6):
        later = np.arange(T) <= t if reverse else np.arange(T) >= t
        ys, _ = run(weights, np.where(later[:, None], other, xs))
        np.testing.assert_allclose(ys[:, ~later], whole[:, ~later], rtol=BAR, atol=BAR)
        assert np.abs(ys[:, t] - whole[:, t]).max() > 1e-2


def test_the_past_of_a_short_convolution():
    """By hand: three taps of 1, 10 and 100; after two texts, the past of the second alone; before padding, its own."""
    kernel = np.float32([[100], [10], [1]])
    row = lambda *numbers: np.float32(numbers)[None, :, None]
    past = row(8, 9)
    ys, last = short_convolution.convolve(kernel, row(1, 2, 3), past)
    np.testing.assert_array_equal(ys, row(891, 912, 123))
    np.testing.assert_array_equal(last, row(2, 3))
    ys, last = short_convolution.convolve(kernel, row(1, 2, 3), past, segments=np.array([[0, 0, 1]]))
    np.testing.assert_array_equal(ys, row(891, 912, 3))
    np.testing.assert_array_equal(last, row(0, 3))
    mask = np.array([[False, True, False]])
    ys, last = short_convolution.convolve(kernel, row(7, 2, 7), past, mask)
    np.testing.assert_array_equal(ys[:, 1], row(892)[:, 0])
    np.testing.assert_array_equal(last, row(9, 2))


# ------------------------------------------------------------------------------ long texts, narrow numbers


LONGEST = 8192


@zoo.each(MIXERS, quick=("retention", "gla", "mlstm", "rg_lru"))
def test_long_texts_in_bfloat16(name):
    """8,192 positions: outputs and gradients are finite, and near those of float32 with the same weights.

    Matrices are bfloat16, which rounds by 2^-9; rates, biases and scales are float32. A dozen roundings in a row are an
    error of 2% in the norm over all positions. Gradients have twice as many, and those of the delta rule divide by the
    norms of queries and keys, the smallest of which have few digits. The gradients of rates, biases and scales are sums
    that may cancel to nearly 0: they are compared as parts of the whole gradient.
    """
    sizes = Sizes(width=32, heads=2)
    drawn = mixers.draw(MIXERS[name], sizes, jax.random.key(0))
    narrow = {key: x.astype(jnp.bfloat16) if x.ndim > 1 else x for key, x in drawn.items()}
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(1, LONGEST, 32)), jnp.bfloat16)

    def loss(weights, xs):
        ys, _ = mixers.apply(MIXERS[name], sizes, weights, xs, chunk=64)
        return jnp.mean(jnp.square(ys.astype(jnp.float32))), ys

    run = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    (found, ys), (expected, exact_ys) = run(narrow, xs), run(exact, xs.astype(jnp.float32))
    assert ys.dtype == jnp.bfloat16
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in jax.tree.leaves((found, ys)))

    def error(x, y):
        x, y = (np.concatenate([np.float32(leaf).ravel() for leaf in jax.tree.leaves(tree)]) for tree in (x, y))
        return float(np.linalg.norm(x - y) / np.linalg.norm(y))

    errors = {key: error(x, expected[0][key]) for key, x in found[0].items() if x.ndim > 1}
    errors |= {"xs": error(found[1], expected[1]), "all weights": error(found[0], expected[0])}
    print(error(ys, exact_ys), errors)
    assert 0 < error(ys, exact_ys) < 0.02 and max(errors.values()) < 0.05


# ------------------------------------------------------------------------------------ initial values


def test_initial_values_are_those_of_the_papers():
    sizes = Sizes(width=64, heads=64)
    drawn = {name: mixers.draw(mixer, sizes, jax.random.key(1)) for name, mixer in MIXERS.items()}
    softplus = lambda x: np.log1p(np.exp(x))
    within = lambda x, least, most: least <= x.min() < 2 * least and most / 2 < x.max() <= most
    for name in ("ssd", "gated_delta"):
        assert within(softplus(drawn[name]["time_bias"]), 1e-3, 0.1)
        assert within(np.exp(drawn[name]["log_rate"]), 1, 16)
    assert within(np.exp(-8 * softplus(drawn["rg_lru"]["rate"])), 0.9, 0.999)
    np.testing.assert_allclose(drawn["mlstm"]["forget_bias"], np.linspace(3, 6, 64), rtol=1e-6)
    z, i, f, o = drawn["slstm"]["bias"].reshape(64, 4, 1).swapaxes(0, 1)
    np.testing.assert_allclose(f[:, 0], np.linspace(3, 6, 64), rtol=1e-6)
    assert not (z.any() or i.any() or o.any())


@every_layer
def test_a_drawn_layer_keeps_the_scale_of_its_input(name):
    """Neither vanishing nor exploding outputs over 300 positions of a wider layer."""
    sizes = Sizes(width=32, heads=4)
    weights = mixers.draw(MIXERS[name], sizes, jax.random.key(0))
    xs = np.random.default_rng(0).normal(size=(2, 300, 32)).astype(np.float32)
    ys = jax.jit(lambda weights, xs: mixers.apply(MIXERS[name], sizes, weights, xs)[0])(weights, xs)
    assert 0.02 < np.std(ys) < 3


def test_retention_depends_on_distances_however_long_the_text_is():
    layer, sizes = MIXERS["retention"], mixers.Sizes(16, 2)
    weights = mixers.draw(layer, sizes, jax.random.key(0))
    xs = jax.random.normal(jax.random.key(1), (1, 8, 16))
    start = mixers.start(layer, sizes, weights, 1, jnp.float32)
    first, late = (
        mixers.apply(layer, sizes, weights, xs, state=start._replace(position=jnp.array([position])))[0]
        for position in (0, 30_000_000)
    )
    np.testing.assert_allclose(late, first, atol=1e-4)
