"""Continuous batching: many sentences through few rows, so that the cost follows their real lengths.

A sentence that is done hands in its result, and the next that waits takes its row. A search does not look at its
neighbours, so the result is that of all sentences side by side.

Letters: N sentences, R rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core.hypotheses import Hypotheses
from s2sjax.core.search import Search, several, to_the_end

Sentences = Any


class Turn(NamedTuple):
    number: Array  # [R] the sentence of each row; N and above: none
    waiting: Array  # [] the first that waits
    loop: Any
    found: Hypotheses  # [N, ...]


def in_turns(search: Callable[[Sentences], Search], sentences: Sentences, rows: int) -> Hypotheses:
    """search(R sentences) for all N of them, every leaf of `sentences` [N, ...]."""
    count = len(jax.tree.leaves(sentences)[0])
    if count <= rows:
        return to_the_end(search(sentences))[0]
    some = max(1, rows // 8)  # to change rows has its price, so a few are changed at once

    def turn(now: Turn) -> Turn:
        done = now.loop.done.reshape(rows, -1).all(1)
        result = search(_those(sentences, now.number)).result(now.loop)[0]
        place = jnp.where(done, now.number, count)
        found = jax.tree.map(lambda all, each: all.at[place].set(each, mode="drop"), now.found, result)

        number = jnp.where(done, now.waiting + jnp.cumsum(done) - 1, now.number)
        waiting = now.waiting + jnp.sum(done)
        here = search(_those(sentences, number))
        loop = _where(done, here.begin(), now.loop)
        loop = loop._replace(done=loop.done | jnp.repeat(number >= count, len(loop.done) // rows))
        # The last ones are waited for.
        enough = jnp.where(waiting < count, some, rows)
        ended = lambda loop: jnp.sum(loop.done.reshape(rows, -1).all(1))
        loop = lax.while_loop(lambda loop: ended(loop) < enough, several(here.advance), loop)
        return Turn(number, waiting, loop, found)

    nobody = jnp.full(rows, count, jnp.int32)
    begin = search(_those(sentences, nobody))
    loop = begin.begin()
    loop = loop._replace(done=jnp.ones_like(loop.done))
    nothing = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), begin.result(loop)[0])
    first = Turn(nobody, jnp.int32(0), loop, nothing)
    handed_in = lambda now: jnp.all(now.number >= count) & (now.waiting > 0)
    return lax.while_loop(lambda now: ~handed_in(now), turn, first).found


def _those(sentences: Sentences, number: Array) -> Sentences:
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(number, len(leaf) - 1)], sentences)


def _where(rows: Array, new: Any, old: Any) -> Any:
    """New leaves in `rows` [R], old ones elsewhere; a leaf has one or more lines for each row."""

    def chosen(new: Array, old: Array) -> Array:
        lines = jnp.repeat(rows, len(new) // len(rows))
        return jnp.where(lines.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, new, old)
