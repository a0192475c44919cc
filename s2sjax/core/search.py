"""Search: the likeliest outputs of a model, written once against the contract.

Letters: B batch, K beam, V vocabulary, L the most tokens an output may have, <eos> included.

Specification
-------------
- A *hypothesis* is a sequence of tokens that ends with <eos>, at most `limit` tokens long (<eos> counted;
  `limit` may differ from sentence to sentence). Its log-probability is the sum of those of its tokens, <eos>
  included: just what teacher forcing gives it. <pad> and <sos> are never written, yet keep their probability.
- Its *score* is log-probability / penalty(length), length in tokens with <eos>:
      none  1        mean  length        gnmt  ((5 + length) / 6)^alpha      (Wu et al. 2016)
- The beam holds K live prefixes. Each step ranks all K * V continuations. Those among the best K that end
  with <eos> are put aside, if they are among the K best put aside so far; the best K of the others live on.
  At the last position <eos> is the only continuation, at its true log-probability, so every hypothesis ends.
- A sentence is *done* when no live prefix can still enter its n best: a prefix of log-probability s reaches
  at most s / penalty(length) for some length up to `limit`, and s only falls. From then on nothing of it changes,
  so neighbours in the batch, their number and their lengths do not matter.
- Ties go to the older hypothesis, then to the lower beam, then to the smaller token.
- K = 1 is greedy search when the penalty is `none`; with another, it goes on past a first <eos> while a longer
  hypothesis could win.

A model is seen as `step(state, token [B]) -> state, logits [B, V], attention`, every leaf of the state [B, ...].
The beam is an axis of `vmap`: what `step` closes over, the memory, is shared by the K prefixes, not copied.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core.tokens import EOS, PAD, SOS

Penalty = Literal["none", "mean", "gnmt"]
State = Any
Step = Callable[[State, Array], tuple[State, Array, Array | None]]

DEAD = -1e30  # below any log-probability, yet finite: differences of it are no NaN


class Hypotheses(NamedTuple):
    """The n best of each sentence, best first. A place that no hypothesis fills has score -inf and length 0."""

    tokens: Array  # [B, n, L], <eos> included, <pad> behind it
    lengths: Array  # [B, n], <eos> included
    scores: Array  # [B, n]
    log_probs: Array  # [B, n]


def length_penalty(penalty: Penalty, alpha: float, length: Array) -> Array:
    """What the log-probability of a hypothesis is divided by."""
    length = length.astype(jnp.float32)
    match penalty:
        case "none":
            return jnp.ones_like(length)
        case "mean":
            return length
        case "gnmt":
            return ((5 + length) / 6) ** alpha


def token_log_probs(logits: Array, last: Array) -> Array:
    """log-probabilities of the next token, DEAD where it may not be written: logits [B, ..., V], last [B] -> same."""
    log_probs = jax.nn.log_softmax(logits)
    token = jnp.arange(logits.shape[-1])
    last = last.reshape(last.shape + (1,) * (logits.ndim - 1))
    allowed = (token != PAD) & (token != SOS) & (~last | (token == EOS))
    return jnp.where(allowed, log_probs, DEAD)


def greedy(
    step: Step, state: State, limit: Array, length: int, *, penalty: Penalty = "none", alpha: float = 0.6
) -> Hypotheses:
    """The likeliest token at every step, until <eos>: limit [B] <= length -> one hypothesis a sentence."""
    (rows,) = limit.shape

    def body(loop):
        t, state, token, tokens, lengths, log_probs = loop
        state, logits, _ = step(state, token)
        candidates = token_log_probs(logits, t + 1 >= limit)  # [B, V]
        live = token != EOS
        token = jnp.where(live, jnp.argmax(candidates, axis=-1), EOS).astype(jnp.int32)
        log_probs += jnp.where(live, jnp.max(candidates, axis=-1), 0)
        tokens = tokens.at[:, t].set(jnp.where(live, token, PAD))
        return t + 1, state, token, tokens, lengths + live, log_probs

    first = (
        jnp.int32(0), state, jnp.where(limit > 0, SOS, EOS).astype(jnp.int32),
        jnp.full((rows, length), PAD, jnp.int32), jnp.zeros(rows, jnp.int32), jnp.zeros(rows),
    )  # fmt: skip
    unfinished = lambda loop: (loop[0] < length) & jnp.any(loop[2] != EOS)
    _, _, _, tokens, lengths, log_probs = lax.while_loop(unfinished, body, first)
    scores = log_probs / length_penalty(penalty, alpha, lengths)
    found = Hypotheses(tokens, lengths, scores, log_probs)
    # As in `put_aside`: what the model holds impossible is no hypothesis.
    exists = (lengths > 0) & (log_probs > DEAD / 2)
    found = keep_rows(exists, found, Hypotheses(*map(jnp.full_like, found, (PAD, 0, -jnp.inf, -jnp.inf))))
    return jax.tree.map(lambda leaf: leaf[:, None], found)


class Beam(NamedTuple):
    """What the loop of a beam search carries. Live prefixes and hypotheses put aside, each sorted, best first."""

    t: Array  # [] tokens written so far
    state: State  # every leaf [B, K, ...]
    token: Array  # [B, K] the last token
    prefixes: Array  # [B, K, L]
    log_probs: Array  # [B, K] of the prefixes
    finished: Hypotheses  # K a sentence
    done: Array  # [B]


def beam(
    step: Step,
    state: State,
    limit: Array,
    length: int,
    *,
    width: int,
    nbest: int = 1,
    penalty: Penalty = "none",
    alpha: float = 0.6,
) -> Hypotheses:
    """Beam search as specified above: every leaf of state [B, ...], limit [B] <= length -> n hypotheses a sentence."""
    (rows,) = limit.shape
    by_beam = jax.vmap(lambda state, token: step(state, token)[:2], in_axes=1, out_axes=1)

    def body(loop: Beam) -> Beam:
        state, logits = by_beam(loop.state, loop.token)  # logits [B, K, V]
        t = loop.t + 1
        candidates = loop.log_probs[..., None] + token_log_probs(logits, t >= limit)
        # 2K are enough: K of them may end, which leaves K that live on.
        log_probs, parents, tokens = best_continuations(candidates, 2 * width)
        prefixes = jnp.take_along_axis(loop.prefixes, parents[..., None], axis=1).at[:, :, loop.t].set(tokens)
        ends = tokens == EOS  # [B, 2K]

        among_best = jnp.arange(ends.shape[1]) < width
        finished = put_aside(loop.finished, prefixes, log_probs, ends & among_best, t, penalty, alpha)
        finished = keep_rows(loop.done, loop.finished, finished)

        order = jnp.argsort(ends, axis=1, stable=True)[:, :width]  # the best K that do not end
        alive = jnp.where(ends, DEAD, log_probs)
        log_probs, parents, tokens, prefixes = (pick(x, order) for x in (alive, parents, tokens, prefixes))
        state = jax.tree.map(lambda leaf: pick(leaf, parents), state)

        reach = jnp.maximum(log_probs[:, 0] / length_penalty(penalty, alpha, t + 1),
                            log_probs[:, 0] / length_penalty(penalty, alpha, limit))  # fmt: skip
        done = loop.done | (t >= limit) | (reach <= finished.scores[:, nbest - 1])
        return Beam(t, state, tokens, prefixes, log_probs, finished, done)

    nothing = jnp.full((rows, width), -jnp.inf)
    empty = jnp.full((rows, width, length), PAD, jnp.int32)
    first = Beam(
        t=jnp.int32(0),
        state=jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], width, axis=1), state),
        token=jnp.full((rows, width), SOS, jnp.int32),
        prefixes=empty,
        # One prefix, the empty one, so all other places are dead.
        log_probs=jnp.full((rows, width), DEAD).at[:, 0].set(0),
        finished=Hypotheses(empty, jnp.zeros((rows, width), jnp.int32), nothing, nothing),
        done=limit < 1,
    )
    last = lax.while_loop(lambda loop: ~jnp.all(loop.done), body, first)
    return jax.tree.map(lambda leaf: leaf[:, :nbest], last.finished)


def best_continuations(candidates: Array, count: int) -> tuple[Array, Array, Array]:
    """The best of K * V continuations: candidates [B, K, V] -> log-probs, parents, tokens, each [B, count]."""
    vocabulary = candidates.shape[-1]
    log_probs, flat = lax.top_k(candidates.reshape(candidates.shape[0], -1), count)
    return log_probs, flat // vocabulary, (flat % vocabulary).astype(jnp.int32)


def put_aside(
    finished: Hypotheses, prefixes: Array, log_probs: Array, ends: Array, t: Array, penalty: Penalty, alpha: float
) -> Hypotheses:
    """The K best of those put aside before and those that end now, after t tokens."""
    ends &= log_probs > DEAD / 2
    scores = jnp.where(ends, log_probs / length_penalty(penalty, alpha, t), -jnp.inf)
    new = Hypotheses(
        jnp.where(ends[..., None], prefixes, PAD), jnp.where(ends, t, 0), scores, jnp.where(ends, log_probs, -jnp.inf)
    )
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    _, order = lax.top_k(both.scores, finished.scores.shape[1])
    return jax.tree.map(lambda leaf: pick(leaf, order), both)


def pick(leaf: Array, index: Array) -> Array:
    """leaf[b, index[b, k]] for every b and k: [B, J, ...], [B, K] -> [B, K, ...]."""
    return jax.vmap(lambda row, i: row[i])(leaf, index)


def keep_rows(mask: Array, old, new):
    """`old` in the sentences where `mask` [B] holds, `new` in the others."""
    return jax.tree.map(lambda o, n: jnp.where(mask.reshape(mask.shape + (1,) * (o.ndim - 1)), o, n), old, new)


def forced_attention(step: Step, state: State, tokens: Array) -> Array:
    """What the model looks at while it writes `tokens` [B, L]: [B, L, S]."""

    def body(carry, token):
        state, previous = carry
        state, _, attention = step(state, previous)
        return (state, token), attention

    start = (state, jnp.full(tokens.shape[:1], SOS, jnp.int32))
    return lax.scan(body, start, tokens.T)[1].swapaxes(0, 1)
