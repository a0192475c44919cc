"""The loop that greedy search, sampling and beam search share.

Letters: B batch, V vocabulary, S source, L maximum output length, <eos> included.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from s2sjax.core.backend import device
from s2sjax.core.search.beam_interface import Beams, State, Step, as_beams
from s2sjax.core.search.constraints import DEAD, Constraint, Forced, compose, permitted
from s2sjax.core.search.hypotheses import Hypotheses, Tree, gather_entries, only
from s2sjax.core.special_tokens import EOS, PAD, SOS

Penalty = Literal["none", "mean", "power", "gnmt"]
Stop = Literal["bound", "heuristic", "first", "never"]
Limit = Shaped[ArrayLike, "..."]
"""maximum output length, <eos> included: whole numbers [B], or one for all sentences; `limit_of_each` checks this"""

UNCONSTRAINED = compose(())
UNSEEN = 1e-10  # minimum attention of a source position, so that its logarithm is finite


def length_penalty(
    penalty: Penalty, alpha: Float[ArrayLike, ""], length: Int[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The divisor of the log-probability of hypotheses of the given lengths."""
    length = length.astype(jnp.float32)
    match penalty:
        case "none":
            return jnp.ones_like(length)
        case "mean":
            return length
        case "power":
            return length**alpha
        case "gnmt":
            return ((5 + length) / 6) ** alpha


class DecodingLoop(NamedTuple):
    """The functions of a decoding loop.

    The state is a NamedTuple with a field `done`. Every leaf has the same number of rows for each sentence.
    """

    init: Callable[[], Any]  # makes the initial state
    advance: Callable[[Any], Any]  # writes one token; sentences that are done do not change
    result: Callable[[Any], tuple[Hypotheses, Tree | None]]  # extracts the result from the last state


def run_loop(search: DecodingLoop) -> tuple[Hypotheses, Tree | None]:
    """Runs a decoding loop until all sentences are done."""
    last = lax.while_loop(lambda loop: ~jnp.all(loop.done), advance_some(search.advance), search.init())
    return search.result(last)


def advance_some(advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Repeats `advance` for as many tokens as the device writes between checks whether all sentences are done."""
    tokens = device.tokens_per_check()
    return advance if tokens == 1 else lambda loop: lax.fori_loop(0, tokens, lambda _, now: advance(now), loop)


def limit_of_each(limit: Limit, state: State, length: int) -> Int[Array, " B"]:
    """The limit of each sentence; every leaf of `state` is [B, ...]."""
    limits = jnp.asarray(limit)
    if not jnp.issubdtype(limits.dtype, jnp.integer):
        raise ValueError(f"limit is of type {limits.dtype}: give whole numbers")
    highest = 0 if isinstance(limits, jax.core.Tracer) else np.asarray(limits).max(initial=0)
    if highest > length:
        raise ValueError(f"limit {highest} is above length {length}, the maximum output length: lower it")
    if limits.ndim > 1:
        raise ValueError(f"limit has shape {limits.shape}: give one number, or one per sentence")
    if limits.ndim == 1:
        return limits
    rows = [leaf.shape[0] for leaf in jax.tree.leaves(state)]
    if not rows:
        raise ValueError("limit is one number, but the state has no arrays to count sentences by: give limits [B]")
    return jnp.full(rows[0], limits)


def written_at(t: Int[Array, " B"], table: Int[Array, "B K L"], token: Int[Array, "B K"]) -> Int[Array, "B K L"]:
    """Sets table[b, k, t[b]] = token[b, k]. Positions beyond L are dropped."""
    here = jnp.arange(table.shape[2])[None, None] == t[:, None, None]
    return jnp.where(here, token[..., None], table)


# ----------------------------------------------------------------------- independent outputs


class DecodeState(NamedTuple):
    """The state of `decode_loop`."""

    t: Int[Array, " B"]  # tokens written so far
    state: State
    token: Int[Array, "B n"]  # the last token
    tokens: Int[Array, "B n L"]
    lengths: Int[Array, "B n"]
    ranks: Float[Array, "B n"]  # the sum of what the tokens are ranked by
    log_probs: Float[Array, "B n"]
    done: Bool[Array, " B"]


def decode_loop(
    step: Step | Beams,
    state: State,
    limit: Limit,
    length: int,
    choose: Callable[[Array, Array], Array],
    *,
    copies: int = 1,
    constraint: Constraint = UNCONSTRAINED,
    penalty: Penalty = "none",
    alpha: Float[ArrayLike, ""] = 0.6,
    forced: Forced = "scored",
    start: int = SOS,
) -> DecodingLoop:
    """The loop that writes `copies` independent outputs per sentence, token by token.

    state: every leaf [B, ...]
    length: L, the highest limit
    choose: choose(log_probs [B, n, V], t [B]) -> token [B, n]
    start: the token that the model reads first
    """
    limit = limit_of_each(limit, state, length)
    shape = (len(limit), copies)
    every = jnp.broadcast_to(jnp.arange(copies), shape)
    beams = as_beams(step)

    def init() -> DecodeState:
        first, zeros = jnp.full(shape, start, jnp.int32), jnp.zeros(shape)
        tokens = jnp.full((*shape, length), PAD, jnp.int32)
        return DecodeState(
            jnp.zeros_like(limit), beams.tile(state, copies), first, tokens, jnp.zeros(shape, jnp.int32),
            zeros, zeros, limit < 1,
        )  # fmt: skip

    def advance(loop: DecodeState) -> DecodeState:
        state, logits, _ = beams.step(loop.state, loop.token)
        own = jax.nn.log_softmax(logits)
        allowed = permitted(constraint, own, loop.tokens, loop.t, limit, start, forced)
        # <eos> ends an output, but not where it starts the decoder.
        live = ((loop.t == 0)[:, None] | (loop.token != EOS)) & (loop.t < limit)[:, None]
        chosen = choose(allowed, loop.t)
        rank = gather_entries(allowed, every, chosen)
        gain = jnp.where(rank > DEAD / 2, gather_entries(own, every, chosen), DEAD)
        token = jnp.where(live, chosen, EOS).astype(jnp.int32)
        tokens = written_at(loop.t, loop.tokens, jnp.where(live, token, PAD))
        ranks = loop.ranks + jnp.where(live, rank, 0)
        log_probs = loop.log_probs + jnp.where(live, gain, 0)
        t = loop.t + 1
        done = (t >= limit) | jnp.all(token == EOS, axis=1)
        return DecodeState(t, state, token, tokens, loop.lengths + live, ranks, log_probs, done)

    def result(loop: DecodeState) -> tuple[Hypotheses, None]:
        # Outputs with probability 0, or that violate a constraint, are not hypotheses.
        exists = (loop.lengths > 0) & (loop.log_probs > DEAD / 2)
        scores = loop.ranks / length_penalty(penalty, alpha, loop.lengths)
        return only(Hypotheses(loop.tokens, loop.lengths, scores, loop.log_probs), exists), None

    return DecodingLoop(init, advance, result)


def argmax_token(log_probs: Float[Array, "B n V"], t: Int[Array, " B"]) -> Int[Array, "B n"]:
    """Chooses the most likely token."""
    return jnp.argmax(log_probs, axis=-1)


def greedy(step: Step | Beams, state: State, limit: Limit, length: int, **options) -> Hypotheses:
    """Greedy search: the most likely token at every step, one hypothesis per sentence. Options: see `decode_loop`.

    >>> table = jnp.log(jnp.array([[0, 0, 0.4, 0, 0.6], [0, 0, 0.9, 0, 0.1]]))  # p(next): of <eos> (2), of a word (4)
    >>> step = lambda state, token: (state, table[(token == 4).astype(int)], None)
    >>> greedy(step, jnp.zeros(1), limit=5, length=5).tokens
    Array([[[4, 2, 0, 0, 0]]], dtype=int32)
    """
    return run_loop(decode_loop(step, state, limit, length, argmax_token, **options))[0]


def forced_attention(
    step: Step | Beams, state: State, tokens: Int[Array, "B L"], start: int = SOS
) -> Float[Array, "B L S"] | None:
    """The attention weights with teacher forcing of `tokens`, or None for a model without attention.

    Every leaf of `state` is [B, ...]. The model reads `start` first.
    """
    beams = as_beams(step)

    def body(carry, token):
        state, previous = carry
        state, _, attention = beams.step(state, previous[:, None])
        return (state, token), None if attention is None else attention[:, 0]

    first = (beams.tile(state, 1), jnp.full(tokens.shape[:1], start, jnp.int32))
    weights = lax.scan(body, first, tokens.T)[1]
    return None if weights is None else weights.swapaxes(0, 1)
