"""The shared Flax rim: how weights begin, what a stack of layers computes, what each small layer is."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from s2sjax import layers
from s2sjax.core import recurrence
from s2sjax.core.recurrence import cells
from s2sjax.layers.attention_pooling import NonLocal, Pooling

ROWS, TIME, INPUTS, WIDTH = 3, 5, 4, 6
MASK = np.arange(TIME) < np.array([5, 3, 1])[:, None]
BAR = 1e-5


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def variables_of(module: nn.Module, *args):
    """Random variables for a module; its own are orthogonal, and slow to compile."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    return jax.tree.map(lambda leaf: draw(leaf.size, *leaf.shape) / 2, shapes)


# --------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("cell", cells.CELLS)
def test_how_the_weights_of_a_cell_begin(cell):
    """State matrices orthogonal gate by gate, biases zero, a forget gate (the first, where there is one) one."""
    weights = layers.cell_weights(cell, INPUTS, WIDTH, jnp.float32).init(jax.random.key(0))["params"]
    assert {name: value.shape for name, value in weights.items()} == cells.CELLS[cell].shapes(INPUTS, WIDTH)
    blocks = [weights[name] for name in ("state", "candidate") if name in weights]
    for block in (square for b in blocks for square in np.split(b, b.shape[1] // WIDTH, axis=1)):
        np.testing.assert_allclose(block @ block.T, np.eye(WIDTH), atol=BAR)
    assert bool(blocks) != cells.CELLS[cell].parallel
    bias = weights["shift" if cell.endswith("norm") else "bias"]
    forget = WIDTH if "lstm" in cell else 0
    np.testing.assert_array_equal(bias, np.arange(len(bias)) < forget)
    assert all(np.all(value == 1) for name, value in weights.items() if name.endswith("scale"))
    assert all(np.all(value == 0) for name, value in weights.items() if name in ("state_bias", "cell_shift"))


def test_state_matrices_may_begin_as_glorots():
    """Uniform within sqrt(6 / (H + H)), gate by gate."""
    module = layers.cell_weights("lstm", INPUTS, 50, jnp.float32, "glorot")
    state = np.asarray(module.init(jax.random.key(0))["params"]["state"])
    limit = (6 / 100) ** 0.5
    assert limit * 0.99 < np.abs(state).max() <= limit
    deviation = (0.2 / state.size) ** 0.5  # of the standard deviation of so many uniform draws, relative to it
    np.testing.assert_allclose(state.std(), limit / 3**0.5, rtol=4 * deviation)


def test_weights_are_read_in_the_computing_type_and_kept_in_float32():
    module = layers.cell_weights("gru", INPUTS, WIDTH, jnp.bfloat16, context=(2, 3))
    read, variables = jax.eval_shape(module.init_with_output, jax.random.key(0))
    assert {value.dtype for value in variables["params"].values()} == {np.dtype(np.float32)}
    assert {value.dtype for value in read.values()} == {np.dtype(jnp.bfloat16)}
    assert read["context"].shape == (2, 3)


# ----------------------------------------------------------------------------------------- stacks


def test_a_bidirectional_lstm_stack_equals_pytorch():
    """Two layers, each direction half of the width, on padded sentences: outputs and last states."""
    torch = references.of_pytorch("lstm_stack")

    def ours(name):
        """PyTorch's gates lie in the order i, f, c~, o, ours in the order f, i, o, c~."""
        i, f, candidate, o = np.split(torch[name].T, 4, axis=-1)
        return np.concatenate([f, i, o, candidate], axis=-1)

    params = {}
    for layer in range(2):
        for direction, end in (("forward", f"l{layer}"), ("backward", f"l{layer}_reverse")):
            names = {"input": f"weight_ih_{end}", "state": f"weight_hh_{end}", "bias": f"bias_ih_{end}"}
            params[f"{direction}_{layer}"] = {name: ours(theirs) for name, theirs in names.items()}
    stack = layers.Recurrent("lstm", WIDTH, 2, INPUTS, bidirectional=2)
    mask = np.arange(torch["xs"].shape[1]) < torch["lengths"][:, None]
    ys, final = jax.jit(stack.apply)({"params": params}, torch["xs"], mask)
    np.testing.assert_allclose(np.where(mask[..., None], ys, 0), torch["ys"], atol=BAR)
    for layer in range(2):
        for carry, part in zip(final[layer], (torch["last_0"], torch["last_1"])):  # [2 layers x 2 directions, B, H/2]
            np.testing.assert_allclose(carry, np.concatenate(part[2 * layer : 2 * layer + 2], axis=1), atol=BAR)


def test_residual_stacks_add_from_the_second_layer_on():
    """y1 = L1(x); y2 = y1 + L2(y1); y3 = y2 + L3(y2). The first layer reads both ways."""
    stack = layers.Recurrent("gru", WIDTH, 3, INPUTS, bidirectional=1, residual=True)
    xs = draw(2, ROWS, TIME, INPUTS)
    variables = variables_of(stack, xs, MASK)
    ys, final = jax.jit(stack.apply)(variables, xs, MASK)
    weights, cell = variables["params"], cells.CELLS["gru"]
    run = jax.jit(partial(recurrence.run, cell), static_argnames="reverse")
    zeros = lambda width: cells.start(cell, width, (ROWS,), np.float32)
    there, there_last = run(weights["forward_0"], xs, MASK, zeros(WIDTH // 2))
    back, back_last = run(weights["backward_0"], xs, MASK, zeros(WIDTH // 2), reverse=True)
    first = np.concatenate([there, back], axis=-1)
    second = first + run(weights["forward_1"], first, MASK, zeros(WIDTH))[0]
    above, above_last = run(weights["forward_2"], second, MASK, zeros(WIDTH))
    np.testing.assert_allclose(ys, second + above, atol=BAR)
    np.testing.assert_allclose(final[0][0], np.concatenate([there_last[0], back_last[0]], axis=-1), atol=BAR)
    np.testing.assert_allclose(final[2][0], above_last[0], atol=BAR)


@pytest.mark.parametrize("join", ["concatenate", "mean", "project"])
def test_two_directions_are_joined_as_asked(join):
    """[there; back], their mean, or a learned map of both; the last carries as the outputs. Layers 6 and 4 wide."""
    widths = (WIDTH, 4)
    stack = layers.Recurrent("lstm", widths, 2, INPUTS, bidirectional=2, join=join)
    xs = draw(10, ROWS, TIME, INPUTS)
    variables = variables_of(stack, xs, MASK)
    ys, final = jax.jit(stack.apply)(variables, xs, MASK)
    weights, cell = variables["params"], cells.CELLS["lstm"]

    def joined(layer, member, there, back):
        if join == "mean":
            return (there + back) / 2
        both = np.concatenate([there, back], axis=-1)
        if join == "concatenate":
            return both
        return both @ weights[f"joins_{layer}_{member}"]["kernel"] + weights[f"joins_{layer}_{member}"]["bias"]

    run = jax.jit(partial(recurrence.run, cell), static_argnames="reverse")
    for layer, width in enumerate(widths):
        begin = cells.start(cell, width // 2 if join == "concatenate" else width, (ROWS,), np.float32)
        there, there_last = run(weights[f"forward_{layer}"], xs, MASK, begin)
        back, back_last = run(weights[f"backward_{layer}"], xs, MASK, begin, reverse=True)
        xs = joined(layer, 0, there, back)
        for member in range(2):
            expected = joined(layer, member, there_last[member], back_last[member])
            assert expected.shape == (ROWS, width)
            np.testing.assert_allclose(final[layer][member], expected, atol=BAR)
    np.testing.assert_allclose(ys, xs, atol=BAR)


# ------------------------------------------------------------------------------------------- noise


def drawn_noise(rate: float, zoneout: float, train: bool, shape=(TIME, 20, 300)) -> cells.Noise:
    class Draw(nn.Module):
        def __call__(self):
            return layers.draw_noise(self, cells.CELLS["lstm"], shape, rate, zoneout, np.float32, train)

    return Draw().apply({}, rngs={"dropout": jax.random.key(3)})


def test_variational_dropout_draws_once_a_sentence():
    keep = np.asarray(drawn_noise(0.3, 0.0, train=True).keep)
    assert np.all(keep == keep[0])
    assert np.any(keep[0, 0] != keep[0, 1])
    np.testing.assert_allclose(np.unique(keep), [0, 1 / 0.7], rtol=1e-6)
    np.testing.assert_allclose((keep[0] == 0).mean(), 0.3, atol=4 * (0.21 / 6000) ** 0.5)

    class Drop(nn.Module):
        def __call__(self, x):
            return layers.dropout(self, x, 0.3, True, once=True)

    dropped = Drop().apply({}, np.ones((2, TIME, 300), np.float32), rngs={"dropout": jax.random.key(4)})
    assert np.all(dropped == dropped[:, :1])
    assert np.any(dropped[0] != dropped[1])


def test_zoneout_draws_at_every_step_and_later_is_its_mean():
    zone = np.asarray(drawn_noise(0.0, 0.3, train=True).zone)
    assert set(np.unique(zone)) == {0, 1}
    assert np.any(zone[0] != zone[1])
    assert np.any(zone[:, 0] != zone[:, 1])  # h and c by themselves
    np.testing.assert_allclose(zone.mean(), 0.3, atol=4 * (0.21 / zone.size) ** 0.5)
    np.testing.assert_allclose(drawn_noise(0.0, 0.3, train=False).zone, np.full((TIME, 2, 1, 1), 0.3))


def test_without_rates_there_is_no_noise():
    assert drawn_noise(0.0, 0.0, train=True) == cells.NO_NOISE
    assert drawn_noise(0.3, 0.0, train=False) == cells.NO_NOISE


def test_a_stack_hides_and_zones_out_while_it_learns():
    """Zoneout in evaluation is (1 - z) new + z old; while training each draw is another."""
    stack = layers.Recurrent("rnn", WIDTH, 1, INPUTS, dropout=0.5, variational=True, zoneout=0.2)
    xs = draw(11, ROWS, TIME, INPUTS)
    variables = variables_of(stack, xs, MASK)
    weights = variables["params"]["forward_0"]
    ys, _ = jax.jit(stack.apply)(variables, xs, MASK)
    h, expected = np.zeros((ROWS, WIDTH)), []
    for t in range(TIME):
        new = 0.8 * np.tanh(h @ weights["state"] + xs[:, t] @ weights["input"] + weights["bias"]) + 0.2 * h
        h = np.where(MASK[:, t, None], new, h)
        expected.append(h)
    np.testing.assert_allclose(ys, np.stack(expected, 1), atol=BAR)

    learn = jax.jit(lambda key: stack.apply(variables, xs, MASK, train=True, rngs={"dropout": key})[0])
    assert np.abs(learn(jax.random.key(0)) - learn(jax.random.key(1))).max() > 0.1


# ------------------------------------------------------------------------------------ small layers


def test_layer_norm_equals_flax():
    x, scale, bias = draw(4, ROWS, WIDTH) * 5 + 3, draw(5, WIDTH), draw(6, WIDTH)
    params = {"params": {"scale": scale, "bias": bias}}
    ours = jax.jit(layers.LayerNorm(WIDTH).apply)(params, x)
    np.testing.assert_allclose(ours, jax.jit(nn.LayerNorm().apply)(params, x), atol=BAR)


def test_an_embedding_is_a_scaled_row_and_its_transpose_gives_logits():
    module, table = layers.Embedding(7, WIDTH, scale=3.0), draw(7, 7, WIDTH)
    read = jax.jit(module.apply)({"params": {"table": table}}, np.array([[4, 0], [6, 6]]))
    np.testing.assert_allclose(read, 3 * table[[[4, 0], [6, 6]]], rtol=1e-6)
    x = draw(8, ROWS, WIDTH)
    logits = jax.jit(partial(module.apply, method="logits"))({"params": {"table": table}}, x)
    np.testing.assert_allclose(logits, x @ table.T, atol=BAR)


def test_logits_of_half_precision_are_summed_in_float32():
    """257 ones make 257, which bfloat16 does not hold, and a bias that it would lose."""
    x = jnp.ones((1, 257), jnp.bfloat16)
    kernel, bias = np.ones((257, 1), np.float32), np.array([0.001], np.float32)
    logits = jax.jit(partial(layers.Dense(257, 1, jnp.bfloat16).apply, method="logits"))
    found = logits({"params": {"kernel": kernel, "bias": bias}}, x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[257.001]], rtol=1e-7)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    """A share of `rate` is zero and the rest is divided by what is left; without training nothing changes."""

    class Drop(nn.Module):
        def __call__(self, x, train):
            return layers.dropout(self, x, rate, train)

    x, key = np.ones((100, 1000), np.float32), {"dropout": jax.random.key(4)}
    dropped = np.asarray(jax.jit(lambda x: Drop().apply({}, x, True, rngs=key))(x))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - rate)], rtol=1e-6)
    # Of 100,000 draws: four standard deviations of the share.
    np.testing.assert_allclose((dropped == 0).mean(), rate, atol=4 * (rate * (1 - rate) / 1e5) ** 0.5)
    assert Drop().apply({}, x, False) is x


# ---------------------------------------------------------------------------- pooling and non-local


def test_pooling_asks_with_its_own_queries():
    """Two learned queries, any score; masked positions do not matter, an empty sentence gives zeros."""
    memory, mask = draw(10, ROWS, TIME, WIDTH), MASK & (np.arange(ROWS) < 2)[:, None]
    for score in ("scaled_dot", "additive"):
        module = Pooling(2, WIDTH, score)
        variables = variables_of(module, memory, mask)
        pooled, alpha = jax.jit(module.apply)(variables, memory, mask)
        assert pooled.shape == (ROWS, 2, WIDTH)
        np.testing.assert_allclose(alpha.sum(-1), np.repeat(mask.any(1)[:, None], 2, axis=1), atol=1e-6)
        np.testing.assert_allclose(pooled, np.einsum("bqs,bsw->bqw", alpha, memory), atol=BAR)
        other = np.where(mask[..., None], memory, 1e3).astype(np.float32)
        np.testing.assert_allclose(jax.jit(module.apply)(variables, other, mask)[0], pooled, atol=BAR)
        if score == "scaled_dot":
            e = memory[0] @ variables["params"]["queries"][1] / WIDTH**0.5
            np.testing.assert_allclose(alpha[0, 1], np.exp(e) / np.exp(e).sum(), atol=BAR)


def test_a_non_local_block_is_a_loop_over_a_video():
    """z_i = x_i + W_z sum_j softmax_j(theta(x_i) . phi(x_j)) g(x_j), for each place i of 2 frames of 2 x 3 pixels."""
    x = draw(11, 2, 2, 2, 3, 4)
    real = np.ones(x.shape[:-1], bool)
    real[1, 1] = False  # the second video has one frame
    module = NonLocal(4)
    variables = variables_of(module, x, real)
    found = jax.jit(module.apply)(variables, x, real)
    dense = lambda name, value: value @ variables["params"][name]["kernel"] + variables["params"][name]["bias"]
    for video in range(2):
        places = [place for place in np.ndindex(2, 2, 3) if real[(video, *place)]]
        for i in places:
            theta = dense("query", x[(video, *i)])
            keys, values = np.split(np.array([dense("key_value", x[(video, *j)]) for j in places]), 2, axis=1)
            weight = np.exp(keys @ theta)
            expected = x[(video, *i)] + dense("output", weight / weight.sum() @ values)
            np.testing.assert_allclose(found[(video, *i)], expected, atol=BAR)


def test_a_new_non_local_block_changes_nothing():
    """And learns: the gradient of its output matrix is not zero."""
    x, module = draw(12, 1, 2, 3, 4), NonLocal(4)
    variables = jax.jit(module.init)(jax.random.key(0), x)
    run = jax.jit(lambda variables: module.apply(variables, x))
    np.testing.assert_array_equal(run(variables), x)
    slope = jax.jit(jax.grad(lambda variables: jnp.sum(module.apply(variables, x) ** 2)))(variables)
    assert np.abs(slope["params"]["output"]["kernel"]).max() > 0.01


# -------------------------------------------------------------------------------- half precision


def test_the_gradients_of_a_frequent_word_are_added_in_float32():
    """In bfloat16 a sum of ones stays at 256."""
    module = layers.Embedding(3, 4, jnp.bfloat16)
    variables = module.init(jax.random.key(0), jnp.zeros(1, int))
    total = lambda variables: module.apply(variables, jnp.ones(1000, int)).astype(jnp.float32).sum()
    np.testing.assert_array_equal(jax.grad(total)(variables)["params"]["table"][1], np.full(4, 1000))


def test_dropout_in_half_precision_keeps_the_mean():
    """1 / (1 - rate) would be 0.15% too small in bfloat16; so each kept element is rounded once, after it."""

    class Dropped(nn.Module):
        def __call__(self, x):
            return layers.dropout(self, x, 0.1, train=True)

    x = jnp.full((64, 64), 9, jnp.bfloat16)
    y = Dropped().apply({}, x, rngs={"dropout": jax.random.key(0)})
    assert y.dtype == jnp.bfloat16 and set(np.unique(np.asarray(y, np.float32))) == {0.0, 10.0}


def test_a_dense_layer_in_parts_is_the_layer_cut():
    module = layers.Dense(INPUTS, 2 * WIDTH)
    x = draw(0, ROWS, INPUTS)
    variables = variables_of(module, x)
    parts = module.apply(variables, x, 2, method="in_parts")
    np.testing.assert_allclose(jnp.concatenate(parts, -1), module.apply(variables, x), rtol=1e-6)
