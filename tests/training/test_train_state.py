"""One step of a toy network whose loss is a masked sum, which nothing else may change."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import optimizers, train_state

ROWS, LENGTH, WIDTH = 8, 5, 4


def parameters():
    a, b = jax.random.split(jax.random.key(0))
    return {"in": jax.random.normal(a, (WIDTH, 6)), "out": jax.random.normal(b, (6,))}


def batch(seed=0):
    """A batch of rows of different lengths: mask [rows, length]."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, ROWS)
    return {
        "x": rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
        "y": rng.normal(size=(ROWS, LENGTH)).astype(np.float32),
        "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.float32),
    }


def loss(params, batch, key, step=None, dropout=0.0):
    hidden = jnp.tanh(batch["x"] @ params["in"])
    if dropout:
        hidden = hidden * jax.random.bernoulli(key, 1 - dropout, hidden.shape)
    error = (hidden @ params["out"] - batch["y"]) ** 2
    return {"loss": ((error * batch["mask"]).sum(), batch["mask"].sum())}


def dropout_loss(params, batch, key, step):
    return loss(params, batch, key, step, dropout=0.5)


@functools.cache  # compile each kind of step once
def toy(loss, train):
    optimizer = optimizers.optimizer(train)
    step = jax.jit(train_state.make_train_step(loss, optimizer, train, seed=1))
    return train_state.create(parameters(), optimizer, train.averages), step


def run(steps=1, loss=loss, batches=batch, **options):
    train = config.Train(**{"warmup_steps": 0, "learning_rate": 0.01, "schedule": "constant", **options})
    current, step = toy(loss, train)
    for index in range(steps):
        current, metrics = step(current, batches(index))
    return current, metrics


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_micro_batches_of_uneven_weight_equal_one_batch(parts):
    whole, numbers = run(3)
    split, split_numbers = run(3, grad_accum_steps=parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), split.params, whole.params)
    np.testing.assert_allclose(split_numbers["loss"], numbers["loss"], rtol=1e-6)
    np.testing.assert_allclose(split_numbers["grad_norm"], numbers["grad_norm"], rtol=1e-6)


def test_a_batch_that_does_not_split_is_an_error_with_both_numbers():
    with pytest.raises(UserError, match=r"8 rows .* train.grad_accum_steps 3"):
        run(grad_accum_steps=3)


def test_the_loss_is_the_mean_over_unmasked_positions_only():
    _, numbers = run()
    data = batch()
    expected = loss(parameters(), data, None)
    assert float(numbers["loss"][1]) == data["mask"].sum() < ROWS * LENGTH
    np.testing.assert_allclose(numbers["loss"][0], expected["loss"][0], rtol=1e-6)
    gradient = jax.grad(lambda p: loss(p, data, None)["loss"][0] / data["mask"].sum())(parameters())
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    np.testing.assert_allclose(numbers["grad_norm"], norm, rtol=1e-6)


def test_randomness_changes_with_step_and_micro_batch_and_repeats_with_the_seed():
    def draws(params, batch, key, step):
        draw = jax.random.uniform(key)
        return {"loss": (params["out"].sum() * 0.0 + draw, jnp.float32(1)), "square": (draw**2, jnp.float32(1))}

    totals = [float(run(n, loss=draws)[1]["loss"][0]) for n in (1, 2, 3)]
    assert len(set(totals)) == 3 and totals == [float(run(n, loss=draws)[1]["loss"][0]) for n in (1, 2, 3)]
    _, two = run(loss=draws, grad_accum_steps=2)
    total, squares = float(two["loss"][0]), float(two["square"][0])
    assert abs(squares - total**2 / 2) > 1e-3, "two equal draws would give exactly total^2 / 2"
    assert_equal(run(3, loss=dropout_loss)[0], run(3, loss=dropout_loss)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_step_changes_nothing_but_the_counters(bad):
    def batches(index):
        data = batch(index)
        return data | {"y": data["y"] + np.float32(bad)} if index in (1, 2) else data

    before, _ = run(1, batches=batches, ema=0.9)
    after, numbers = run(3, batches=batches, ema=0.9)
    assert_equal(after[1:4], before[1:4])
    assert [int(after.step), int(after.skipped), int(after.skipped_total)] == [3, 2, 2] and int(numbers["skipped"]) == 2
    healed, _ = run(4, batches=batches, ema=0.9)
    assert [int(healed.skipped), int(healed.skipped_total)] == [0, 2]
    assert np.isfinite(healed.params["out"]).all() and (healed.params["out"] != after.params["out"]).any()


def test_a_batch_without_weight_updates_nothing_and_stays_finite():
    def batches(index):
        data = batch(index)
        return data | {"mask": data["mask"] * (index == 0)}

    before, _ = run(1, batches=batches, weight_decay=0.1)
    after, numbers = run(2, batches=batches, weight_decay=0.1)
    assert_equal(after.params, before.params)
    assert int(after.skipped) == 0 and int(after.skipped_total) == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, numbers)))


def test_the_average_follows_its_formula_and_is_what_is_evaluated():
    start = parameters()
    one, _ = run(1, ema=0.99)
    decay = 1 / 10  # min(0.99, (1 + 0) / (10 + 0))
    np.testing.assert_allclose(one.ema["out"], decay * start["out"] + (1 - decay) * one.params["out"], rtol=1e-6)
    two, _ = run(2, ema=0.15)
    decay = 0.15  # min(0.15, 2 / 11)
    one, _ = run(1, ema=0.15)
    np.testing.assert_allclose(two.ema["out"], decay * one.ema["out"] + (1 - decay) * two.params["out"], rtol=1e-6)
    assert train_state.evaluation_params(two) is two.ema
    plain, _ = run(1)
    assert train_state.evaluation_params(plain) is plain.params


def test_the_reported_rate_is_the_one_the_optimizer_used_also_after_a_skip():
    def batches(index):
        data = batch(index)
        return data | {"y": data["y"] * np.float32(np.nan if index == 0 else 1)}

    current, numbers = run(2, batches=batches, warmup_steps=10, learning_rate=1.0)
    counts = [int(leaf) for leaf in jax.tree.leaves(current.optimizer) if leaf.dtype == jnp.int32 and leaf.ndim == 0]
    assert set(counts) == {1}, "one update was made"
    assert float(numbers["learning_rate"]) == pytest.approx(0.1), "its rate is that of the first update"


# ------------------------------------------------------------------------------------- the carry


def carrying(params, batch, key, step, carry=None):
    """A loss that depends on the sum of the rows of earlier batches."""
    seen = jnp.zeros((len(batch["x"]), WIDTH)) if carry is None else carry["seen"]
    after = seen + batch["x"].sum(1)
    sums = loss(params, batch | {"x": batch["x"] + jnp.tanh(seen)[:, None]}, key)
    return sums if carry is None else (sums, {"seen": after})


def run_carrying(steps, bad=(), **options):
    train = config.Train(**{"warmup_steps": 0, "learning_rate": 0.01, "schedule": "constant", **options})
    current, step = toy(carrying, train)
    current = current._replace(carry={"seen": jnp.zeros((ROWS, WIDTH))})
    for index in range(steps):
        data = batch(index)
        current, metrics = step(current, data | {"y": data["y"] * np.float32(np.nan if index in bad else 1)})
    return current, metrics


def test_a_carry_passes_from_one_batch_to_the_next():
    after, numbers = run_carrying(3)
    np.testing.assert_allclose(after.carry["seen"], sum(batch(i)["x"].sum(1) for i in range(3)), rtol=1e-6)
    last, data = run_carrying(2)[0], batch(2)
    expected = carrying(last.params, data, None, None, last.carry)[0]["loss"][0]
    np.testing.assert_allclose(numbers["loss"][0], expected, rtol=1e-6)
    assert float(numbers["loss"][0]) != float(carrying(last.params, data, None, None)["loss"][0])


def test_each_micro_batch_carries_its_own_rows():
    whole, split = run_carrying(3)[0], run_carrying(3, grad_accum_steps=2)[0]
    assert_equal(split.carry, whole.carry)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), split.params, whole.params)


def test_a_non_finite_step_leaves_the_carry():
    assert_equal(run_carrying(2, bad=(1,))[0].carry, run_carrying(1)[0].carry)


def test_the_mean_of_the_parameters_from_a_step_on():
    """Averaged SGD: before that step the parameters themselves, then the mean of all later ones."""
    steps = [run(n, average_from=2)[0] for n in (1, 2, 3, 4, 5)]
    for one in steps[:3]:  # up to one rounding: XLA may compute the update twice
        np.testing.assert_allclose(one.ema["out"], one.params["out"], rtol=2e-7)
    mean = np.mean([one.params["out"] for one in steps[2:]], axis=0)
    np.testing.assert_allclose(steps[-1].ema["out"], mean, rtol=1e-6)
    with pytest.raises(UserError, match="both ema and average_from"):
        config.Train(ema=0.9, average_from=5)
