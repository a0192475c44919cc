"""The results of a search, and helpers to collect them.

Letters: B batch, K beam, G groups of W prefixes, R = B * G, J candidates, V vocabulary, L maximum length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core.tokens import PAD
from s2sjax.core.top_k import top_k_small


class Hypotheses(NamedTuple):
    """The n best of each sentence, best first. An empty place has score -inf and length 0."""

    tokens: Array  # [B, n, L], <eos> included, then <pad>
    lengths: Array  # [B, n], <eos> included
    scores: Array  # [B, n]
    log_probs: Array  # [B, n]


class Tree(NamedTuple):
    """The record of a beam search: the 2W continuations of each group that it ranked at each step, best first.

    Continuation j of a step follows live prefix `parents[.., j]` of the step before, which was continuation
    `lives[.., parents[.., j]]` there. Steps that were not made, and continuations that are impossible, have rank -inf.
    """

    parents: Array  # [B, G, L, 2W]
    tokens: Array  # [B, G, L, 2W]
    log_probs: Array  # [B, G, L, 2W]
    ended: Array  # [B, G, L, 2W] a finished hypothesis
    lives: Array  # [B, G, L, W] the continuations that stay live


def add_finished(finished: Hypotheses, new: Hypotheses, ends: Array) -> Hypotheses:
    """The W best of those finished before [R, W] and those of `new` [R, J] where `ends` holds."""
    new = Hypotheses(
        jnp.where(ends[..., None], new.tokens, PAD), jnp.where(ends, new.lengths, 0),
        jnp.where(ends, new.scores, -jnp.inf), jnp.where(ends, new.log_probs, -jnp.inf),
    )  # fmt: skip
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    return best(both, finished.scores.shape[1])


def best(found: Hypotheses, count: int) -> Hypotheses:
    """The `count` best by score, best first, ties in order."""
    order = top_k_small(found.scores, count)
    return jax.tree.map(lambda leaf: gather(leaf, order), found)


def unique(found: Hypotheses) -> Hypotheses:
    """Removes duplicates; best first, empty places at the end."""
    found = best(found, found.scores.shape[1])
    same = jnp.all(found.tokens[:, :, None] == found.tokens[:, None], axis=-1)  # [B, K, K]
    again = jnp.any(jnp.tril(same, k=-1), axis=-1)
    return best(
        Hypotheses(
            jnp.where(again[..., None], PAD, found.tokens), jnp.where(again, 0, found.lengths),
            jnp.where(again, -jnp.inf, found.scores), jnp.where(again, -jnp.inf, found.log_probs),
        ),
        found.scores.shape[1],
    )  # fmt: skip


def empty_tree(rows: int, length: int, width: int) -> Tree:
    """A tree with room for `length` steps of R rows."""
    shape = (rows, length, 2 * width)
    zeros = jnp.zeros(shape, jnp.int32)
    return Tree(zeros, zeros, jnp.full(shape, -jnp.inf), jnp.zeros(shape, bool), zeros[..., :width])


def record_step(tree: Tree, t: Array, step: Tree, done: Array) -> Tree:
    """`tree` with step t [R] of the rows that are not done; the leaves of `step` lack the axis L."""
    here = (jnp.arange(tree.tokens.shape[1]) == t[:, None]) & ~done[:, None]  # [R, L]
    return jax.tree.map(lambda past, now: jnp.where(here[..., None], now[:, None], past), tree, step)


def gather(leaf: Array, index: Array) -> Array:
    """leaf[b, index[b, k]] for every b and k: [B, J, ...], [B, K] -> [B, K, ...]."""
    return jax.vmap(lambda row, i: row[i])(leaf, index)


def gather_entries(table: Array, row: Array, column: Array) -> Array:
    """table[b, row[b, k], column[b, k]]: [B, J, V], [B, K], [B, K] -> [B, K]."""
    return jax.vmap(lambda one, i, j: one[i, j])(table, row, column)
