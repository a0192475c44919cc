"""The results of a search, and helpers to collect them.

Letters: B batch, K beam, G groups of W prefixes, R = B * G, J candidates, V vocabulary, L maximum length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from s2sjax.core.search.top_k import top_k_small
from s2sjax.core.special_tokens import PAD


class Hypotheses(NamedTuple):
    """The n best hypotheses of each sentence, best first. An empty entry has score -inf and length 0."""

    tokens: Int[Array, "B n L"]  # <eos> included, then <pad>
    lengths: Int[Array, "B n"]  # <eos> included
    scores: Float[Array, "B n"]
    log_probs: Float[Array, "B n"]


class Tree(NamedTuple):
    """The record of a beam search: the 2W continuations of each group that it ranked at each step, best first.

    Continuation j of a step follows live prefix `parents[.., j]` of the previous step, which was continuation
    `lives[.., parents[.., j]]` there. Missing steps and impossible continuations have log-probability -inf.
    """

    parents: Int[Array, "B G L 2*W"]  # live prefix that is continued
    tokens: Int[Array, "B G L 2*W"]  # token that is added
    log_probs: Float[Array, "B G L 2*W"]  # what continuations are ranked by
    ended: Bool[Array, "B G L 2*W"]  # whether it is a finished hypothesis
    lives: Int[Array, "B G L W"]  # the continuations that stay live


def add_finished(finished: Hypotheses, new: Hypotheses, ends: Bool[Array, "R J"]) -> Hypotheses:
    """The W best of the hypotheses finished before, [R, W], and those of `new`, [R, J], where `ends` is True."""
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, only(new, ends))
    return best(both, finished.scores.shape[1])


def only(found: Hypotheses, kept: Bool[Array, "B n"]) -> Hypotheses:
    """The hypotheses where `kept` is True, and empty entries elsewhere."""
    return Hypotheses(
        jnp.where(kept[..., None], found.tokens, PAD), jnp.where(kept, found.lengths, 0),
        jnp.where(kept, found.scores, -jnp.inf), jnp.where(kept, found.log_probs, -jnp.inf),
    )  # fmt: skip


def best(found: Hypotheses, count: int) -> Hypotheses:
    """The `count` best hypotheses of each row by score, best first; ties keep their order."""
    order = top_k_small(found.scores, count)
    return jax.tree.map(lambda leaf: gather(leaf, order), found)


def unique(found: Hypotheses) -> Hypotheses:
    """Removes duplicates from each row; best first, empty entries at the end."""
    found = best(found, found.scores.shape[1])
    same = jnp.all(found.tokens[:, :, None] == found.tokens[:, None], axis=-1)  # [B, K, K]
    again = jnp.any(jnp.tril(same, k=-1), axis=-1)
    return best(only(found, ~again), found.scores.shape[1])


def empty_tree(rows: int, length: int, width: int) -> Tree:
    """An empty tree of R = `rows` rows with room for `length` steps; leaves [R, L, 2W]."""
    shape = (rows, length, 2 * width)
    zeros = jnp.zeros(shape, jnp.int32)
    return Tree(zeros, zeros, jnp.full(shape, -jnp.inf), jnp.zeros(shape, bool), zeros[..., :width])


def record_step(tree: Tree, t: Int[Array, " R"], step: Tree, done: Bool[Array, " R"]) -> Tree:
    """Writes `step`, leaves [R, 2W], at position t of the tree, in the rows where `done` is False."""
    here = (jnp.arange(tree.tokens.shape[1])[None] == t[:, None]) & ~done[:, None]  # [R, L]
    return jax.tree.map(lambda past, now: jnp.where(here[..., None], now[:, None], past), tree, step)


def gather(leaf: Shaped[Array, "B J ..."], index: Int[Array, "B K"]) -> Shaped[Array, "B K ..."]:
    """leaf[b, index[b, k]] for every b and k."""
    return jax.vmap(lambda row, i: row[i])(leaf, index)


def gather_entries(
    table: Shaped[Array, "B J V"], row: Int[Array, "B K"], column: Int[Array, "B K"]
) -> Shaped[Array, "B K"]:
    """table[b, row[b, k], column[b, k]] for every b and k."""
    return jax.vmap(lambda one, i, j: one[i, j])(table, row, column)
