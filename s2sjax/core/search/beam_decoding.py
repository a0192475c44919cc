"""Searches for the most likely outputs of a model.

Letters: B batch, K beam, G groups of W = K / G, V vocabulary, S source, L maximum output length, <eos> included.

Specification
-------------
- A *hypothesis* is a sequence of tokens that ends with <eos>, at most `limit` tokens long, <eos> included. `limit` may
  differ between sentences. The log-probability of a hypothesis is the sum over its tokens, <eos> included: the same as
  with teacher forcing. The model reads its start token first, usually <sos>, which is not part of a hypothesis. <pad>
  is never written, nor is <sos> where it is the start token, but they keep their probability.
- The *score* is log-probability / penalty(length) + coverage, where the length includes <eos> (Wu et al. 2016):
      none  1        mean  length        power  length^alpha        gnmt  ((5 + length) / 6)^alpha
      coverage       beta * sum over source positions of ln(min(1, total attention received)), 0 if beta is 0
- *Constraints* (constraints.py) forbid continuations, without changing the log-probability or the score of
  the others. There are two exceptions, which change ranks and scores, but not the reported log-probability: the
  repetition penalty multiplies the log-probability of a token that was written before, and *forced* tokens can be
  free. They are those of a forced prefix, and <eos> at the last position:
      scored  a forced token counts its true log-probability        free  it counts 0
- The beam holds K live prefixes. Each step ranks all K * V continuations by log-probability. Those among the best K
  that end with <eos> are finished, and kept if they are among the K best finished ones by score; the best K of the
  others stay live. At the last position <eos> is the only continuation, so every hypothesis ends.
- A sentence is *done* when its `limit` is reached, or earlier by its stop rule:
      bound      no live prefix can still enter the n best. The score of a prefix of log-probability s is at most the
                 larger of s / penalty(next length) and s / penalty(limit), as s never rises and coverage is at most 0
      heuristic  K hypotheses are finished, and no live prefix of present length t has s / penalty(t) above the worst
                 of them. A longer output could have, if the penalty favours long ones
      first      K hypotheses are finished
      never      only at the limit
  A sentence that is done does not change, so its neighbours in the batch do not affect it.
- *Groups* (diverse beam search, Vijayakumar et al. 2018) are G beams of W, advanced one after the other. A group ranks
  a continuation `diversity` lower for each prefix of earlier groups that stays live with that token at that step;
  scores are unchanged. The n best of all groups are returned, without duplicates.
- Ties go to the older hypothesis, then to the lower beam, then to the smaller token.
- K = 1 is greedy search if the penalty is `none`; with another penalty, it continues past the first <eos> while a
  longer hypothesis could win.

A model is a function `step(state, token [B]) -> state, logits [B, V], attention`, or `Beams`: see beam_interface.py. A
search consists of three functions, so that it can run to its end (`run_loop`) or in the slots of
continuous_batching.py.
"""

from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from s2sjax.core.search.beam_interface import Beams, State, Step, as_beams
from s2sjax.core.search.constraints import DEAD, Constraint, Forced, permitted
from s2sjax.core.search.decoding_loop import (
    UNCONSTRAINED,
    UNSEEN,
    DecodingLoop,
    Limit,
    Penalty,
    Stop,
    length_penalty,
    limit_of_each,
    run_loop,
    written_at,
)
from s2sjax.core.search.hypotheses import (
    Hypotheses,
    Tree,
    add_finished,
    empty_tree,
    gather,
    gather_entries,
    record_step,
    unique,
)
from s2sjax.core.search.top_k import top_k, top_k_small
from s2sjax.core.special_tokens import EOS, PAD, SOS


class BeamOptions(NamedTuple):
    """Options of a beam search: see the specification above."""

    width: int  # number K of prefixes in the beam, at least nbest
    nbest: int = 1  # number n of hypotheses to return per sentence
    penalty: Penalty = "none"  # length penalty of the score
    alpha: Float[ArrayLike, ""] = 0.6  # exponent of the length penalties power and gnmt
    stop: Stop = "bound"  # rule by which a sentence is done before its limit
    coverage: float = 0.0  # weight beta of the coverage; requires source_mask, and a model with attention
    source_mask: Bool[Array, "B S"] | None = None  # True for real source positions
    constraint: Constraint = UNCONSTRAINED  # constraint on the tokens
    forced: Forced = "scored"  # what <eos> counts at the last position
    start: int = SOS  # token that the model reads first
    groups: int = 1  # number G of groups of diverse beam search, which divides the width
    diversity: float = 0.0  # penalty for a token that earlier groups have chosen
    record: bool = False  # whether to return the tree of all ranked continuations

    def check(self) -> None:
        """Raises ValueError for options that are out of range."""
        for name, kind in (("penalty", Penalty), ("stop", Stop), ("forced", Forced)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(get_args(kind))}")
        if self.width < 1:
            raise ValueError(f"width {self.width} is below 1: give the number of prefixes in the beam")
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest {self.nbest} is not from 1 to width {self.width}: raise the width or lower nbest")
        if self.groups < 1 or self.width % self.groups:
            raise ValueError(f"groups {self.groups} does not divide width {self.width}: change one of them")
        if self.coverage and self.source_mask is None:
            raise ValueError("coverage requires source_mask, [B, S]: give it, or leave coverage out")


class BeamState(NamedTuple):
    """The state of a beam search: live prefixes and finished hypotheses, both sorted, best first.

    R = B * G rows: each group of a sentence is a separate beam.
    """

    t: Int[Array, " R"]  # tokens written so far
    state: State  # of the model, for K prefixes per sentence
    coverage: Any  # [B, K, S] the attention received so far, or None
    token: Int[Array, "R W"]  # the last token
    prefixes: Int[Array, "R W L"]
    ranks: Float[Array, "R W"]  # what prefixes are ranked by: the log-probability, unless a constraint changes it
    log_probs: Float[Array, "R W"]
    finished: Hypotheses  # [R, W, ...]
    done: Bool[Array, " R"]
    tree: Tree | None


def beam_search(step: Step | Beams, state: State, limit: Limit, length: int, **options) -> Hypotheses:
    """The `nbest` best hypotheses of each sentence, best first. Arguments are those of `beam_loop`.

    >>> table = jnp.log(jnp.array([[0, 0, 0.4, 0, 0.6], [0, 0, 0.5, 0, 0.5]]))  # p(next): of <eos> (2), of a word (4)
    >>> step = lambda state, token: (state, table[(token == 4).astype(int)], None)
    >>> beam_search(step, jnp.zeros(1), limit=3, length=3, width=2, nbest=2).tokens  # p is 0.4, and 0.6 * 0.5
    Array([[[2, 0, 0],
            [4, 2, 0]]], dtype=int32)
    """
    return beam_search_with_tree(step, state, limit, length, **options)[0]


def beam_search_with_tree(
    step: Step | Beams, state: State, limit: Limit, length: int, **options
) -> tuple[Hypotheses, Tree | None]:
    """The result of `beam_search` and, with record=True, the tree of all ranked continuations."""
    return run_loop(beam_loop(step, state, limit, length, **options))


def beam_loop(step: Step | Beams, state: State, limit: Limit, length: int, **options) -> DecodingLoop:
    """The loop of a beam search; `options` are the fields of `BeamOptions`.

    state: every leaf [B, ...]
    length: L, the highest limit
    """
    chosen = BeamOptions(**options)
    chosen.check()
    limit = limit_of_each(limit, state, length)
    beam = _Beam(as_beams(step), chosen, length, limit, jnp.repeat(limit, chosen.groups))
    return DecodingLoop(partial(_init, beam, state), partial(_advance, beam), partial(_result, beam))


class _Beam(NamedTuple):
    """The constants of a beam search."""

    model: Beams
    options: BeamOptions
    length: int  # L
    limit: Int[Array, " B"]
    limits: Int[Array, " R"]  # the limit of each row

    @property
    def group_width(self) -> int:
        """W, the number of prefixes in a group."""
        return self.options.width // self.options.groups

    def by_row(self, x: Array) -> Array:
        """[B, K, ...] -> [R, W, ...]."""
        return x.reshape(len(self.limits), self.group_width, *x.shape[2:])

    def by_sentence(self, x: Array) -> Array:
        """[R, W, ...] -> [B, K, ...]."""
        return x.reshape(len(self.limit), self.options.width, *x.shape[2:])

    def penalised(self, log_probs: Array, length: Array) -> Array:
        """The score without coverage."""
        return log_probs / length_penalty(self.options.penalty, self.options.alpha, length)


class _Continuations(NamedTuple):
    """Continuations of the live prefixes, J per row."""

    ranks: Float[Array, "R J"]
    parents: Int[Array, "R J"]  # the prefix that is continued
    tokens: Int[Array, "R J"]
    log_probs: Float[Array, "R J"]
    prefixes: Int[Array, "R J L"]  # the new token included


def _init(beam: _Beam, state: State) -> BeamState:
    o, shape = beam.options, (len(beam.limits), beam.group_width)
    nothing = jnp.full(shape, -jnp.inf)
    empty = jnp.full((*shape, beam.length), PAD, jnp.int32)
    # There is one prefix, the empty one; all other entries are dead.
    ranks = jnp.full(shape, DEAD).at[:, 0].set(0)
    seen = None
    if o.coverage and o.source_mask is not None:
        seen = jnp.zeros((len(beam.limit), o.width, o.source_mask.shape[1]))
    return BeamState(
        t=jnp.zeros(shape[0], jnp.int32),
        state=beam.model.tile(state, o.width),
        coverage=seen,
        token=jnp.full(shape, o.start, jnp.int32),
        prefixes=empty,
        ranks=ranks,
        log_probs=ranks,
        finished=Hypotheses(empty, jnp.zeros(shape, jnp.int32), nothing, nothing),
        done=beam.limits < 1,
        tree=empty_tree(shape[0], beam.length, shape[1]) if o.record else None,
    )


def _advance(beam: _Beam, loop: BeamState) -> BeamState:
    """Writes one token: ranks continuations, adds those that end to the finished ones, and keeps the best W others."""
    W, t = beam.group_width, loop.t + 1
    state, logits, attention = beam.model.step(loop.state, beam.by_sentence(loop.token))
    ranked = _rank(beam, loop, logits)
    ends = ranked.tokens == EOS  # [R, 2W]
    finishing = ends & (jnp.arange(2 * W) < W)[None] & (ranked.ranks > DEAD / 2)
    scores = beam.penalised(ranked.ranks, t[:, None])
    seen = None
    if beam.options.coverage:
        seen, covered = _cover(beam.options, loop.coverage, attention)
        scores += gather(beam.by_row(covered), ranked.parents)
    new = Hypotheses(ranked.prefixes, jnp.broadcast_to(t[:, None], ends.shape), scores, ranked.log_probs)
    finished = add_finished(loop.finished, new, finishing & ~loop.done[:, None])

    order = top_k_small(~ends, W)  # the best W that do not end
    record = Tree(ranked.parents, ranked.tokens, ranked.ranks, finishing, order)
    tree = record_step(loop.tree, loop.t, record, loop.done) if loop.tree else None
    ranked = ranked._replace(ranks=jnp.where(ends, DEAD, ranked.ranks))
    live = _Continuations(*(gather(x, order) for x in ranked))
    first_of_group = jnp.arange(len(live.parents))[:, None] % beam.options.groups * W
    origin = beam.by_sentence(live.parents + first_of_group)
    state = beam.model.reorder(state, origin)
    seen = None if seen is None else gather(seen, origin)
    done = loop.done | (t >= beam.limits) | _stops(beam, t, live.ranks, finished)
    return BeamState(t, state, seen, live.tokens, live.prefixes, live.ranks, live.log_probs, finished, done, tree)


def _rank(beam: _Beam, loop: BeamState, logits: Array) -> _Continuations:
    """The best 2W continuations of each row, best first: at most W of them end, which leaves W live ones."""
    o = beam.options
    own = jax.nn.log_softmax(logits)  # [B, K, V]
    prefixes, t = beam.by_sentence(loop.prefixes), loop.t[:: o.groups]
    allowed = permitted(o.constraint, own, prefixes, t, beam.limit, o.start, o.forced)
    candidates = beam.by_sentence(loop.ranks)[..., None] + allowed
    ranks, parents, tokens = best_continuations(candidates, 2 * beam.group_width, o.groups, o.diversity)
    log_probs = gather(loop.log_probs, parents) + gather_entries(beam.by_row(own), parents, tokens)
    prefixes = written_at(loop.t, gather(loop.prefixes, parents), tokens)
    return _Continuations(ranks, parents, tokens, log_probs, prefixes)


def _cover(
    options: BeamOptions, seen: Float[Array, "B K S"], attention: Float[Array, "B K S"] | None
) -> tuple[Float[Array, "B K S"], Float[Array, "B K"]]:
    """Adds attention to that received so far -> the sum, coverage of the prefixes."""
    if attention is None or options.source_mask is None:
        raise ValueError("coverage requires source_mask and a model with attention: leave coverage out")
    seen = seen + attention
    received = jnp.log(jnp.clip(seen, UNSEEN, 1))
    return seen, options.coverage * jnp.sum(received, axis=-1, where=options.source_mask[:, None])


def _stops(beam: _Beam, t: Int[Array, " R"], ranks: Float[Array, "R W"], finished: Hypotheses) -> Bool[Array, " R"]:
    """Whether the stop rule ends each row, after t tokens, with live prefixes of these ranks."""
    match beam.options.stop:
        case "bound":
            best = ranks.max(1)
            reach = jnp.maximum(beam.penalised(best, t + 1), beam.penalised(best, beam.limits))
            return reach <= finished.scores[:, min(beam.options.nbest, beam.group_width) - 1]
        case "heuristic":  # the score of an empty entry is -inf
            return beam.penalised(ranks.max(1), t) <= finished.scores[:, -1]
        case "first":
            return finished.lengths[:, -1] > 0
        case "never":
            return jnp.zeros(t.shape, bool)


def _result(beam: _Beam, loop: BeamState) -> tuple[Hypotheses, Tree | None]:
    o, sentences = beam.options, len(beam.limit)
    found = jax.tree.map(beam.by_sentence, loop.finished)
    if o.groups > 1:
        found = unique(found)
    tree = jax.tree.map(lambda leaf: leaf.reshape(sentences, o.groups, *leaf.shape[1:]), loop.tree)
    return jax.tree.map(lambda leaf: leaf[:, : o.nbest], found), tree


def best_continuations(
    candidates: Float[Array, "B K V"], count: int, groups: int, diversity: float
) -> tuple[Float[Array, "R {count}"], Int[Array, "R {count}"], Int[Array, "R {count}"]]:
    """The best of each group's W * V continuations -> ranks, parents, tokens."""
    sentences, width, vocabulary = candidates.shape
    by_group = candidates.reshape(sentences, groups, width // groups, vocabulary)
    chosen: list[Array] = []
    used = jnp.zeros((sentences, vocabulary))  # number of earlier groups' prefixes that continue with each token
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


def top_k_of_rows(ranked: Float[Array, "B W V"], count: int) -> Int[Array, "B {count}"]:
    """The indices in [B, W * V] of the best: the best of each row, then the best of those."""
    sentences, _, vocabulary = ranked.shape
    tokens = top_k(ranked, min(count, vocabulary))  # [B, W, each]
    best = jnp.take_along_axis(ranked, tokens, axis=2).reshape(sentences, -1)
    places = top_k_small(best, count)
    each = tokens.shape[2]
    return places // each * vocabulary + jnp.take_along_axis(tokens.reshape(sentences, -1), places, axis=1)
