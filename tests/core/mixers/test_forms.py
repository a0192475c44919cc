"""Every recurrence in every form: equal to the equation of its paper, position by position, in NumPy.

Letters: B batch, T time, N heads, G groups of heads, K key width, V value width, H state width, D width of a head.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from s2sjax.core.mixers import forms
from s2sjax.core.mixers.decayed import DECAYED, FORGOTTEN, GATED, LEAST_LOG_DECAY
from s2sjax.core.mixers.delta_rule import DELTA, unit_triangular_inverse
from s2sjax.core.mixers.mlstm import MLSTM
from s2sjax.core.mixers.rg_lru import RG_LRU, gates
from s2sjax.core.mixers.slstm import SLSTMState, slstm

B, N, K, V, H, D = 3, 2, 3, 4, 5, 2
LONG = 37
"""no multiple of any chunk below, and more than two blocks of `GATED`"""

# ------------------------------------------------------------------------------------ the recurrences


class Case(NamedTuple):
    """A recurrence, examples of what it reads, and its equation for one position of one row."""

    recurrence: forms.Recurrence
    inputs: Callable[[np.random.Generator, tuple[int, int]], dict[str, np.ndarray]]  # (B, T) -> inputs in float64
    paper: Callable[..., tuple[Any, np.ndarray]]  # state, inputs of a position -> state, y
    real: Callable[[Any], Any] = lambda state: state  # a state of the recurrence as the paper has it


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def outer(key, value):
    return np.einsum("nk,nv->nkv", key, value)


def query_key_value(rng, shape, heads=N, groups=N):
    draw = lambda *own: rng.normal(size=(*shape, *own))
    return {"query": draw(groups, K), "key": draw(groups, K), "value": draw(heads, V)}


def of_linear_attention(rng, shape):
    return query_key_value(rng, shape) | {"log_decay": np.zeros((*shape, N))}


def of_retention(rng, shape):
    return query_key_value(rng, shape) | {"log_decay": np.zeros((*shape, N)) + np.log([1 - 2**-5, 1 - 2**-6])}


def of_ssd(rng, shape):
    return query_key_value(rng, shape, heads=4, groups=2) | {"log_decay": np.log(sigmoid(rng.normal(size=(*shape, 4))))}


def of_gla(rng, shape):
    return query_key_value(rng, shape) | {"log_decay": np.log(sigmoid(rng.normal(size=(*shape, N, K))))}


def of_delta(rng, shape):
    inputs = query_key_value(rng, shape) | {"beta": sigmoid(rng.normal(size=(*shape, N)))}
    return inputs | {"key": unit(inputs["key"]), "log_decay": np.zeros((*shape, N))}


def of_gated_delta(rng, shape):
    return of_delta(rng, shape) | {"log_decay": np.log(sigmoid(rng.normal(size=(*shape, N))))}


def of_mlstm(rng, shape):
    log_forget = np.log(sigmoid(1 + rng.normal(size=(*shape, N))))
    return query_key_value(rng, shape) | {"log_forget": log_forget, "log_input": rng.normal(size=(*shape, N))}


def of_rg_lru(rng, shape):
    return {"log_decay": np.log(sigmoid(rng.normal(size=(*shape, H)))), "value": rng.normal(size=(*shape, H))}


def of_slstm(rng, shape):
    return {"gates": rng.normal(size=(*shape, N, 4 * D))}


def decayed_paper(state, query, key, value, log_decay):
    """S = a S + k v^T, y = S^T q (Sun et al. 2023, eq. 6; Dao and Gu 2024, eq. 1)."""
    query, key = (np.repeat(part, len(value) // len(part), axis=0) for part in (query, key))
    state = np.exp(log_decay)[:, None, None] * state + outer(key, value)
    return state, np.einsum("nkv,nk->nv", state, query)


def gated_paper(state, query, key, value, log_decay):
    """S = diag(a) S + k v^T (Yang et al. 2023, eq. 3)."""
    state = np.stack([np.diag(np.exp(a)) @ s for a, s in zip(log_decay, state)]) + outer(key, value)
    return state, np.einsum("nkv,nk->nv", state, query)


def delta_paper(state, query, key, value, beta, log_decay):
    """S = a (I - beta k k^T) S + beta k v^T (Yang et al. 2024, Gated Delta Networks, eq. 10, transposed)."""
    erase = np.stack([np.eye(K) - b * np.outer(k, k) for b, k in zip(beta, key)])
    state = np.exp(log_decay)[:, None, None] * (erase @ state) + beta[:, None, None] * outer(key, value)
    return state, np.einsum("nkv,nk->nv", state, query)


def mlstm_paper(state, query, key, value, log_forget, log_input):
    """C = f C + i k v^T, n = f n + i k, y = C^T q / max(|n . q|, 1), unstabilized (Beck et al. 2024, eq. 19 to 24)."""
    value = np.concatenate([value, np.ones((len(value), 1))], axis=1)
    state = np.exp(log_forget)[:, None, None] * state + np.exp(log_input)[:, None, None] * outer(key, value)
    read = np.einsum("nkv,nk->nv", state, query)
    return state, read[:, :-1] / np.maximum(np.abs(read[:, -1:]), 1)


def rg_lru_paper(state, log_decay, value):
    """h = a h + x (De et al. 2024, eq. 4)."""
    state = np.exp(log_decay) * state + value
    return state, state


def slstm_paper(state, gates):
    """c = f c + i z, n = f n + i, h = o c / n, not stabilized (Beck et al. 2024, eq. 8 to 14)."""
    h, c, n = state
    z, i, f, o = np.split(gates + np.einsum("nd,ndg->ng", h, RECURRENT), 4, axis=-1)
    c, n = sigmoid(f) * c + np.exp(i) * np.tanh(z), sigmoid(f) * n + np.exp(i)
    return (sigmoid(o) * c / n, c, n), sigmoid(o) * c / n


RECURRENT = np.random.default_rng(99).normal(size=(N, D, 4 * D))
SLSTM = slstm(RECURRENT)._replace(step=lambda state, now: slstm(RECURRENT.astype(state.h.dtype)).step(state, now))
exp = lambda x: np.exp(x) if isinstance(x, np.ndarray) else jnp.exp(x)
matrix_of = lambda state: state.matrix * exp(state.m)[..., None, None]
cells_of = lambda state: (state.h, state.c * exp(state.m), state.n * exp(state.m))

CASES = {
    "linear_attention": Case(DECAYED, of_linear_attention, decayed_paper),
    "retention": Case(DECAYED, of_retention, decayed_paper),
    "ssd": Case(DECAYED, of_ssd, decayed_paper),
    "gla": Case(GATED, of_gla, gated_paper),
    "delta": Case(DELTA, of_delta, delta_paper),
    "gated_delta": Case(DELTA, of_gated_delta, delta_paper),
    "mlstm": Case(MLSTM, of_mlstm, mlstm_paper, matrix_of),
    "rg_lru": Case(RG_LRU, of_rg_lru, rg_lru_paper),
    "slstm": Case(SLSTM, of_slstm, slstm_paper, cells_of),
}
IN_CHUNKS = [name for name, case in CASES.items() if case.recurrence.chunks]
MATRICES = [name for name in IN_CHUNKS if name != "rg_lru"]
"""those with queries, keys and values"""

every_recurrence = pytest.mark.parametrize("name", CASES)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def forms_of(name: str, *chunks: int) -> list[tuple[str, int | None]]:
    """The forms of a recurrence, the chunked one with each of the chunks."""
    recurrence = CASES[name].recurrence
    associative = [("associative", None)] if recurrence.combine else []
    return [("scan", None), *associative, *(("chunked", chunk) for chunk in chunks if recurrence.chunks)]


@cache
def runner(name: str, **options):
    """`forms.run` with these options, compiled; its results are arrays of NumPy."""
    run = jax.jit(partial(forms.run, CASES[name].recurrence, **options))
    return lambda *args, **more: jax.tree.map(np.asarray, run(*args, **more))


def example(name: str, length: int, seed: int = 0, rows: int = B, dtype=np.float64):
    """Inputs, and a state that is not the start state."""
    rng = np.random.default_rng(seed)
    inputs = {key: x.astype(dtype) for key, x in CASES[name].inputs(rng, (rows, length)).items()}
    with jax.enable_x64(True):
        start = CASES[name].recurrence.start(inputs)
    state = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(dtype), start)
    return inputs, state._replace(n=1 + np.abs(state.n)) if isinstance(state, SLSTMState) else state


def places(length: int, seed: int = 1):
    """A mask with holes and an empty row, and the numbers of segments, which mean nothing at padding."""
    rng = np.random.default_rng(seed)
    mask = rng.random((B, length)) < 0.7
    mask[0, :-2] = True  # ends with padding
    mask[2] = False
    segments = 1 + np.cumsum(rng.random((B, length)) < 0.2, axis=1)
    return mask, np.where(mask, segments, 0)


def by_the_paper(name: str, inputs, mask=None, segments=None, state=None, reverse=False):
    """The equation, one row and one position after the other -> ys, the last states as the paper has them."""
    case = CASES[name]
    rows, length = next(iter(inputs.values())).shape[:2]
    with jax.enable_x64(True):
        start = case.real(jax.tree.map(np.asarray, case.recurrence.start(inputs)))
    states = start if state is None else case.real(jax.tree.map(np.float64, state))
    ys, last = [], []
    for row in range(rows):
        now, fresh = (jax.tree.map(lambda leaf, row=row: leaf[row], tree) for tree in (states, start))
        found: list[Any] = [None] * length
        segment = None
        for t in range(length)[:: -1 if reverse else 1]:
            if mask is not None and not mask[row, t]:
                continue
            if segments is not None:
                now = fresh if segment not in (None, segments[row, t]) else now
                segment = segments[row, t]
            now, found[t] = case.paper(now, **{key: x[row, t] for key, x in inputs.items()})
        last.append(now)
        ys.append(found)
    (shape,) = {y.shape for row in ys for y in row if y is not None} or {()}
    filled = [[np.zeros(shape) if y is None else y for y in row] for row in ys]
    return np.array(filled), jax.tree.map(lambda *leaves: np.stack(leaves), *last)


def assert_close(found, expected, bar=1e-9):
    """To `bar` of the largest number of each array, or of 1."""

    def close(left, right):
        np.testing.assert_allclose(left, right, rtol=0, atol=bar * max(1, np.abs(right).max()))

    jax.tree.map(close, found, expected)


# ----------------------------------------------------------------------------------- forms and equations

LENGTHS = {1: (4,), 11: (1, 4), LONG: (16, 64)}
"""lengths, and the chunks in which each is computed: one is longer than the row"""


@every_recurrence
@pytest.mark.parametrize("situation", ["alone", "packed", "everything"])
def test_every_form_is_the_equation_of_the_paper(name, situation):
    """In float64: outputs and the last state, with padding, segments, a state before the row, and in reverse."""
    for length, chunks in (LENGTHS if situation == "alone" else {LONG: (16,)}).items():
        inputs, state = example(name, length)
        mask, segments = places(length)
        options = {
            "alone": {},
            "packed": {"segments": segments},
            "everything": {"mask": mask, "segments": segments, "state": state, "reverse": True},
        }[situation]
        ys, last = by_the_paper(name, inputs, **options)
        reverse = options.pop("reverse", False)
        for form, chunk in forms_of(name, *chunks):
            with jax.enable_x64(True):
                found, found_last = runner(name, form=form, chunk=chunk, reverse=reverse)(inputs, **options)
            assert_close((found, CASES[name].real(found_last)), (ys, last))


@every_recurrence
def test_float32_is_near_the_equation(name):
    inputs, state = example(name, LONG)
    mask, segments = places(LONG)
    options = {"mask": mask, "segments": segments, "state": state}
    ys, last = by_the_paper(name, inputs, **options)
    narrow = jax.tree.map(np.float32, (inputs, state))
    for form, chunk in forms_of(name, 16):
        found, found_last = runner(name, form=form, chunk=chunk)(narrow[0], mask, segments=segments, state=narrow[1])
        assert found.dtype == np.float32
        assert_close((found, CASES[name].real(found_last)), (ys, last), bar=1e-5)


@cache
def gradients(name: str, form: str, chunk: int | None, reverse: bool):
    """The gradients by inputs and by the state before the row, of random sums of the outputs and of the last state."""

    def total(inputs, state, mask, segments):
        ys, last = forms.run(
            CASES[name].recurrence, inputs, mask, segments=segments, state=state, form=form, chunk=chunk,
            reverse=reverse,
        )  # fmt: skip
        leaves = jax.tree.leaves((ys, last))
        return sum(jnp.sum(jnp.asarray(np.random.default_rng(7).normal(size=leaf.shape)) * leaf) for leaf in leaves)

    return jax.jit(jax.grad(total, argnums=(0, 1)))


@every_recurrence
@both_ways
def test_gradients_agree_between_forms(name, reverse):
    (inputs, state), (mask, segments) = example(name, LONG), places(LONG)
    with jax.enable_x64(True):
        expected = gradients(name, "scan", None, reverse)(inputs, state, mask, segments)
        assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected))
        for form, chunk in forms_of(name, *((4,) if reverse else (32,)))[1:]:
            assert_close(gradients(name, form, chunk, reverse)(inputs, state, mask, segments), expected)


@every_recurrence
def test_gradients_match_finite_differences(name):
    """Of the scan, with which the test above compares the other forms: in float64, 1e-6 relative."""
    inputs, state = jax.tree.map(lambda leaf: leaf / 2, example(name, 4))
    with jax.enable_x64(True):
        run = partial(forms.run, CASES[name].recurrence, form="scan")
        total = jax.jit(lambda inputs, state: run(inputs, state=state)[0].sum())
        check_grads(total, (inputs, state), order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)


# --------------------------------------------------------------------------------- padding and time


@every_recurrence
@both_ways
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(name, reverse, side):
    """Real positions and the last state equal those of the row alone, whatever padding holds; an empty row too."""
    length, lengths = 11, (11, 4, 0)
    inputs, state = example(name, length)
    mask = np.arange(length) < np.array(lengths)[:, None]
    mask = mask if side == "right" else mask[:, ::-1]
    noisy = {
        key: np.float32(np.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, 100)) for key, x in inputs.items()
    }
    state = jax.tree.map(np.float32, state)
    for form, chunk in forms_of(name, 4):
        ys, last = runner(name, form=form, chunk=chunk, reverse=reverse)(noisy, mask, state=state)
        assert not np.asarray(ys)[~mask].any()
        for row, size in enumerate(lengths):
            alone = {key: x[row : row + 1, mask[row]] for key, x in inputs.items()}
            before = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], state)
            if size:
                expected, end = by_the_paper(name, alone, state=before, reverse=reverse)
                assert_close(ys[row, mask[row]], expected[0], bar=1e-5)
            else:
                end = CASES[name].real(before)
            assert_close(CASES[name].real(jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], last)), end, 1e-5)


@every_recurrence
def test_an_empty_row_has_finite_gradients(name):
    inputs, state = jax.tree.map(np.float32, example(name, 11))
    mask = np.zeros((B, 11), bool)
    segments = np.zeros((B, 11), np.int32)
    for form, chunk in forms_of(name, 4):
        found = gradients(name, form, chunk, False)(inputs, state, mask, segments)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
        assert not any(leaf.any() for leaf in jax.tree.leaves(found[0]))


@every_recurrence
@both_ways
def test_outputs_do_not_depend_on_later_inputs(name, reverse):
    inputs, _ = jax.tree.map(np.float32, example(name, 11))
    other, _ = jax.tree.map(np.float32, example(name, 11, seed=5))
    time = np.arange(11)[::-1] if reverse else np.arange(11)
    for form, chunk in forms_of(name, 4):
        run = runner(name, form=form, chunk=chunk, reverse=reverse)
        whole, _ = run(inputs)
        for t in (1, 5, 8):
            later = time >= t
            mixed = {
                key: np.where(later.reshape(1, -1, *(1,) * (x.ndim - 2)), other[key], x) for key, x in inputs.items()
            }
            ys, _ = run(mixed)
            np.testing.assert_allclose(ys[:, ~later], whole[:, ~later], rtol=1e-6, atol=1e-6)
            assert (np.abs(ys[:, time == t] - whole[:, time == t]).max(axis=(0, 1)) > 1e-3).all()


@every_recurrence
def test_a_state_carries_from_one_part_of_a_row_to_the_next(name):
    """In any forms: the parts are computed in chunks, and by steps."""
    inputs, state = example(name, 11)
    step = jax.jit(CASES[name].recurrence.step)
    cut = lambda start, stop: {key: x[:, start:stop] for key, x in inputs.items()}
    ys, last = by_the_paper(name, inputs, state=state)
    with jax.enable_x64(True):
        for form, chunk in forms_of(name, 4):
            found, now = [], state
            for start, stop in ((0, 5), (5, 6)):
                part, now = runner(name, form=form, chunk=chunk)(cut(start, stop), state=now)
                found.append(part)
            for t in range(6, 11):
                now, y = step(now, {key: x[:, t] for key, x in inputs.items()})
                found.append(y[:, None])
            now = jax.tree.map(np.asarray, now)
            assert_close((np.concatenate(found, axis=1), CASES[name].real(now)), (ys, last))


# ------------------------------------------------------------------------------------- extreme gates


def extremes(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Decays that keep all and that keep nothing, keys that are all equal, and gates of exp(50) and exp(-50)."""
    rng = np.random.default_rng(seed)
    inputs = CASES[name].inputs(rng, (B, LONG))
    choose = lambda key, *values: rng.choice(values, size=inputs[key].shape)
    if name == "linear_attention":
        return inputs | {"log_decay": choose("log_decay", -1e-8, 0)}
    if name in ("retention", "ssd", "rg_lru"):
        return inputs | {"log_decay": choose("log_decay", -1e9, -1e3, -1e-8, 0)}
    if name == "gla":  # queries so small that exp(-80) of them is 0 in float32
        small, large = np.abs(inputs["query"]) * 1e-5, np.abs(inputs["key"]) * 1e5
        return inputs | {"query": small, "key": large, "log_decay": choose("log_decay", *[LEAST_LOG_DECAY] * 4, -1e-8)}
    if name == "delta":
        same = np.broadcast_to(inputs["key"][:, :1], inputs["key"].shape)
        return inputs | {"key": same, "beta": np.ones_like(inputs["beta"])}
    if name == "gated_delta":
        return inputs | {"beta": choose("beta", 0, 1), "log_decay": choose("log_decay", -1e9, -1e3, -1e-8, 0)}
    if name == "mlstm":  # positive, so that n . q has no digits to lose
        positive = {key: np.abs(inputs[key]) for key in ("query", "key")}
        gates = {"log_input": choose("log_input", -50, 0, 50), "log_forget": choose("log_forget", -30, -1e-8)}
        return inputs | positive | gates
    return {"gates": 30 * inputs["gates"]}


@every_recurrence
def test_extreme_gates(name):
    """Forms agree with the equation, and outputs, states and gradients are finite.

    The bar is what float32 can tell of exp(b_i - b_j), where b is the sum of the logarithms of a chunk's decays.
    """
    inputs = extremes(name)
    narrow = jax.tree.map(np.float32, inputs)
    ys, last = by_the_paper(name, inputs)
    mask, segments = np.ones((B, LONG), bool), np.ones((B, LONG), np.int32)
    state = CASES[name].recurrence.start(narrow)
    logs = [np.maximum(x, FORGOTTEN) for key, x in inputs.items() if key in ("log_decay", "log_forget")]
    bar = max([1e-5, *(2**-23 * np.abs(x).sum(1).max() for x in logs)])
    for form, chunk in forms_of(name, 4, 32):
        found, found_last = runner(name, form=form, chunk=chunk)(narrow)
        assert_close(found, ys, bar)
        if name != "mlstm":
            assert_close(CASES[name].real(found_last), last, bar)
        slopes = gradients(name, form, chunk, False)(narrow, state, mask, segments)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((found_last, slopes)))


def test_faster_decays_of_keys_count_as_the_fastest():
    inputs, _ = example("gla", LONG, dtype=np.float32)
    slow, fast = ({**inputs, "log_decay": np.full_like(inputs["key"], log)} for log in (LEAST_LOG_DECAY, -1e4))
    for form, chunk in forms_of("gla", 16):
        run = runner("gla", form=form, chunk=chunk)
        np.testing.assert_array_equal(run(fast)[0], run(slow)[0])


def test_the_gates_of_the_rg_lru_are_those_of_the_paper():
    """a = exp(-c softplus(L) r), x = sqrt(1 - a^2) (i u), c = 8: De et al. 2024, eq. 1 to 4; finite where a is 1."""
    rng = np.random.default_rng(0)
    u, rate = rng.normal(size=(2, 7, H)), rng.normal(size=H)
    r, i = sigmoid(rng.normal(size=(2, 2, 7, H)))
    with jax.enable_x64(True):
        found = gates(u, r, i, rate)
    decay = np.exp(-8 * np.log1p(np.exp(rate)) * r)
    np.testing.assert_allclose(np.exp(found["log_decay"]), decay, rtol=1e-12)
    np.testing.assert_allclose(found["value"], np.sqrt(1 - decay**2) * i * u, rtol=1e-9)
    shut = jax.grad(lambda r: gates(*map(jnp.float32, (u, r, i, rate)))["value"].sum())(np.zeros((2, 7, H), np.float32))
    assert np.isfinite(shut).all()


# -------------------------------------------------------------------------------------- the delta rule


@pytest.mark.parametrize("size", [1, 2, 5, 8, 33])
def test_the_inverse_of_a_unit_triangular_matrix(size):
    """Only the part below the diagonal counts."""
    matrix = np.random.default_rng(size).normal(size=(2, 3, size, size)) / 2
    with jax.enable_x64(True):
        found = unit_triangular_inverse(matrix)
    np.testing.assert_allclose(found, np.linalg.inv(np.eye(size) + np.tril(matrix, -1)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form, chunk", forms_of("delta", 4, 16))
def test_the_delta_rule_reads_the_last_value_that_was_written_to_a_key(form, chunk):
    """Orthonormal keys and beta 1: a state of K rows holds K values, each exactly, and replaces them."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    chosen, asked = rng.integers(0, 8, 30), rng.integers(0, 8, 30)
    values = rng.normal(size=(30, V))
    inputs = {
        "query": basis[asked],
        "key": basis[chosen],
        "value": values,
        "beta": np.ones(30),
        "log_decay": np.zeros(30),
    }
    inputs = {key: np.float32(x)[None, :, None] for key, x in inputs.items()}
    ys, _ = runner("delta", form=form, chunk=chunk)(inputs)
    for t in range(30):
        written = [values[s] for s in range(t + 1) if chosen[s] == asked[t]]
        np.testing.assert_allclose(ys[0, t, 0], written[-1] if written else np.zeros(V), atol=1e-5)


# ------------------------------------------------------------------------------------ implied attention


@cache
def implied(name: str, **options):
    return jax.jit(partial(forms.implied_attention, CASES[name].recurrence, **options))


@pytest.mark.parametrize("name", MATRICES)
def test_implied_attention_times_the_values_gives_the_outputs(name):
    """The weights are lower triangular, and 0 between segments. They may be negative."""
    inputs, _ = example(name, 11)
    mask, segments = places(11)
    values = np.where(mask[..., None, None], inputs["value"], 0)
    later = np.arange(11) > np.arange(11)[:, None]
    hidden = later | (segments[:, :, None] != segments[:, None]) | ~mask[:, None] | ~mask[:, :, None]
    for form, chunk in forms_of(name, 4):
        with jax.enable_x64(True):
            weights = np.asarray(implied(name, form=form, chunk=chunk)(inputs, mask=mask, segments=segments))
            ys, _ = runner(name, form=form, chunk=chunk)(inputs, mask, segments=segments)
        np.testing.assert_allclose(np.einsum("btns,bsnv->btnv", weights, values), ys, atol=1e-9)
        assert not np.moveaxis(weights, 2, 3)[hidden].any()  # [B, T, T, N]
        assert (weights < 0).any()


def test_the_implied_attention_of_retention_fades_with_the_distance():
    """q_i . k_j a^(i - j), and without decay the q . k of linear attention."""
    for name in ("linear_attention", "retention"):
        inputs, _ = example(name, 11, dtype=np.float32)
        causal, distance = np.tri(11)[:, None], (np.arange(11)[:, None] - np.arange(11))[:, None]
        products = np.einsum("btnk,bsnk->btns", inputs["query"], inputs["key"]) * causal
        faded = np.exp(inputs["log_decay"][0, 0][:, None] * distance)
        np.testing.assert_allclose(implied(name, form="chunked", chunk=4)(inputs), products * faded, atol=1e-5)


def test_the_weights_of_an_mlstm_sum_to_one_at_most():
    """|n . q| / max(|n . q|, 1); the weights of linear attention do so after their division: see layers.py."""
    inputs, _ = example("mlstm", 11, dtype=np.float32)
    sums = np.abs(implied("mlstm", form="chunked", chunk=4)(inputs).sum(-1))
    assert sums.max() == pytest.approx(1, abs=1e-5) and sums.min() < 0.9


# ---------------------------------------------------------------------------------------------- bad use


@pytest.mark.parametrize("name", [name for name in CASES if name != "rg_lru"])
def test_a_recurrence_without_an_associative_form_says_so(name):
    with pytest.raises(ValueError, match="no associative form: use 'scan' or 'chunked'"):
        forms.run(CASES[name].recurrence, example(name, 2, dtype=np.float32)[0], form="associative")


def test_an_unknown_form_is_an_error_that_names_the_forms():
    with pytest.raises(ValueError, match=r"no form 'chunks': use one of .*chunked.*scan.*associative"):
        forms.run(DECAYED, example("ssd", 2, dtype=np.float32)[0], form="chunks")
