"""The n best outputs are those of transformers' `generate`, under the mapping of docs/search.md, on stored results."""

import fnmatch
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from references import of_generate

from s2sjax.core import search
from s2sjax.core.search import constraints
from s2sjax.core.special_tokens import EOS, PAD

(BY_TOKEN, BY_POSITION), ARGUMENTS, FOUND = of_generate()
SOURCES, POSITIONS = len(BY_TOKEN), len(BY_POSITION)
STOPS = {True: "first", False: "heuristic", "never": "bound"}


def step(state, token):
    """The step of the tables: the state is (number of the source, position)."""
    source, t = state
    return (source, t + 1), jnp.asarray(BY_TOKEN)[source, token] + jnp.asarray(BY_POSITION)[t], None


def mapped(arguments: dict) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `generate` as ours: those that change the program, and those that do not."""
    a = arguments
    limit = a["max_new_tokens"] if "max_new_tokens" in a else a["max_length"] - 1
    first = a.get("forced_bos_token_id")
    static = {
        "width": a["num_beams"],
        "stop": STOPS[a.get("early_stopping", False)],
        "start": a["decoder_start_token_id"],
        "repetition": a.get("repetition_penalty", 1.0),
        "without": tuple(map(tuple, a.get("bad_words_ids", ()))),
    }
    traced = {
        "limit": np.full(SOURCES, limit, np.int32),
        "alpha": np.float32(a.get("length_penalty", 1.0)),
        "prefix": np.full((SOURCES, 1), PAD if first is None else first, np.int32),
        "least": np.full(SOURCES, max(a.get("min_length", 0), a.get("min_new_tokens", -1) + 1), np.int32),
        "bigrams": np.bool_(a.get("no_repeat_ngram_size", 0) == 2),
    }
    return static, traced


@partial(jax.jit, static_argnames=("width", "nbest", "stop", "start", "repetition", "without", "forced"))
def decode(
    limit, alpha, prefix, least, bigrams, *, width, nbest, stop, start, repetition=1.0, without=(), forced="free"
):
    once = constraints.no_repeated(2)
    rules = constraints.compose([
        constraints.repetition(repetition),
        lambda log_probs, prefixes, t: jnp.where(bigrams, once(log_probs, prefixes, t), log_probs),
        constraints.without(without),
        constraints.at_least(least),
        constraints.beginning(prefix, forced),
    ])  # fmt: skip
    options: dict[str, Any] = dict(constraint=rules, penalty="power", alpha=alpha, start=start, forced=forced)
    given = step, (jnp.arange(SOURCES), jnp.zeros(SOURCES, jnp.int32)), limit, POSITIONS
    if width == 1:
        return search.greedy(*given, **options)
    return search.beam_search(*given, width=width, nbest=nbest, stop=stop, **options)


def ours(arguments: dict, nbest: int, **more) -> search.Hypotheses:
    static, traced = mapped(arguments)
    return jax.tree.map(np.asarray, decode(**traced, **static, **more, nbest=nbest))


def assert_equal(found: search.Hypotheses, case: str, sources=slice(None)) -> None:
    """Equal ids, scores within 1e-5; transformers' list may be longer."""
    count = found.tokens.shape[1]
    tokens = FOUND[case]["tokens"][sources, :count]
    expected = np.pad(tokens, ((0, 0), (0, 0), (0, found.tokens.shape[2] - tokens.shape[2])))
    np.testing.assert_array_equal(found.tokens[sources], expected)
    if "scores" in FOUND[case]:
        np.testing.assert_allclose(found.scores[sources], FOUND[case]["scores"][sources, :count], atol=1e-5, rtol=1e-5)


def cases(pattern: str) -> list[str]:
    return fnmatch.filter(ARGUMENTS, pattern)


@pytest.mark.parametrize("early", ["True", "False", "never"])
def test_each_stop_rule_gives_the_lists_of_generate(early):
    """The whole 4-best lists: five length penalties, with and without repeated bigrams and a forced first token."""
    grid = cases(f"grid-{early}-*")
    assert len(grid) == 20
    for case in grid:
        assert_equal(ours(ARGUMENTS[case], 4), case)


@zoo.each(["False", "never"], quick=("never",))
def test_asking_for_the_best_alone_finds_the_best_of_the_list(name):
    """`bound` stops as soon as the best is known, and generate does not: the best is the same."""
    for case in cases(f"grid-{name}-*"):
        assert_equal(ours(ARGUMENTS[case], 1), case)


def test_the_stop_rules_differ():
    """Else a wrong mapping would pass."""
    lists = [FOUND[f"grid-{early}-1.0-0-None"]["tokens"] for early in (True, False, "never")]
    for one, other in ((0, 1), (1, 2)):
        assert (lists[one] != lists[other]).any((1, 2)).sum() >= 5


@pytest.mark.parametrize("start", [0, 1, 2])
def test_whatever_token_starts_the_decoder(start):
    for case in cases(f"start-{start}-*"):
        assert_equal(ours(ARGUMENTS[case], 4), case)
    if start != 1:  # then <sos> is an ordinary token, and some outputs have it
        assert (FOUND[f"start-{start}-None"]["tokens"] == 1).any()


@zoo.each(cases("option-*"), quick=("option-min_length", "option-max_new_tokens", "option-repetition_penalty"))
def test_each_option_does_what_that_of_generate_does(name):
    nbest = ARGUMENTS[name]["num_return_sequences"]
    assert_equal(ours(ARGUMENTS[name], nbest), name)
    plain = FOUND["start-0-None"]["tokens"][:, :nbest]
    other = FOUND[name]["tokens"]
    assert name == "option-num_return_sequences" or other.shape != plain.shape or (other != plain).any()


@pytest.mark.parametrize("forced", ["free", "scored"])
def test_without_a_forced_end_outputs_that_end_before_the_limit_are_equal(forced):
    for case in cases("unforced-*"):
        limit = ARGUMENTS[case]["max_length"] - 1
        ended = ((FOUND[case]["tokens"] != PAD).sum(-1) < limit).all(1)
        assert ended.sum() > 10
        assert_equal(ours(ARGUMENTS[case], 4, forced=forced), case, ended)


@zoo.each(["0", "2"], quick=("2",))
def test_greedy_outputs_are_equal(name):
    assert_equal(ours(ARGUMENTS[f"greedy-{name}"], 1), f"greedy-{name}")


def test_a_forced_token_costs_nothing_or_its_log_probability():
    """The log-probability of an output is the same for both."""
    arguments = ARGUMENTS["grid-False-1.0-0-5"]
    free, scored = (ours(arguments, 4, forced=forced) for forced in ("free", "scored"))
    log_p = np.asarray(jax.nn.log_softmax(BY_TOKEN[:, None] + BY_POSITION[:, None]))  # [source, t, last, next]
    for found, counted in ((free, False), (scored, True)):
        for source in range(SOURCES):
            for tokens, length, score, log_prob in zip(*(leaf[source] for leaf in found)):
                read = enumerate(zip((PAD, *tokens), tokens[:length]))
                each = [log_p[source, t, last, token] for t, (last, token) in read]
                assert log_prob == pytest.approx(sum(each), abs=1e-4)
                ranked = each if counted else each[1 : length if length < 10 else length - 1]
                assert tokens[length - 1] == EOS
                assert score == pytest.approx(sum(ranked) / length, abs=1e-5)
