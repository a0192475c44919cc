"""Search: the likeliest outputs of a model, written once against the contract.

Letters: B batch, K beam, G groups of W = K / G, V vocabulary, S source, L the most tokens of an output, <eos> included.

Specification
-------------
- A *hypothesis* is a sequence of tokens that ends with <eos>, at most `limit` tokens long (<eos> counted;
  `limit` may differ from sentence to sentence). Its log-probability is the sum of those of its tokens, <eos>
  included: just what teacher forcing gives it. <pad> and <sos> are never written, yet keep their probability.
- Its *score* is log-probability / penalty(length) + coverage, length in tokens with <eos> (Wu et al. 2016):
      none  1        mean  length        gnmt  ((5 + length) / 6)^alpha
      coverage       beta * sum over the source of ln(min(1, attention it received in all)), 0 where beta is 0
- *Constraints* (s2sjax/core/constraints.py) forbid continuations: they never change the log-probability or the score
  of what remains. The one exception is the repetition penalty, which multiplies the log-probability of a token that
  was written before: it changes ranks and scores, and never the log-probability that is reported.
- The beam holds K live prefixes. Each step ranks all K * V continuations by log-probability. Those among the best K
  that end with <eos> are put aside, if they are among the K best by score put aside so far; the best K of the others
  live on. At the last position <eos> is the only continuation, at its true log-probability, so every hypothesis ends.
- A sentence is *done* when its `limit` is reached, or earlier by its stop rule:
      bound  no live prefix can still enter its n best: a prefix of log-probability s reaches at most s / penalty(l)
             for a length l from the next to `limit`, whichever is larger, for s only falls and coverage is at most 0
      first  K hypotheses are put aside
      never  at its limit alone
  From then on nothing of it changes, so neighbours in the batch, their number and their lengths do not matter.
- *Groups* (diverse beam search, Vijayakumar et al. 2018) are G beams of W, advanced one after the other. A group ranks
  a continuation `diversity` lower for each prefix of the groups before it that lives on with that token at that step;
  scores are not touched. The n best of all groups are reported, none twice.
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

from s2sjax.core.constraints import DEAD, Constraint, compose, permitted
from s2sjax.core.hypotheses import Hypotheses, Tree, entry, none_twice, note, pick, put_aside, unwritten
from s2sjax.core.tokens import EOS, PAD, SOS

Penalty = Literal["none", "mean", "gnmt"]
Stop = Literal["bound", "first", "never"]
State = Any
Step = Callable[[State, Array], tuple[State, Array, Array | None]]

FREE = compose(())
UNSEEN = 1e-10  # the attention that a source position has at least received: its logarithm is finite


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


# -------------------------------------------------------------------------- one token at a time


def walk(
    step: Step,
    state: State,
    limit: Array,
    length: int,
    choose: Callable[[Array, Array], Array],
    *,
    copies: int = 1,
    constraint: Constraint = FREE,
    penalty: Penalty = "none",
    alpha: float = 0.6,
) -> Hypotheses:
    """Writes `copies` outputs a sentence, one token after the other, none looking at another.

    choose(log_probs [B, n, V], t) -> token [B, n]; limit [B] <= length.
    """
    shape = (len(limit), copies)
    every = jnp.broadcast_to(jnp.arange(copies), shape)
    together = by_beam(step)

    def body(loop):
        t, state, token, tokens, lengths, log_probs = loop
        state, logits, _ = together(state, token)
        own = jax.nn.log_softmax(logits)
        allowed = permitted(constraint, own, tokens, t, limit)
        live = token != EOS
        chosen = choose(allowed, t)
        gain = jnp.where(entry(allowed, every, chosen) > DEAD / 2, entry(own, every, chosen), DEAD)
        token = jnp.where(live, chosen, EOS).astype(jnp.int32)
        tokens = tokens.at[:, :, t].set(jnp.where(live, token, PAD))
        return t + 1, state, token, tokens, lengths + live, log_probs + jnp.where(live, gain, 0)

    first = (
        jnp.int32(0), copied(state, copies), jnp.where(limit[:, None] > 0, jnp.full(shape, SOS), EOS).astype(jnp.int32),
        jnp.full((*shape, length), PAD, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape),
    )  # fmt: skip
    unfinished = lambda loop: (loop[0] < length) & jnp.any(loop[2] != EOS)
    _, _, _, tokens, lengths, log_probs = lax.while_loop(unfinished, body, first)
    # What the model or a constraint holds impossible is no hypothesis.
    exists = (lengths > 0) & (log_probs > DEAD / 2)
    scores = log_probs / length_penalty(penalty, alpha, lengths)
    return Hypotheses(
        jnp.where(exists[..., None], tokens, PAD), jnp.where(exists, lengths, 0),
        jnp.where(exists, scores, -jnp.inf), jnp.where(exists, log_probs, -jnp.inf),
    )  # fmt: skip


def greedy(step: Step, state: State, limit: Array, length: int, **options) -> Hypotheses:
    """The likeliest token at every step, until <eos>: one hypothesis a sentence. Options are those of `walk`."""
    return walk(step, state, limit, length, lambda log_probs, t: jnp.argmax(log_probs, axis=-1), **options)


# ----------------------------------------------------------------------------------- many prefixes


class Beam(NamedTuple):
    """What the loop of a beam search carries. Live prefixes and hypotheses put aside, each sorted, best first.

    R = B * G rows: each group of a sentence is a beam of its own.
    """

    t: Array  # [] tokens written so far
    state: State  # every leaf [B, K, ...]
    coverage: Any  # [B, K, S] the attention received so far
    token: Array  # [R, W] the last token
    prefixes: Array  # [R, W, L]
    ranks: Array  # [R, W] what the prefixes are ranked by: their log-probability, unless a constraint reweighs
    log_probs: Array  # [R, W]
    finished: Hypotheses  # W a row
    done: Array  # [R]
    tree: Tree | None


def beam(step: Step, state: State, limit: Array, length: int, **options) -> Hypotheses:
    """Beam search as specified above: the n best of each sentence. Options are those of `explore`."""
    return explore(step, state, limit, length, **options)[0]


def explore(
    step: Step,
    state: State,
    limit: Array,
    length: int,
    *,
    width: int,
    nbest: int = 1,
    penalty: Penalty = "none",
    alpha: float = 0.6,
    stop: Stop = "bound",
    coverage: float = 0.0,
    source_mask: Array | None = None,
    constraint: Constraint = FREE,
    groups: int = 1,
    diversity: float = 0.0,
    record: bool = False,
) -> tuple[Hypotheses, Tree | None]:
    """Beam search: every leaf of state [B, ...], limit [B] <= length -> n hypotheses a sentence; the tree, if wanted.

    `coverage` is beta, and needs `source_mask` [B, S] and a model that tells its attention.
    """
    sentences, W = len(limit), width // groups
    together = by_beam(step)
    by_row = lambda x: x.reshape(sentences * groups, W, *x.shape[2:])
    by_sentence = lambda x: x.reshape(sentences, width, *x.shape[2:])
    limits = jnp.repeat(limit, groups)
    penalised = lambda log_probs, length: log_probs / length_penalty(penalty, alpha, length)

    def body(loop: Beam) -> Beam:
        state, logits, attention = together(loop.state, by_sentence(loop.token))
        t = loop.t + 1
        own = jax.nn.log_softmax(logits)  # [B, K, V]
        allowed = permitted(constraint, own, by_sentence(loop.prefixes), loop.t, limit)
        # 2W are enough: W of them may end, which leaves W that live on.
        ranks, parents, tokens = best_continuations(
            by_sentence(loop.ranks)[..., None] + allowed, 2 * W, groups, diversity
        )
        log_probs = pick(loop.log_probs, parents) + entry(by_row(own), parents, tokens)
        prefixes = pick(loop.prefixes, parents).at[:, :, loop.t].set(tokens)

        ends = tokens == EOS  # [R, 2W]
        aside = ends & (jnp.arange(2 * W) < W) & (ranks > DEAD / 2)
        scores = penalised(ranks, t)
        seen = None
        if coverage:
            assert attention is not None and source_mask is not None, "coverage needs attention and source_mask"
            seen = loop.coverage + attention
            received = jnp.log(jnp.clip(seen, UNSEEN, 1))
            scores += pick(by_row(coverage * jnp.sum(received, axis=-1, where=source_mask[:, None])), parents)
        finished = put_aside(loop.finished, Hypotheses(prefixes, t, scores, log_probs), aside & ~loop.done[:, None])

        order = jnp.argsort(ends, axis=1, stable=True)[:, :W]  # the best W that do not end
        tree = note(loop.tree, loop.t, Tree(parents, tokens, ranks, aside, order), loop.done) if loop.tree else None
        ranks = jnp.where(ends, DEAD, ranks)
        ranks, log_probs, parents, tokens, prefixes = (
            pick(x, order) for x in (ranks, log_probs, parents, tokens, prefixes)
        )
        first_of_group = jnp.arange(len(parents))[:, None] % groups * W
        origin = by_sentence(parents + first_of_group)
        state, seen = jax.tree.map(lambda leaf: pick(leaf, origin), (state, seen))

        match stop:
            case "bound":
                best = ranks.max(1)
                reach = jnp.maximum(penalised(best, t + 1), penalised(best, limits))
                enough = reach <= finished.scores[:, min(nbest, W) - 1]
            case "first":
                enough = finished.lengths[:, -1] > 0
            case "never":
                enough = jnp.zeros_like(loop.done)
        done = loop.done | (t >= limits) | enough
        return Beam(t, state, seen, tokens, prefixes, ranks, log_probs, finished, done, tree)

    rows = sentences * groups
    nothing = jnp.full((rows, W), -jnp.inf)
    empty = jnp.full((rows, W, length), PAD, jnp.int32)
    # One prefix, the empty one, so all other places are dead.
    ranks = jnp.full((rows, W), DEAD).at[:, 0].set(0)
    first = Beam(
        t=jnp.int32(0),
        state=copied(state, width),
        coverage=jnp.zeros((sentences, width, source_mask.shape[1])) if coverage and source_mask is not None else None,
        token=jnp.full((rows, W), SOS, jnp.int32),
        prefixes=empty,
        ranks=ranks,
        log_probs=ranks,
        finished=Hypotheses(empty, jnp.zeros((rows, W), jnp.int32), nothing, nothing),
        done=limits < 1,
        tree=unwritten(rows, length, W) if record else None,
    )
    last = lax.while_loop(lambda loop: ~jnp.all(loop.done), body, first)
    found = jax.tree.map(by_sentence, last.finished)
    if groups > 1:
        found = none_twice(found)
    tree = jax.tree.map(lambda leaf: leaf.reshape(sentences, groups, *leaf.shape[1:]), last.tree)
    return jax.tree.map(lambda leaf: leaf[:, :nbest], found), tree


def best_continuations(candidates: Array, count: int, groups: int, diversity: float) -> tuple[Array, Array, Array]:
    """The best of each group's W * V continuations: candidates [B, K, V] -> ranks, parents, tokens, each [R, count]."""
    sentences, width, vocabulary = candidates.shape
    by_group = candidates.reshape(sentences, groups, width // groups, vocabulary)
    chosen: list[Array] = []
    used = jnp.zeros((sentences, vocabulary))  # how many prefixes of the groups before live on with each token
    for group in range(groups):
        ranked = by_group[:, group]
        if group:
            ranked = ranked - diversity * used[:, None]
        flat = _best_of_table(ranked, count)  # [B, 2W]
        chosen.append(flat)
        tokens = flat % vocabulary
        live = (tokens != EOS) & (jnp.cumsum(tokens != EOS, axis=1) <= width // groups)
        used = used.at[jnp.arange(sentences)[:, None], tokens].add(live)
    flat = jnp.stack(chosen, axis=1)  # [B, G, 2W]
    ranks = jnp.take_along_axis(by_group.reshape(sentences, groups, -1), flat, axis=2)
    parents, tokens = flat // vocabulary, (flat % vocabulary).astype(jnp.int32)
    return tuple(x.reshape(sentences * groups, count) for x in (ranks, parents, tokens))  # type: ignore[return-value]


def _best_of_table(ranked: Array, count: int) -> Array:
    """Where the best of [B, W, V] lie in [B, W * V]: row by row first, for short lists are sorted faster than long."""
    sentences, _, vocabulary = ranked.shape
    each = min(count, vocabulary)
    best, tokens = lax.top_k(ranked, each)  # [B, W, each]
    places = lax.top_k(best.reshape(sentences, -1), count)[1]
    return places // each * vocabulary + jnp.take_along_axis(tokens.reshape(sentences, -1), places, axis=1)


def by_beam(step: Step) -> Step:
    """`step` for all prefixes of a sentence: every leaf of the state [B, K, ...], token [B, K]."""
    return jax.vmap(step, in_axes=1, out_axes=1)


def copied(state: State, width: int) -> State:
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], width, axis=1), state)


def forced_attention(step: Step, state: State, tokens: Array) -> Array | None:
    """What the model looks at while it writes `tokens` [B, L]: [B, L, S]; None where it has no attention."""

    def body(carry, token):
        state, previous = carry
        state, _, attention = step(state, previous)
        return (state, token), attention

    start = (state, jnp.full(tokens.shape[:1], SOS, jnp.int32))
    looked = lax.scan(body, start, tokens.T)[1]
    return None if looked is None else looked.swapaxes(0, 1)
