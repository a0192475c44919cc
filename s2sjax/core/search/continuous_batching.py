"""Continuous batching: decodes many sentences in a few slots, so that the cost follows their real lengths.

When a sentence is done, its result is stored and the next one in the queue takes its slot. Decoding a sentence does not
depend on its neighbours, so the result equals that of one large batch.

Letters: N sentences, R slots.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from s2sjax.core.search.decoding_loop import DecodingLoop, advance_some, run_loop
from s2sjax.core.search.hypotheses import Hypotheses

Sentences = Any
"""a pytree, every leaf [N, ...]"""


class Slots(NamedTuple):
    """The carry of `decode`."""

    sentence: Int[Array, " R"]  # the sentence in each slot; an empty slot has a number of N or above
    queue: Int[Array, ""]  # the first sentence that has no slot yet
    loop: Any  # the state of the decoding loop
    found: Hypotheses  # [N, ...]


def decode(search: Callable[[Sentences], DecodingLoop], sentences: Sentences, slots: int) -> Hypotheses:
    """Decodes N sentences in R = `slots` slots -> hypotheses [N, ...]. `search` makes the loop of R sentences."""
    count = len(jax.tree.leaves(sentences)[0])
    if count <= slots:
        return run_loop(search(sentences))[0]
    some = max(1, slots // 8)  # refilling has a cost, so several slots are refilled at once

    def refill_and_advance(now: Slots) -> Slots:
        done = now.loop.done.reshape(slots, -1).all(1)
        result = search(_gather(sentences, now.sentence)).result(now.loop)[0]
        place = jnp.where(done, now.sentence, count)
        found = jax.tree.map(lambda all, each: all.at[place].set(each, mode="drop"), now.found, result)

        sentence = jnp.where(done, now.queue + jnp.cumsum(done) - 1, now.sentence)
        queue = now.queue + jnp.sum(done)
        here = search(_gather(sentences, sentence))
        loop = _where(done, here.init(), now.loop)
        loop = loop._replace(done=loop.done | jnp.repeat(sentence >= count, len(loop.done) // slots))
        # When the queue is empty, all slots run to the end.
        enough = jnp.where(queue < count, some, slots)
        ended = lambda loop: jnp.sum(loop.done.reshape(slots, -1).all(1))
        loop = lax.while_loop(lambda loop: ended(loop) < enough, advance_some(here.advance), loop)
        return Slots(sentence, queue, loop, found)

    free = jnp.full(slots, count, jnp.int32)
    first = search(_gather(sentences, free))
    loop = first.init()
    loop = loop._replace(done=jnp.ones_like(loop.done))
    empty = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), first.result(loop)[0])
    all_stored = lambda now: jnp.all(now.sentence >= count) & (now.queue > 0)
    start = Slots(free, jnp.int32(0), loop, empty)
    return lax.while_loop(lambda now: ~all_stored(now), refill_and_advance, start).found


def _gather(sentences: Sentences, number: Int[Array, " R"]) -> Sentences:
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(number, len(leaf) - 1)], sentences)


def _where(slots: Bool[Array, " R"], new: PyTree, old: PyTree) -> PyTree:
    """New leaves where `slots` is True, old ones elsewhere; a leaf has one or more rows per slot."""

    def chosen(new: Array, old: Array) -> Array:
        rows = jnp.repeat(slots, len(new) // len(slots))
        return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, new, old)
