"""Continuous batching: many sentences in a few slots give the result of one large batch."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import zoo
from tables import LENGTH, Models, limits, natural_models, start, step

from s2sjax.core import search
from s2sjax.core.search import continuous_batching, sampling
from s2sjax.core.special_tokens import EOS, PAD

COUNT = 23


class Sentences(NamedTuple):
    models: Models
    limit: jax.Array
    number: jax.Array


def walked(sentences: Sentences):
    return partial(step, sentences.models), start(len(sentences.limit)), sentences.limit, LENGTH


def drawn(sentences: Sentences) -> search.DecodingLoop:
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(3)))(sentences.number)
    return sampling.sampling_loop(*walked(sentences), keys, count=3, top_p=0.9, start=PAD)


SEARCHES = {
    "greedy": lambda s: search.decode_loop(*walked(s), search.argmax_token),
    "beam": lambda s: search.beam_loop(*walked(s), width=3, nbest=3, penalty="mean"),
    "first": lambda s: search.beam_loop(*walked(s), width=2, stop="first"),
    "heuristic": lambda s: search.beam_loop(
        *walked(s), width=2, stop="heuristic", penalty="power", alpha=2.0, start=EOS, forced="free"
    ),
    "greedy after <eos>": lambda s: search.decode_loop(*walked(s), search.argmax_token, start=EOS),
    "groups": lambda s: search.beam_loop(*walked(s), width=4, nbest=4, groups=2, diversity=0.5),
    "samples": drawn,
}


@zoo.each(SEARCHES, quick=("greedy after <eos>", "beam"), rare=("first", "groups"))
def test_slots_change_nothing(name):
    """23 sentences in 16 slots, where two change at once, and through 3; limits from 0 tokens to 6."""
    models, limit = natural_models(5)[:COUNT], limits(6)[:COUNT]
    sentences = Sentences(models, limit, np.arange(COUNT))
    together = jax.jit(lambda s: search.run_loop(SEARCHES[name](s))[0])(sentences)
    for slots in (16, 3, 40):
        found = jax.jit(lambda s, slots=slots: continuous_batching.decode(SEARCHES[name], s, slots))(sentences)
        np.testing.assert_array_equal(found.tokens, together.tokens)
        np.testing.assert_array_equal(found.lengths, together.lengths)
        np.testing.assert_allclose(found.scores, together.scores, rtol=1e-6)


def test_no_slot_is_empty_while_sentences_wait():
    """One sentence of 6 tokens and five of 1, in 2 slots: the short ones pass by the long one, in 6 steps and not 8."""
    steps = []

    def watched(models, state, token):
        jax.debug.callback(lambda: steps.append(1))
        return step(models, state, token)

    limit = np.array([6, 1, 1, 1, 1, 1], np.int32)
    sentences = Sentences(natural_models(7)[: len(limit)], limit, np.arange(len(limit)))

    def never(s: Sentences) -> search.DecodingLoop:
        walk = partial(watched, s.models), start(len(s.limit)), s.limit, LENGTH
        return search.beam_loop(*walk, width=2, stop="never")

    jax.block_until_ready(jax.jit(lambda s: continuous_batching.decode(never, s, 2))(sentences))
    jax.effects_barrier()
    assert len(steps) == 6
    assert jnp.sum(limit) > 6
