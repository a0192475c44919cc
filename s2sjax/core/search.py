"""Search for the most likely outputs of a model.

Letters: B batch, K beam, G groups of W = K / G, V vocabulary, S source, L maximum output length, <eos> included.

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
  that end with <eos> are finished, and kept if they are among the K best finished ones by score; the best K of the
  others live on. At the last position <eos> is the only continuation, at its true log-probability, so every hypothesis
  ends.
- A sentence is *done* when its `limit` is reached, or earlier by its stop rule:
      bound  no live prefix can still enter its n best: a prefix of log-probability s reaches at most s / penalty(l)
             for a length l from the next to `limit`, whichever is larger, for s only falls and coverage is at most 0
      first  K hypotheses are finished
      never  at its limit alone
  From then on nothing of it changes, so neighbours in the batch, their number and their lengths do not matter.
- *Groups* (diverse beam search, Vijayakumar et al. 2018) are G beams of W, advanced one after the other. A group ranks
  a continuation `diversity` lower for each prefix of the groups before it that lives on with that token at that step;
  scores are not touched. The n best of all groups are reported, none twice.
- Ties go to the older hypothesis, then to the lower beam, then to the smaller token.
- K = 1 is greedy search when the penalty is `none`; with another, it goes on past a first <eos> while a longer
  hypothesis could win.

A model is seen as `step(state, token [B]) -> state, logits [B, V], attention`, or as `Beams`: see beams.py. A search is
three functions, so that it can run to its end (`run_loop`) or in the slots of continuous_batching.py.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core import device
from s2sjax.core.beams import Beams, State, Step, as_beams
from s2sjax.core.constraints import DEAD, Constraint, compose, permitted
from s2sjax.core.hypotheses import (
    Hypotheses,
    Tree,
    add_finished,
    empty_tree,
    gather,
    gather_entries,
    record_step,
    unique,
)
from s2sjax.core.tokens import EOS, PAD, SOS
from s2sjax.core.top_k import top_k, top_k_small

Penalty = Literal["none", "mean", "gnmt"]
Stop = Literal["bound", "first", "never"]

UNCONSTRAINED = compose(())
UNSEEN = 1e-10  # the attention that a source position has at least received: its logarithm is finite


def length_penalty(penalty: Penalty, alpha: float, length: Array) -> Array:
    """The divisor of a hypothesis's log-probability."""
    length = length.astype(jnp.float32)
    match penalty:
        case "none":
            return jnp.ones_like(length)
        case "mean":
            return length
        case "gnmt":
            return ((5 + length) / 6) ** alpha


class Search(NamedTuple):
    """A decoding loop. Its state has `done`, and any other leaves; each has equally many rows for every sentence."""

    init: Callable[[], Any]
    advance: Callable[[Any], Any]
    """writes one token; a sentence that is done does not change"""
    result: Callable[[Any], tuple[Hypotheses, Tree | None]]


def run_loop(search: Search) -> tuple[Hypotheses, Tree | None]:
    last = lax.while_loop(lambda loop: ~jnp.all(loop.done), advance_some(search.advance), search.init())
    return search.result(last)


def advance_some(advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As many tokens as the device writes between two checks of whether all sentences are done."""
    tokens = device.tokens_per_check()
    return advance if tokens == 1 else lambda loop: lax.fori_loop(0, tokens, lambda _, now: advance(now), loop)


def limit_of_each(limit: Array | int, state: State, length: int) -> Array:
    """[B]: the limit of each sentence, if one number is given for all."""
    limits = jnp.asarray(limit)
    if not jnp.issubdtype(limits.dtype, jnp.integer):
        raise ValueError(f"limit is of type {limits.dtype}: give whole numbers")
    if not isinstance(limits, jax.core.Tracer) and limits.size and int(limits.max()) > length:
        raise ValueError(f"limit {int(limits.max())} is above length {length}, the places of a hypothesis: lower it")
    if limits.ndim > 1:
        raise ValueError(f"limit has shape {limits.shape}: give one number, or one for each sentence")
    if limits.ndim == 1:
        return limits
    rows = [leaf.shape[0] for leaf in jax.tree.leaves(state)]
    if not rows:
        raise ValueError("limit is one number, and the state has no arrays that tell how many sentences there are")
    return jnp.full(rows[0], limits)


def check_beam(width: int, nbest: int, groups: int, penalty: str, stop: str) -> None:
    for name, value, kind in (("penalty", penalty, Penalty), ("stop", stop, Stop)):
        if value not in get_args(kind):
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(get_args(kind))}")
    if width < 1:
        raise ValueError(f"width {width} is below 1: it is the number of prefixes of the beam")
    if not 1 <= nbest <= width:
        raise ValueError(f"nbest {nbest} is not from 1 to width {width}: raise the width or lower nbest")
    if groups < 1 or width % groups:
        raise ValueError(f"groups {groups} does not divide width {width}: change one of them")


def written_at(t: Array, table: Array, token: Array) -> Array:
    """table[b, k, t[b]] = token[b, k]: [B], [B, K, L], [B, K]; beyond L nothing is written."""
    here = jnp.arange(table.shape[2]) == t[:, None, None]
    return jnp.where(here, token[..., None], table)


# -------------------------------------------------------------------------- one token at a time


class DecodeState(NamedTuple):
    """What `decode_loop` carries."""

    t: Array  # [B] tokens written so far
    state: State
    token: Array  # [B, n] the last token
    tokens: Array  # [B, n, L]
    lengths: Array  # [B, n]
    log_probs: Array  # [B, n]
    done: Array  # [B]


def decode_loop(
    step: Step | Beams,
    state: State,
    limit: Array | int,
    length: int,
    choose: Callable[[Array, Array], Array],
    *,
    copies: int = 1,
    constraint: Constraint = UNCONSTRAINED,
    penalty: Penalty = "none",
    alpha: float = 0.6,
) -> Search:
    """Writes `copies` independent outputs per sentence, token by token.

    choose(log_probs [B, n, V], t [B]) -> token [B, n]; limit, of all sentences or [B], is at most length.
    """
    limit = limit_of_each(limit, state, length)
    shape = (len(limit), copies)
    every = jnp.broadcast_to(jnp.arange(copies), shape)
    beams = as_beams(step)

    def init() -> DecodeState:
        token = jnp.where(limit[:, None] > 0, jnp.full(shape, SOS), EOS).astype(jnp.int32)
        tokens = jnp.full((*shape, length), PAD, jnp.int32)
        start = beams.tile(state, copies)
        return DecodeState(
            jnp.zeros_like(limit), start, token, tokens, jnp.zeros(shape, jnp.int32), jnp.zeros(shape), limit < 1
        )

    def advance(loop: DecodeState) -> DecodeState:
        state, logits, _ = beams.step(loop.state, loop.token)
        own = jax.nn.log_softmax(logits)
        allowed = permitted(constraint, own, loop.tokens, loop.t, limit)
        live = (loop.token != EOS) & (loop.t < limit)[:, None]
        chosen = choose(allowed, loop.t)
        gain = jnp.where(gather_entries(allowed, every, chosen) > DEAD / 2, gather_entries(own, every, chosen), DEAD)
        token = jnp.where(live, chosen, EOS).astype(jnp.int32)
        tokens = written_at(loop.t, loop.tokens, jnp.where(live, token, PAD))
        log_probs = loop.log_probs + jnp.where(live, gain, 0)
        t = loop.t + 1
        done = (t >= limit) | jnp.all(token == EOS, axis=1)
        return DecodeState(t, state, token, tokens, loop.lengths + live, log_probs, done)

    def result(loop: DecodeState) -> tuple[Hypotheses, None]:
        # Outputs that the model or a constraint makes impossible are not hypotheses.
        exists = (loop.lengths > 0) & (loop.log_probs > DEAD / 2)
        scores = loop.log_probs / length_penalty(penalty, alpha, loop.lengths)
        found = Hypotheses(
            jnp.where(exists[..., None], loop.tokens, PAD), jnp.where(exists, loop.lengths, 0),
            jnp.where(exists, scores, -jnp.inf), jnp.where(exists, loop.log_probs, -jnp.inf),
        )  # fmt: skip
        return found, None

    return Search(init, advance, result)


def argmax_token(log_probs: Array, t: Array) -> Array:
    return jnp.argmax(log_probs, axis=-1)


def greedy(step: Step | Beams, state: State, limit: Array | int, length: int, **options) -> Hypotheses:
    """The likeliest token at every step, until <eos>: one hypothesis a sentence. Options are those of `decode_loop`."""
    return run_loop(decode_loop(step, state, limit, length, argmax_token, **options))[0]


# ----------------------------------------------------------------------------------- many prefixes


class BeamState(NamedTuple):
    """What the loop of a beam search carries. Live prefixes and finished hypotheses, each sorted, best first.

    R = B * G rows: each group of a sentence is a beam of its own.
    """

    t: Array  # [R] tokens written so far
    state: State  # of K prefixes a sentence
    coverage: Any  # [B, K, S] the attention received so far
    token: Array  # [R, W] the last token
    prefixes: Array  # [R, W, L]
    ranks: Array  # [R, W] what the prefixes are ranked by: their log-probability, unless a constraint reweighs
    log_probs: Array  # [R, W]
    finished: Hypotheses  # W a row
    done: Array  # [R]
    tree: Tree | None


def beam_search(
    step: Step | Beams,
    state: State,
    limit: Array | int,
    length: int,
    *,
    width: int,
    nbest: int = 1,
    penalty: Penalty = "none",
    alpha: float = 0.6,
    stop: Stop = "bound",
    coverage: float = 0.0,
    source_mask: Array | None = None,
    constraint: Constraint = UNCONSTRAINED,
    groups: int = 1,
    diversity: float = 0.0,
) -> Hypotheses:
    """Beam search as specified above: the `nbest` best of each sentence, best first.

    state: every leaf [B, ...]. limit: of all sentences, or [B], at most `length`, the places of a hypothesis.
    width: the beam K, at least nbest. penalty, alpha and coverage (beta): of the score; coverage requires `source_mask`
    [B, S] and a model with attention. groups, which divide the width, and diversity: of diverse beam search.
    """
    return beam_search_with_tree(
        step, state, limit, length, width=width, nbest=nbest, penalty=penalty, alpha=alpha, stop=stop,
        coverage=coverage, source_mask=source_mask, constraint=constraint, groups=groups, diversity=diversity,
    )[0]  # fmt: skip


def beam_search_with_tree(
    step: Step | Beams, state: State, limit: Array | int, length: int, *, width: int, record: bool = False, **options
) -> tuple[Hypotheses, Tree | None]:
    """`beam_search`, whose other options it takes; with `record`, also the tree of all continuations it has ranked."""
    return run_loop(beam_loop(step, state, limit, length, width=width, record=record, **options))


def beam_loop(
    step: Step | Beams,
    state: State,
    limit: Array | int,
    length: int,
    *,
    width: int,
    nbest: int = 1,
    penalty: Penalty = "none",
    alpha: float = 0.6,
    stop: Stop = "bound",
    coverage: float = 0.0,
    source_mask: Array | None = None,
    constraint: Constraint = UNCONSTRAINED,
    groups: int = 1,
    diversity: float = 0.0,
    record: bool = False,
) -> Search:
    """The loop of `beam_search`: its result has n hypotheses per sentence and, with `record`, the tree."""
    check_beam(width, nbest, groups, penalty, stop)
    if coverage and source_mask is None:
        raise ValueError("coverage requires source_mask, [B, S]: give it, or leave coverage out")
    limit = limit_of_each(limit, state, length)
    sentences, W = len(limit), width // groups
    beams = as_beams(step)
    by_row = lambda x: x.reshape(sentences * groups, W, *x.shape[2:])
    by_sentence = lambda x: x.reshape(sentences, width, *x.shape[2:])
    limits = jnp.repeat(limit, groups)
    penalised = lambda log_probs, length: log_probs / length_penalty(penalty, alpha, length)

    def advance(loop: BeamState) -> BeamState:
        state, logits, attention = beams.step(loop.state, by_sentence(loop.token))
        t = loop.t + 1
        own = jax.nn.log_softmax(logits)  # [B, K, V]
        allowed = permitted(constraint, own, by_sentence(loop.prefixes), loop.t[::groups], limit)
        # 2W are enough: at most W of them end, which leaves W live ones.
        ranks, parents, tokens = best_continuations(
            by_sentence(loop.ranks)[..., None] + allowed, 2 * W, groups, diversity
        )
        log_probs = gather(loop.log_probs, parents) + gather_entries(by_row(own), parents, tokens)
        prefixes = written_at(loop.t, gather(loop.prefixes, parents), tokens)

        ends = tokens == EOS  # [R, 2W]
        finishing = ends & (jnp.arange(2 * W) < W) & (ranks > DEAD / 2)
        scores = penalised(ranks, t[:, None])
        seen = None
        if coverage:
            assert attention is not None and source_mask is not None, "coverage requires attention and source_mask"
            seen = loop.coverage + attention
            received = jnp.log(jnp.clip(seen, UNSEEN, 1))
            scores += gather(by_row(coverage * jnp.sum(received, axis=-1, where=source_mask[:, None])), parents)
        found = Hypotheses(prefixes, jnp.broadcast_to(t[:, None], ends.shape), scores, log_probs)
        finished = add_finished(loop.finished, found, finishing & ~loop.done[:, None])

        order = top_k_small(~ends, W)  # the best W that do not end
        ranked = Tree(parents, tokens, ranks, finishing, order)
        tree = record_step(loop.tree, loop.t, ranked, loop.done) if loop.tree else None
        ranks = jnp.where(ends, DEAD, ranks)
        ranks, log_probs, parents, tokens, prefixes = (
            gather(x, order) for x in (ranks, log_probs, parents, tokens, prefixes)
        )
        first_of_group = jnp.arange(len(parents))[:, None] % groups * W
        origin = by_sentence(parents + first_of_group)
        state = beams.reorder(state, origin)
        seen = None if seen is None else gather(seen, origin)

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
        return BeamState(t, state, seen, tokens, prefixes, ranks, log_probs, finished, done, tree)

    def init() -> BeamState:
        rows = sentences * groups
        nothing = jnp.full((rows, W), -jnp.inf)
        empty = jnp.full((rows, W, length), PAD, jnp.int32)
        # There is one prefix, the empty one; all other places are dead.
        ranks = jnp.full((rows, W), DEAD).at[:, 0].set(0)
        return BeamState(
            t=jnp.zeros(rows, jnp.int32),
            state=beams.tile(state, width),
            coverage=jnp.zeros((sentences, width, source_mask.shape[1]))
            if coverage and source_mask is not None
            else None,
            token=jnp.full((rows, W), SOS, jnp.int32),
            prefixes=empty,
            ranks=ranks,
            log_probs=ranks,
            finished=Hypotheses(empty, jnp.zeros((rows, W), jnp.int32), nothing, nothing),
            done=limits < 1,
            tree=empty_tree(rows, length, W) if record else None,
        )

    def result(loop: BeamState) -> tuple[Hypotheses, Tree | None]:
        found = jax.tree.map(by_sentence, loop.finished)
        if groups > 1:
            found = unique(found)
        tree = jax.tree.map(lambda leaf: leaf.reshape(sentences, groups, *leaf.shape[1:]), loop.tree)
        return jax.tree.map(lambda leaf: leaf[:, :nbest], found), tree

    return Search(init, advance, result)


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
        flat = top_k_of_rows(ranked, count)  # [B, 2W]
        chosen.append(flat)
        tokens = flat % vocabulary
        live = (tokens != EOS) & (jnp.cumsum(tokens != EOS, axis=1) <= width // groups)
        used = used.at[jnp.arange(sentences)[:, None], tokens].add(live)
    flat = jnp.stack(chosen, axis=1)  # [B, G, 2W]
    ranks = jnp.take_along_axis(by_group.reshape(sentences, groups, -1), flat, axis=2)
    parents, tokens = flat // vocabulary, (flat % vocabulary).astype(jnp.int32)
    return tuple(x.reshape(sentences * groups, count) for x in (ranks, parents, tokens))  # type: ignore[return-value]


def top_k_of_rows(ranked: Array, count: int) -> Array:
    """The indices in [B, W * V] of the best of [B, W, V]: the best of each row first, then the best of those."""
    sentences, _, vocabulary = ranked.shape
    tokens = top_k(ranked, min(count, vocabulary))  # [B, W, each]
    best = jnp.take_along_axis(ranked, tokens, axis=2).reshape(sentences, -1)
    places = top_k_small(best, count)
    each = tokens.shape[2]
    return places // each * vocabulary + jnp.take_along_axis(tokens.reshape(sentences, -1), places, axis=1)


def forced_attention(step: Step | Beams, state: State, tokens: Array) -> Array | None:
    """The attention weights while the model writes `tokens` [B, L]: [B, L, S]; None if it has no attention."""
    beams = as_beams(step)

    def body(carry, token):
        state, previous = carry
        state, _, attention = beams.step(state, previous[:, None])
        return (state, token), None if attention is None else attention[:, 0]

    start = (beams.tile(state, 1), jnp.full(tokens.shape[:1], SOS, jnp.int32))
    weights = lax.scan(body, start, tokens.T)[1]
    return None if weights is None else weights.swapaxes(0, 1)
