"""A cell over time: padding, both directions, and the late weight gradient against plain autodiff."""

from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import zoo

from s2sjax.core import recurrence
from s2sjax.core.backend import device
from s2sjax.core.recurrence import cells

ROWS, TIME, INPUTS, WIDTH = 4, 6, 2, 3
LENGTHS = np.array([6, 4, 1, 0])  # whole, padded, nearly and wholly empty
MASK = np.arange(TIME) < LENGTHS[:, None]
HOLES = np.random.default_rng(9).random((ROWS, TIME)) < 0.6  # a mask need not be a prefix

PARALLEL = [name for name, cell in cells.CELLS.items() if cell.parallel]

every_cell = zoo.each_cell()
every_parallel_cell = zoo.each_cell(PARALLEL)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])

run = jax.jit(recurrence.run, static_argnames=("cell", "reverse"))


def example(name: str, dtype=np.float32, seed: int = 0, batch: tuple[int, ...] = ()):
    """weights, xs [..., B, T, D], and a carry that is not zero; `batch` are axes in front of them all."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=(*batch, *shape)).astype(dtype)
    cell = cells.CELLS[name]
    weights = {key: draw(*shape) for key, shape in cell.shapes(INPUTS, WIDTH).items()}
    return weights, draw(ROWS, TIME, INPUTS), tuple(draw(ROWS, WIDTH) for _ in range(cell.carries))


def assert_close(left, right, **bar):
    jax.tree.map(partial(np.testing.assert_allclose, **bar), left, right)


def assert_same(name: str, left, right):
    """To the last bit, where steps are made one by one; in parallel, other neighbours are added in another order."""
    assert_close(left, right, rtol=0, atol=1e-6 if name in PARALLEL else 0)


# ----------------------------------------------------------------------------------------- masks


@every_cell
@both_ways
def test_padded_steps_leave_the_carry_as_it_was(name, reverse):
    """What padding holds changes nothing, and a row without a real step returns the carry it was given."""
    weights, xs, carry = example(name)
    ys, last = run(cells.CELLS[name], weights, xs, HOLES, carry, reverse=reverse)
    other, other_last = run(
        cells.CELLS[name], weights, np.where(HOLES[..., None], xs, np.float32(1e3)), HOLES, carry, reverse=reverse
    )
    jax.tree.map(np.testing.assert_array_equal, (ys, last), (other, other_last))

    before = np.concatenate([ys[:, 1:], carry[0][:, None]] if reverse else [carry[0][:, None], ys[:, :-1]], axis=1)
    changed = (np.abs(np.asarray(ys) - before) > (1e-6 if name in PARALLEL else 0)).any(-1)
    np.testing.assert_array_equal(changed, HOLES)

    _, untouched = run(cells.CELLS[name], weights, xs, np.zeros_like(MASK), carry, reverse=reverse)
    jax.tree.map(np.testing.assert_array_equal, untouched, carry)


@every_cell
@both_ways
def test_a_mask_takes_its_steps_out_of_time(name, reverse):
    """The real steps alone, moved to the front, give the same outputs and the same last carry."""
    weights, xs, carry = example(name)
    ys, last = run(cells.CELLS[name], weights, xs, HOLES, carry, reverse=reverse)
    real_first = np.argsort(~HOLES, axis=1, kind="stable")
    packed = np.take_along_axis(np.asarray(xs), real_first[..., None], axis=1)
    packed_mask = np.arange(TIME) < HOLES.sum(1)[:, None]
    packed_ys, packed_last = run(cells.CELLS[name], weights, packed, packed_mask, carry, reverse=reverse)
    assert_same(name, last, packed_last)
    assert_same(name, np.asarray(ys)[HOLES], np.asarray(packed_ys)[packed_mask])


@every_cell
def test_reverse_is_forward_on_the_flipped_sentence(name):
    weights, xs, carry = example(name)
    xs = np.asarray(xs)
    flipped = np.stack([np.concatenate([row[:n][::-1], row[n:]]) for row, n in zip(xs, LENGTHS)])
    ys, last = run(cells.CELLS[name], weights, xs, MASK, carry, reverse=True)
    flipped_ys, flipped_last = run(cells.CELLS[name], weights, flipped, MASK, carry)
    assert_same(name, last, flipped_last)
    for row, n in enumerate(LENGTHS):
        assert_same(name, ys[row, :n], flipped_ys[row, :n][::-1])


def from_pytorchs_order(name: str, value: np.ndarray) -> np.ndarray:
    """PyTorch's gates lie in the order i, f, c~, o and r, u, h~; ours in the order f, i, o, c~ and u, r, h~."""
    order = {"rnn": [0], "lstm": [1, 0, 3, 2], "gru_after": [1, 0, 2]}[name]
    blocks = np.split(value.T, len(order), axis=-1)
    return np.concatenate([blocks[place] for place in order], axis=-1)


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru_after"])
def test_both_directions_equal_pytorch_on_packed_sentences(name):
    """Outputs, last carries, and the gradients of all squared outputs by the weights."""
    torch, names = references.of_pytorch(name), {"input": "weight_ih_l0", "state": "weight_hh_l0", "bias": "bias_ih_l0"}
    xs, mask = torch["xs"], np.arange(torch["xs"].shape[1]) < torch["lengths"][:, None]
    parts = range(cells.CELLS[name].carries)

    def loss(weights, carry, reverse):
        ys, carry = recurrence.run(cells.CELLS[name], weights, xs, mask, carry, reverse=reverse)
        ys = jnp.where(mask[..., None], ys, 0)
        return jnp.sum(ys**2), (ys, carry)

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=2)
    for direction, suffix in enumerate(("", "_reverse")):
        weights, slopes = (
            {ours: from_pytorchs_order(name, torch[begin + there + suffix]) for ours, there in names.items()}
            for begin in ("", "d_")
        )
        if name == "gru_after":
            weights["state_bias"], slopes["state_bias"] = (
                torch[f"{begin}bias_hh_l0{suffix}"][-WIDTH:] for begin in ("", "d_")
            )
        carry = tuple(torch[f"begin_{part}"][direction] for part in parts)
        d_weights, (ys, last) = gradient(weights, carry, direction == 1)
        np.testing.assert_allclose(ys, np.split(torch["ys"], 2, axis=-1)[direction], atol=1e-5)
        for part in parts:
            np.testing.assert_allclose(last[part], torch[f"last_{part}"][direction], atol=1e-5)
        for ours, there in slopes.items():
            np.testing.assert_allclose(d_weights[ours], there, atol=1e-5 * max(1, np.abs(there).max()))


# ------------------------------------------------------------------------------- parallel over time


@every_parallel_cell
@pytest.mark.parametrize("reverse, zoned", [(False, False), (True, True)], ids=["forward", "reverse-zoneout"])
def test_in_parallel_is_step_by_step(name, reverse, zoned):
    """Forward and backward, through holes, from a carry that is not zero; 11 steps, which is no power of two."""
    weights, _, carry = example(name)
    rng = np.random.default_rng(4)
    xs = rng.normal(size=(ROWS, 11, INPUTS)).astype(np.float32)
    mask = rng.random((ROWS, 11)) < 0.7
    noise = cells.Noise(zone=rng.random((11, 1, ROWS, WIDTH)).astype(np.float32)) if zoned else cells.NO_NOISE

    @partial(jax.jit, static_argnums=0)
    def with_gradients(parallel, *arguments):
        cell = cells.CELLS[name]._replace(parallel=parallel)
        outputs, pull = jax.vjp(
            lambda weights, xs, carry: recurrence.run(cell, weights, xs, mask, carry, reverse, noise), *arguments
        )
        return outputs, pull(cotangents_like(xs, carry))

    parallel, stepped = (with_gradients(choice, weights, xs, carry) for choice in (True, False))
    for left, right in zip(*map(jax.tree.leaves, (parallel, stepped))):
        np.testing.assert_allclose(left, right, atol=1e-5 * max(1, np.abs(right).max()))
        assert np.abs(right).max() > 0.1


@every_parallel_cell
def test_in_parallel_nothing_waits_for_the_step_before(name):
    """The compiled program has no loop over time; that of a plain RNN has one."""

    def loops(name):
        weights, xs, carry = example(name)
        return run.lower(cells.CELLS[name], weights, xs, MASK, carry).as_text().count("while")

    assert loops("rnn") > 0
    assert loops(name) == 0


@every_parallel_cell
def test_a_thousand_steps_in_parallel_stay_within_their_candidates(name):
    """Products of a thousand gates fade to zero; a state is a mean of what it saw, whatever the gates."""
    xs = 30 * np.random.default_rng(5).normal(size=(1, 1000, INPUTS)).astype(np.float32)
    weights, _, carry = example(name)
    ys, _ = run(cells.CELLS[name], weights, xs, np.ones((1, 1000), bool), tuple(part[:1] for part in carry))
    candidates = cells.project(weights, xs)[..., -WIDTH:]
    assert np.isfinite(ys).all()
    assert np.abs(ys).max() <= max(np.abs(candidates).max(), np.abs(carry[0][:1]).max()) * (1 + 1e-5)


# ---------------------------------------------------------------------- the late weight gradient


def plain_run(cell, weights, xs, mask, carry, reverse=False):
    """`run` without the late weight gradient."""
    with mock.patch.object(recurrence, "scan", recurrence.plain_scan):
        return recurrence.run(cell, weights, xs, mask, carry, reverse)


def gradients(runner, name: str, reverse: bool, weights, xs, mask, carry, cotangents):
    """Cotangents of ys and of the last carry -> gradients of weights, xs, carry."""
    outputs = lambda weights, xs, carry: runner(cells.CELLS[name], weights, xs, mask, carry, reverse=reverse)
    return jax.vjp(outputs, weights, xs, carry)[1](cotangents)


late_gradients = jax.jit(partial(gradients, recurrence.run), static_argnums=(0, 1))


def cotangents_like(xs, carry, seed: int = 3):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(xs.dtype)
    return draw(*xs.shape[:-1], WIDTH), tuple(draw(*part.shape) for part in carry)


@zoo.each_cell([name for name in cells.CELLS if name not in PARALLEL])
@both_ways
def test_the_late_weight_gradient_is_the_plain_one(name, reverse):
    """For every weight, input and carry, to 1e-10 in float64; two problems at once, by `vmap`."""

    @jax.jit
    def late_and_plain(*arguments):
        return [jax.vmap(partial(gradients, r, name, reverse))(*arguments) for r in (recurrence.run, plain_run)]

    with jax.enable_x64(True):
        weights, xs, carry = example(name, np.float64, batch=(2,))
        late, plain = late_and_plain(weights, xs, np.stack([MASK, HOLES]), carry, cotangents_like(xs, carry))
    assert_close(late, plain, rtol=1e-10, atol=1e-12)
    assert all(leaf.dtype == np.float64 and np.abs(leaf).max() > 0.1 for leaf in jax.tree.leaves(plain))


def test_the_late_weight_gradient_can_itself_be_differentiated():
    """Reverse over reverse: the gradient of the gradient's squared norm."""

    def squared_norm(runner, weights, xs, carry):
        total = lambda *args: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(args))
        loss = lambda *args: total(runner(cells.CELLS["rnn"], *args[:2], HOLES, args[2]))
        return total(jax.grad(loss, argnums=(0, 1, 2))(weights, xs, carry))

    with jax.enable_x64(True):
        late, plain = (
            jax.jit(jax.grad(partial(squared_norm, runner), argnums=(0, 1, 2)))(*example("rnn", np.float64))
            for runner in (recurrence.run, plain_run)
        )
    assert_close(late, plain, rtol=1e-9, atol=1e-10)


def test_gradients_have_the_type_of_what_they_are_gradients_of():
    """In bfloat16 too, where they stay near those of float32."""
    weights, xs, carry = example("lstm", jnp.bfloat16)
    half = late_gradients("lstm", True, weights, xs, HOLES, carry, cotangents_like(xs, carry))
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {np.dtype(jnp.bfloat16)}

    weights, xs, carry = jax.tree.map(lambda leaf: leaf.astype(np.float32), (weights, xs, carry))
    full = late_gradients("lstm", True, weights, xs, HOLES, carry, cotangents_like(xs, carry))
    for near, exact in zip(jax.tree.leaves(half), jax.tree.leaves(full)):
        error = np.linalg.norm(np.asarray(near, np.float32) - exact) / np.linalg.norm(exact)
        assert error < 0.05, error  # eight bits of mantissa, six steps deep


def test_unrolled_scans_are_the_same_scan(monkeypatch):
    """What an accelerator runs, where several steps are compiled as one, here with a remainder."""
    weights, xs, carry = example("lstm")
    arguments = weights, xs, HOLES, carry, cotangents_like(xs, carry)
    rolled = late_gradients("lstm", True, *arguments)
    monkeypatch.setattr(device, "scan_unroll", lambda: 4)
    unrolled = jax.jit(partial(gradients, recurrence.run, "lstm", True))(*arguments)
    assert_close(unrolled, rolled, atol=1e-5)


def test_a_matrix_used_twice_in_a_step_is_refused():
    """The late gradient would be that of one product alone."""
    twice = lambda weights, shared, carry, x: (carry @ weights["w"] @ weights["w"] + x, carry)
    loss = lambda w: jnp.sum(recurrence.scan(twice, {"w": w}, np.ones((1, 2)), np.ones((3, 1, 2)))[0])
    with pytest.raises(ValueError, match="twice by the same matrix"):
        jax.grad(loss)(jnp.eye(2))


def test_what_is_shared_between_steps_has_its_gradient():
    """sum_t x_t . m, for a memory m that every step reads: d/dm = sum_t x_t."""
    read = lambda weights, memory, carry, x: (carry + x @ weights["w"] * memory, None)
    loss = lambda w, memory: jnp.sum(recurrence.scan(read, {"w": w}, np.zeros(2), xs, memory)[0])
    xs = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    d_w, d_memory = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.eye(2), jnp.ones(2))
    np.testing.assert_allclose(d_memory, xs.sum(0))
    np.testing.assert_allclose(d_w, np.outer(xs.sum(0), np.ones(2)))


def test_turned_rows_keep_their_padding_at_the_end():
    """a b c _ -> c b a _, of ids and of vectors; turned twice, a row is as it was."""
    ids = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [0, 0, 0, 0], [5, 6, 7, 8]])
    there = recurrence.reverse_sequences(ids, ids != 0)
    np.testing.assert_array_equal(there, [[3, 2, 1, 0], [4, 0, 0, 0], [0, 0, 0, 0], [8, 7, 6, 5]])
    np.testing.assert_array_equal(recurrence.reverse_sequences(there, ids != 0), ids)
    vectors = np.stack([ids, 10 * ids], axis=-1)
    np.testing.assert_array_equal(
        recurrence.reverse_sequences(vectors, ids != 0), np.stack([there, 10 * there], axis=-1)
    )
