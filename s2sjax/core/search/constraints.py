"""Constraints on the next token. A constraint is a pure function, and any number of them compose.

    constraint(log_probs [B, K, V], prefixes [B, K, L], t [B]) -> log_probs [B, K, V]

`prefixes` hold the t tokens written so far, then <pad>, without the token that starts the decoder. Most constraints
set forbidden tokens to DEAD and leave the others unchanged, so the score is still the model's; `repetition` changes
log-probabilities, and so do *forced* tokens if they are "free": they count 0. Forced tokens are those of a forced
beginning, and <eos> at the last position. The length limit overrides all constraints: at the last position <eos> is
written.

Letters: B batch, K beam, V vocabulary, L maximum output length, P tokens of a forced prefix, n tokens of a word.
Arguments have the same meaning throughout: log_probs of the next token, prefixes, t tokens written so far, limit
maximum output lengths, <eos> included.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.special_tokens import EOS, PAD, SOS, never_written

LogProbs = Float[Array, "B K V"]
Prefixes = Int[Array, "B K L"]
Lengths = Int[Array, " B"]
Constraint = Callable[[LogProbs, Prefixes, Lengths], LogProbs]
Words = Sequence[Sequence[int]]
Forced = Literal["scored", "free"]
"""whether forced tokens count at their true log-probability or 0 in ranks and scores"""

DEAD = -1e30  # below any log-probability, but finite: differences are not NaN


def compose(constraints: Sequence[Constraint]) -> Constraint:
    """Composes constraints: the result applies them in order."""
    return lambda log_probs, prefixes, t: reduce(lambda now, one: one(now, prefixes, t), constraints, log_probs)


def permitted(
    constraint: Constraint,
    log_probs: LogProbs,
    prefixes: Prefixes,
    t: Lengths,
    limit: Lengths,
    start: int = SOS,
    forced: Forced = "scored",
) -> LogProbs:
    """Applies a constraint: DEAD where a token may not be written.

    <pad> is never allowed, nor <sos> if it is the token `start` that starts the decoder. At the last of `limit`
    positions only <eos> is allowed, as `forced` says.
    """
    token = _tokens(log_probs)
    last = (t + 1 >= limit)[:, None, None]
    never = jnp.isin(token, jnp.array(never_written(start)))
    inside = jnp.where(never, DEAD, constraint(log_probs, prefixes, t))
    return jnp.where(last, jnp.where(token == EOS, _counted(log_probs, forced), DEAD), inside)


def _counted(log_probs: LogProbs, forced: Forced) -> LogProbs:
    """What forced tokens count: 0 if they are free. A token that is impossible, or NaN, stays so."""
    return log_probs if forced == "scored" else jnp.where(log_probs > DEAD / 2, 0, log_probs)


def _tokens(log_probs: LogProbs) -> Int[Array, "1 1 V"]:
    return jnp.arange(log_probs.shape[-1])[None, None]


# -------------------------------------------------------------------------------- the constraints


def at_least(lengths: Lengths) -> Constraint:
    """Forbids <eos> before an output has `lengths` tokens, <eos> included."""

    def constraint(log_probs: LogProbs, prefixes: Prefixes, t: Lengths) -> LogProbs:
        early = (t + 1 < lengths)[:, None, None] & (_tokens(log_probs) == EOS)
        return jnp.where(early, DEAD, log_probs)

    return constraint


def beginning(prefix: Int[Array, "B P"], forced: Forced = "scored") -> Constraint:
    """Makes outputs begin with the tokens `prefix`, padded with <pad> at the end; `forced` says what they count."""

    def constraint(log_probs: LogProbs, prefixes: Prefixes, t: Lengths) -> LogProbs:
        P = prefix.shape[1]
        now = jax.vmap(lambda row, at: row[at])(prefix, jnp.minimum(t, P - 1))
        now = jnp.where(t < P, now, PAD)[:, None, None]
        only = jnp.where(_tokens(log_probs) == now, _counted(log_probs, forced), DEAD)
        return jnp.where(now != PAD, only, log_probs)

    return constraint


def without(words: Words) -> Constraint:
    """Forbids token sequences: the last token of a sequence may not follow its other tokens."""

    def constraint(log_probs: LogProbs, prefixes: Prefixes, t: Lengths) -> LogProbs:
        for word in words:
            ends_here = matched(prefixes, t, word[:-1])[..., None]
            log_probs = jnp.where(ends_here & (_tokens(log_probs) == word[-1]), DEAD, log_probs)
        return log_probs

    return constraint


def without_tokens(never: Sequence[int], never_first: Sequence[int], first: Lengths) -> Constraint:
    """Forbids tokens after a forced beginning of `first` tokens: `never` at all positions, `never_first` at the next.

    The forced beginning itself may contain them.
    """

    def constraint(log_probs: LogProbs, prefixes: Prefixes, t: Lengths) -> LogProbs:
        always, once = (np.isin(np.arange(log_probs.shape[-1]), ids)[None, None] for ids in (never, never_first))
        forbidden = ((t >= first)[:, None, None] & always) | ((t == first)[:, None, None] & once)
        return jnp.where(forbidden, DEAD, log_probs)

    return constraint


def with_all(words: Words, limit: Lengths) -> Constraint:
    """Makes outputs contain all of these token sequences.

    <eos> is forbidden until they are written, and a token is allowed only if the missing sequences still fit after it,
    within `limit`. If they do not fit into the limit at all, the limit wins.
    """

    def constraint(log_probs: LogProbs, prefixes: Prefixes, t: Lengths) -> LogProbs:
        lacks = [~contains(prefixes, t, word) for word in words]  # [B, K] each
        missing = jnp.sum(jnp.stack([len(word) * lack for lack, word in zip(lacks, words)]), axis=0)
        room = (limit - 2 - t)[:, None]  # tokens after the next one, <eos> excluded
        token = _tokens(log_probs)
        hopeless = limit[:, None] - 1 < sum(map(len, words))
        fits = jnp.broadcast_to(((missing <= room) | hopeless)[..., None], log_probs.shape)
        for lack, word in zip(lacks, words):
            for length in range(len(word)):  # if the prefix ends with this part of a word, its next token is allowed
                continues = lack & matched(prefixes, t, word[:length]) & (missing - length - 1 <= room)
                fits |= continues[..., None] & (token == word[length])
        return jnp.where((missing > 0)[..., None] & (~fits | (token == EOS)), DEAD, log_probs)

    return constraint


def no_repeated(n: int) -> Constraint:
    """Forbids n-grams that have occurred before (Paulus et al. 2017)."""

    def one(log_probs: Float[Array, " V"], prefix: Int[Array, " L"], t: Int[Array, ""]) -> Float[Array, " V"]:
        """Forbids the tokens that followed an earlier occurrence of the last n - 1 tokens."""
        L = len(prefix)
        last = prefix[(t - n + 1 + jnp.arange(n - 1)) % L]
        places = jnp.arange(L)
        windows = prefix[jnp.minimum(places[:, None] + jnp.arange(n)[None], L - 1)]  # [L, n], one at each place
        again = jnp.all(windows[:, :-1] == last[None], axis=1) & (places + n <= t)
        return log_probs.at[jnp.where(again, windows[:, -1], len(log_probs))].set(DEAD, mode="drop")

    return jax.vmap(jax.vmap(one, in_axes=(0, 0, None)))


def repetition(penalty: float) -> Constraint:
    """Multiplies the log-probability of tokens written before by `penalty` (after Keskar et al. 2019)."""

    def one(log_probs: Float[Array, " V"], prefix: Int[Array, " L"], t: Int[Array, ""]) -> Float[Array, " V"]:
        before = jnp.zeros(log_probs.shape, bool).at[prefix].set(True).at[PAD].set(False)
        return jnp.where(before, penalty * log_probs, log_probs)

    return jax.vmap(jax.vmap(one, in_axes=(0, 0, None)))


# ------------------------------------------------------------------------------ matching words


def matched(prefixes: Prefixes, t: Lengths, word: Sequence[int]) -> Bool[Array, "B K"]:
    """Whether each prefix, of t tokens, ends with `word`."""
    n, L = len(word), prefixes.shape[-1]
    if n > L:
        return jnp.zeros(prefixes.shape[:-1], bool)
    end = jax.vmap(lambda rows, at: rows[:, (at - n + jnp.arange(n)) % L])(prefixes, t)  # [B, K, n]
    return (t >= n)[:, None] & jnp.all(end == jnp.array(word, jnp.int32)[None, None], axis=-1)


def contains(prefixes: Prefixes, t: Lengths, word: Sequence[int]) -> Bool[Array, "B K"]:
    """Whether `word` occurs in each prefix, of t tokens."""
    places = prefixes.shape[-1] - len(word) + 1
    if places < 1:
        return jnp.zeros(prefixes.shape[:-1], bool)
    here = [prefixes[..., i : i + places] == token for i, token in enumerate(word)]
    written = jnp.arange(places)[None, None] + len(word) <= t[:, None, None]
    return jnp.any(reduce(jnp.logical_and, here) & written, axis=-1)
