"""Models that are tables: small enough to enumerate, and many at once, one a row of the batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.core import search
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK

VOCABULARY = 6
A, B = 4, 5  # two words, besides <unk>
WORDS = (UNK, A, B)
CONTEXTS = 61  # rows of a table
LENGTH = 6
ROWS = 320
POWERS = np.array([7**i % CONTEXTS for i in range(LENGTH)])


class Models(NamedTuple):
    """One table a sentence: logits of the next token in each context.

    A Markov chain's context is the last token; any other's is a hash of all tokens so far, which its state keeps.
    """

    tables: np.ndarray  # [B, CONTEXTS, V]
    markov: np.ndarray  # [B]

    def __getitem__(self, rows):
        return Models(self.tables[rows], self.markov[rows])


class State(NamedTuple):
    position: jax.Array  # [B]
    history: jax.Array  # [B, LENGTH] the tokens read so far, then zeros


def start(rows: int) -> State:
    return State(jnp.zeros(rows, jnp.int32), jnp.zeros((rows, LENGTH), jnp.int32))


def step(models: Models, state: State, token):
    """The contract of s2sjax/models, over tables. Its "attention" is the history, so that a test can recognise it."""
    history = jax.vmap(lambda row, at, now: row.at[at].set(now))(state.history, state.position, token)
    context = jnp.where(models.markov, token, history @ POWERS % CONTEXTS)
    logits = jax.vmap(lambda table, row: table[row])(models.tables, context)
    return State(state.position + 1, history), logits, history.astype(logits.dtype)


HALF_ARE_MARKOV = np.arange(ROWS) % 2 == 0


def exact_models(seed: int) -> Models:
    """Log-probabilities that are -20, -40, -60 ..., so that every sum is exact and ties are many.

    <pad>, which is never written, takes all the probability that float32 can see: log(1 + a few e^-20) = 0.
    In every other pair of models, one token in four is impossible.
    """
    rng = np.random.default_rng(seed)
    tables = -20 * rng.integers(1, 12, (ROWS, CONTEXTS, VOCABULARY)).astype(np.float32)
    tables[..., EOS] *= rng.choice([1, 2, 3], (ROWS, 1))
    tables[(rng.random(tables.shape) < 0.25) & (np.arange(ROWS) % 4 > 1)[:, None, None]] = -np.inf
    tables[..., PAD] = 0
    return Models(tables, HALF_ARE_MARKOV)


def natural_models(seed: int) -> Models:
    """Timid and bold ones, terse and long-winded ones, and some that would rather write <pad> and <sos>."""
    rng = np.random.default_rng(seed)
    some = lambda *values: rng.choice(values, (ROWS, 1, 1))
    tables = rng.normal(size=(ROWS, CONTEXTS, VOCABULARY)) * some(0.1, 1, 4)
    tables[..., [EOS]] += some(-8, -2, 0, 2)
    tables[..., [PAD, SOS]] += some(-5, 0, 5)
    return Models(tables.astype(np.float32), HALF_ARE_MARKOV)


def limits(seed: int, most: int = LENGTH) -> np.ndarray:
    """The most tokens that each sentence may have, from none to `most`."""
    return np.random.default_rng(seed).integers(0, most + 1, ROWS).astype(np.int32)


def next_log_probs(models: Models, row: int, start: int = SOS):
    """prefix -> log-probabilities of the next token. The model reads `start` before the prefix."""
    table = models.tables[row].astype(np.float64)
    log_p = table - np.log(np.exp(table).sum(-1, keepdims=True))
    if (table[:, PAD] == 0).all():
        np.testing.assert_allclose(log_p, table, atol=1e-7)
        log_p = table  # of an exact model

    def of(prefix: tuple[int, ...]) -> np.ndarray:
        history = (start, *prefix)
        return log_p[history[-1] if models.markov[row] else np.dot(history, POWERS[: len(history)]) % CONTEXTS]

    return of


def divisors(penalty: str, alpha: float) -> np.ndarray:
    """penalty(length) for the lengths from 0; that of 0 is not used."""
    lengths = np.arange(LENGTH + 1)
    return {
        "none": np.ones(LENGTH + 1), "mean": lengths.clip(1), "power": lengths.clip(1.0) ** alpha,
        "gnmt": ((5 + lengths) / 6) ** alpha,
    }[penalty]  # fmt: skip


def written(found: search.Hypotheses, row: int, place: int) -> tuple[int, ...]:
    return tuple(found.tokens[row, place, : found.lengths[row, place]].tolist())


def assert_well_formed(found: search.Hypotheses, limit: np.ndarray, words: tuple[int, ...] = WORDS):
    """<eos> at the end and nowhere else, <pad> behind it and nowhere else, no <sos>, best first, none twice."""
    place = np.arange(found.tokens.shape[-1])
    inside, at_end = place < found.lengths[..., None] - 1, place == found.lengths[..., None] - 1
    assert np.isin(found.tokens[inside], words).all()
    assert (found.tokens[at_end] == EOS).all()
    assert (found.tokens[~inside & ~at_end] == PAD).all()
    assert (found.lengths <= limit[:, None]).all()
    np.testing.assert_array_equal(found.lengths == 0, found.scores == -np.inf)
    np.testing.assert_array_equal(found.lengths == 0, found.log_probs == -np.inf)
    assert not np.isnan(found.scores).any()
    for row, count in zip(found.tokens.tolist(), (found.lengths > 0).sum(1)):
        assert len({tuple(tokens) for tokens in row[:count]}) == count
    assert (found.scores[:, 1:] <= found.scores[:, :-1]).all()


def chain() -> Models:
    """A Markov chain whose best paths are known by hand.

           0.6       0.5           1
    <sos> -----> a -------> <unk> -----> <eos>       a <unk> <eos>   0.6 x 0.5 x 1 = 0.30
      |          |------------------0.4->|           b <eos>         0.4 x 0.9     = 0.36
      |          |  ^                    |           a <eos>         0.6 x 0.4     = 0.24
      |      0.1 v  | 0.1                |
      '--------> b -----------------0.9->'
           0.4
    """
    return markov({SOS: {A: 0.6, B: 0.4}, A: {UNK: 0.5, EOS: 0.4, B: 0.1}, B: {EOS: 0.9, A: 0.1}, UNK: {EOS: 1}})


def markov(arrows: dict[int, dict[int, float]]) -> Models:
    """One chain, from its arrows: {from: {to: probability}}. <pad>, which is never written, takes what they leave."""
    p = np.zeros((CONTEXTS, VOCABULARY))
    for here, there in arrows.items():
        p[here, list(there)] = list(there.values())
    p[:, PAD] = (1 - p.sum(1)).clip(0)
    with np.errstate(divide="ignore"):
        return Models(np.log(p, dtype=np.float32)[None], np.array([True]))
