"""Search, tried on the models of tests/tables.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import (
    LENGTH,
    ROWS,
    WORDS,
    A,
    B,
    Models,
    assert_well_formed,
    chain,
    divisors,
    exact_models,
    limits,
    markov,
    natural_models,
    next_log_probs,
    start,
    step,
    written,
)  # fmt: skip

from s2sjax.core import losses, search
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK


@partial(jax.jit, static_argnames=("width", "nbest", "penalty"))
def _beam(models, limit, alpha, **options):
    return search.beam_search(partial(step, models), start(len(limit)), limit, LENGTH, alpha=alpha, **options)


@partial(jax.jit, static_argnames="penalty")
def _greedy(models, limit, alpha, **options):
    return search.greedy(partial(step, models), start(len(limit)), limit, LENGTH, alpha=alpha, **options)


def beam(models: Models, limit, *, width, nbest=None, penalty="none", alpha=0.6, rows=ROWS) -> search.Hypotheses:
    return _filled(_beam, models, limit, rows, alpha, width=width, nbest=nbest or width, penalty=penalty)


def greedy(models: Models, limit, *, penalty="none", alpha=0.6) -> search.Hypotheses:
    return _filled(_greedy, models, limit, ROWS, alpha, penalty=penalty)


def _filled(decode, models: Models, limit, rows: int, *args, **options) -> search.Hypotheses:
    """Empty sentences fill the batch, so that one compiled program serves every test."""
    missing = rows - len(limit)
    models = Models(*(np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)]) for leaf in models))
    found = decode(models, np.pad(limit, (0, missing)), *args, **options)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(limit)], found)


# --------------------------------------------------------------------- two searches in plain Python


def by_specification(log_p, limit: int, width: int, divisor: np.ndarray) -> list[tuple[tuple[int, ...], float, float]]:
    """The module's specification, sentence by sentence, which never stops before `limit`.

    (tokens, score, log-probability) of the hypotheses put aside, best first. `sorted` is stable: continuations
    are listed by beam, then by token, and older hypotheses first, so ties fall as they should.
    """
    live: list = [((), 0.0)]
    aside: list = []
    for t in range(1, limit + 1):
        allowed = (EOS,) if t == limit else (EOS, *WORDS)
        continuations = [((*prefix, token), s + log_p(prefix)[token]) for prefix, s in live for token in allowed]
        possible = [continuation for continuation in continuations if continuation[1] > -np.inf]
        ranked = sorted(possible, key=lambda continuation: -continuation[1])
        aside += [(tokens, s / divisor[t], s) for tokens, s in ranked[:width] if tokens[-1] == EOS]
        aside = sorted(aside, key=lambda hypothesis: -hypothesis[1])[:width]
        live = [(tokens, s) for tokens, s in ranked if tokens[-1] != EOS][:width]
    return aside


def assert_found(found: search.Hypotheses, row: int, expected: list):
    """Row `row` of what a search found is `expected`, and nothing else fills the places behind it."""
    places = found.lengths.shape[1]
    nothing = ((), -np.inf, -np.inf)
    for place, (tokens, score, log_prob) in enumerate(expected + [nothing] * (places - len(expected))):
        assert written(found, row, place) == tokens, (row, place)
        np.testing.assert_allclose(found.scores[row, place], score, rtol=1e-6)
        assert found.log_probs[row, place] == log_prob


# ------------------------------------------------------------------------------------ known by hand


LIMIT = np.array([LENGTH], np.int32)


def best(found: search.Hypotheses) -> list[tuple[list[int], float]]:
    """(tokens, probability) of the hypotheses of the first sentence."""
    return [
        (tokens[:length].tolist(), pytest.approx(np.exp(log_prob)))
        for tokens, length, log_prob in zip(found.tokens[0], found.lengths[0], found.log_probs[0])
    ]


def test_greedy_is_wrong_where_a_beam_of_two_is_right():
    assert best(greedy(chain(), LIMIT)) == [([A, UNK, EOS], 0.30)]
    assert best(beam(chain(), LIMIT, width=2)) == [([B, EOS], 0.36), ([A, UNK, EOS], 0.30)]


def test_a_wider_beam_sees_what_a_narrow_one_dropped():
    """`a <eos>` ranks third when it ends, so a beam of two never puts it aside."""
    assert best(beam(chain(), LIMIT, width=3)) == [([B, EOS], 0.36), ([A, UNK, EOS], 0.30), ([A, EOS], 0.24)]


def test_a_length_penalty_changes_the_winner():
    """mean: ln 0.36 / 2 = -0.51 against ln 0.30 / 3 = -0.40.

    gnmt: the two are even at alpha = ln(ln 0.30 / ln 0.36) / ln(8 / 7) = 1.23.
    """
    winner = lambda **options: beam(chain(), LIMIT, width=2, nbest=1, **options).tokens[0, 0, :2].tolist()
    assert winner(penalty="none") == [B, EOS]
    assert winner(penalty="mean") == [A, UNK]
    assert winner(penalty="gnmt", alpha=1.20) == [B, EOS]
    assert winner(penalty="gnmt", alpha=1.26) == [A, UNK]
    assert winner(penalty="gnmt", alpha=-2.0) == [B, EOS]


@pytest.mark.parametrize("penalty, steps", [("none", 2), ("mean", 3)])
def test_a_search_stops_when_nothing_better_can_come(penalty, steps):
    """Of 6 steps. none: after two, 0.36 is put aside, and 0.30 is the best that lives. mean: `a <unk>` could still

    reach ln 0.30 / 6 = -0.20, over -0.51; it ends at -0.40, and what lives then, `a b a`, reaches ln 0.006 / 6 = -0.85.
    """
    seen = []

    def watched(state, token):
        jax.debug.callback(lambda position: seen.append(position.max()), state.position)
        return step(chain(), state, token)

    decode = lambda limit: search.beam_search(watched, start(1), limit, LENGTH, width=2, penalty=penalty)
    jax.block_until_ready(jax.jit(decode)(LIMIT))
    jax.effects_barrier()
    assert max(seen) + 1 == steps


def test_a_search_waits_for_a_long_road():
    """mean: <eos> at once, ln 0.6 = -0.51, stays ahead of `a <unk> b <eos>` until its end: ln 0.16 / 4 = -0.46."""
    models = markov({SOS: {EOS: 0.6, A: 0.16}, A: {UNK: 1}, UNK: {B: 1}, B: {EOS: 1}})
    assert written(beam(models, LIMIT, width=2, nbest=1, penalty="mean"), 0, 0) == (A, UNK, B, EOS)


def test_a_search_waits_for_a_short_road_where_length_costs():
    """gnmt, alpha -1.5: <eos> at once has ln 0.3 = -1.2; `a <eos>` ln 0.45 x (7/6)^1.5 = -1.0, yet -2 at the limit."""
    models = markov({SOS: {EOS: 0.3, A: 0.45}, A: {EOS: 1}})
    assert written(beam(models, LIMIT, width=2, nbest=1, penalty="gnmt", alpha=-1.5), 0, 0) == (A, EOS)


def test_a_limit_ends_every_hypothesis_at_its_true_probability():
    """With two tokens, `a <unk>` cannot end: what remains is `b <eos>` and `a <eos>`. With one, nothing is possible."""
    two, one = np.array([2], np.int32), np.array([1], np.int32)
    assert best(beam(chain(), two, width=3)) == [([B, EOS], 0.36), ([A, EOS], 0.24), ([], 0)]
    assert best(greedy(chain(), two)) == [([A, EOS], 0.24)]
    assert best(beam(chain(), one, width=3)) == [([], 0)] * 3
    assert best(greedy(chain(), one)) == [([], 0)]


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
def test_length_penalties(alpha):
    lengths = jnp.array([1, 2, 7, 25])
    np.testing.assert_array_equal(search.length_penalty("none", alpha, lengths), [1, 1, 1, 1])
    np.testing.assert_array_equal(search.length_penalty("mean", alpha, lengths), [1, 2, 7, 25])
    by_hand = [1, 2**alpha, 7**alpha, 25**alpha]
    np.testing.assert_allclose(search.length_penalty("power", alpha, lengths), by_hand, rtol=1e-6)
    by_hand = [1, (7 / 6) ** alpha, 2**alpha, 5**alpha]
    np.testing.assert_allclose(search.length_penalty("gnmt", alpha, lengths), by_hand, rtol=1e-6)


# ---------------------------------------------------------------------------- against plain Python

PENALTIES = [
    ("none", 0.0), ("mean", 0.0), ("gnmt", 0.6), ("gnmt", 3.7), ("gnmt", -1.5), ("power", 2.0), ("power", -0.5),
]  # fmt: skip
BEAMS = [(2, 1, *penalty) for penalty in PENALTIES] + [(1, 1, "mean", 0.0), (3, 3, "none", 0.0), (3, 3, "mean", 0.0)]


@pytest.mark.parametrize("width, nbest, penalty, alpha", BEAMS)
def test_a_beam_follows_its_specification(width, nbest, penalty, alpha):
    """Token for token, ties and impossible tokens included.

    The reference goes on to the limit: stopping early, as one that is asked for few can, must not cost a hypothesis.
    """
    models, limit, divisor = exact_models(1), limits(2), divisors(penalty, alpha)
    found = beam(models, limit, width=width, nbest=nbest, penalty=penalty, alpha=alpha)
    assert_well_formed(found, limit)
    for row in range(ROWS):
        expected = by_specification(next_log_probs(models, row), limit[row], width, divisor)
        assert_found(found, row, expected[:nbest])


def test_asking_for_fewer_finds_the_same():
    models, limit = exact_models(5), limits(6)
    three = beam(models, limit, width=3, penalty="mean")
    one = beam(models, limit, width=3, nbest=1, penalty="mean")
    jax.tree.map(lambda fewer, more: np.testing.assert_array_equal(fewer, more[:, :1]), one, three)


# ----------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("make", [exact_models, natural_models])
def test_a_beam_of_one_is_greedy(make):
    models, limit = make(7), limits(8)
    found, narrow = greedy(models, limit), beam(models, limit, width=1)
    assert_well_formed(found, limit)
    np.testing.assert_array_equal(found.tokens, narrow.tokens)
    np.testing.assert_array_equal(found.lengths, narrow.lengths)
    np.testing.assert_allclose(found.scores, narrow.scores, atol=1e-5)
    np.testing.assert_allclose(found.log_probs, narrow.log_probs, atol=1e-5)


def test_a_beam_of_one_with_a_penalty_goes_on_past_a_first_end():
    """Greedy takes <eos>, 0.5 to 0.4; on average per token, a word that surely ends is better than that."""
    models = markov({SOS: {EOS: 0.5, A: 0.4, B: 0.1}, A: {EOS: 1}})
    assert written(greedy(models, LIMIT), 0, 0) == (EOS,)
    assert written(beam(models, LIMIT, width=1, penalty="mean"), 0, 0) == (A, EOS)


@pytest.mark.parametrize("penalty", ["mean", "gnmt"])
def test_greedy_reports_the_score_of_its_penalty(penalty):
    models, limit = natural_models(9), limits(10)
    found, plain = greedy(models, limit, penalty=penalty, alpha=1.5), greedy(models, limit)
    assert_well_formed(found, limit)
    np.testing.assert_array_equal(found.lengths[:, 0] == 0, limit == 0)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.scores, plain.scores / divisors(penalty, 1.5)[found.lengths], rtol=1e-5)


# ------------------------------------------------------------------------------------------- laws


def test_neighbours_do_not_matter():
    """In any order of the batch, and alone, a sentence is given the same hypotheses, bit for bit."""
    models, limit = exact_models(11), limits(12)
    together = beam(models, limit, width=3, penalty="mean")
    order = np.random.default_rng(13).permutation(ROWS)
    shuffled = beam(models[order], limit[order], width=3, penalty="mean")
    jax.tree.map(lambda whole, part: np.testing.assert_array_equal(whole[order], part), together, shuffled)
    for row in (slice(i, i + 1) for i in range(20)):
        alone = beam(models[row], limit[row], width=3, penalty="mean", rows=1)
        jax.tree.map(lambda whole, part, row=row: np.testing.assert_array_equal(whole[row], part), together, alone)


def test_scores_are_those_of_teacher_forcing():
    models, limit = natural_models(14), limits(15)
    found = beam(models, limit, width=3, penalty="mean")

    @jax.jit
    def teacher_forced(models, tokens):
        def one(carry, token):
            state, previous = carry
            state, logits, _ = step(models, state, previous)
            return (state, token), logits

        _, logits = jax.lax.scan(one, (start(ROWS), jnp.full(ROWS, SOS)), tokens.T)
        return losses.log_likelihood(logits.swapaxes(0, 1), tokens, tokens != PAD)

    for place in range(3):
        real = found.lengths[:, place] > 0
        log_p = np.asarray(teacher_forced(models, found.tokens[:, place]))[real]
        np.testing.assert_allclose(found.log_probs[real, place], log_p, atol=1e-5)
        np.testing.assert_allclose(found.scores[real, place], log_p / found.lengths[real, place], atol=1e-5)


@pytest.mark.parametrize("reluctance", [60, 1e4, 1e20])
def test_a_model_that_never_wants_to_end_is_ended_at_the_limit(reluctance):
    models, limit = natural_models(16), limits(17).clip(1)
    models.tables[..., EOS] = -reluctance
    for found in (beam(models, limit, width=2, nbest=1, penalty="mean"), greedy(models, limit)):
        assert_well_formed(found, limit)
        np.testing.assert_array_equal(found.lengths[:, 0], limit)
        assert (found.log_probs[:, 0] <= -0.9 * reluctance).all()


@pytest.mark.parametrize("logit", [-np.inf, np.nan])
def test_a_model_that_cannot_end_has_no_hypothesis(logit):
    """<eos> impossible, or a model that has diverged: no junk, no NaN, no endless loop."""
    models, limit = natural_models(18), limits(19)
    models.tables[..., EOS] = logit
    for found in (beam(models, limit, width=2), greedy(models, limit)):
        assert_well_formed(found, limit)
        assert (found.lengths == 0).all()


def test_float64_models_are_searched_in_float64():
    models, limit = natural_models(20), limits(21)
    with jax.enable_x64(True):
        precise = models._replace(tables=models.tables.astype(np.float64))
        wide, narrow = beam(precise, limit, width=2), greedy(precise, limit)
    for found in (wide, narrow):
        assert_well_formed(found, limit)
        for row in np.flatnonzero(limit)[:50]:
            tokens, log_p = written(found, row, 0), next_log_probs(models, row)
            exact = sum(log_p(tokens[:t])[token] for t, token in enumerate(tokens))
            np.testing.assert_allclose(found.log_probs[row, 0], exact, atol=1e-12)


@pytest.mark.parametrize("first", [SOS, EOS, PAD])
def test_forced_attention_is_what_each_step_returned(first):
    """The history that a step has read: the start token, then the tokens written before it."""
    models = natural_models(22)[:4]
    tokens = np.random.default_rng(23).choice([EOS, *WORDS], (4, LENGTH)).astype(np.int32)
    forced = lambda tokens: search.forced_attention(partial(step, models), start(4), tokens, first)
    attention = jax.jit(forced)(tokens)
    read = np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=first)
    for t in range(LENGTH):
        np.testing.assert_array_equal(attention[:, t], np.where(np.arange(LENGTH) <= t, read, 0))


# ------------------------------------------------------------------------------------- arguments


@pytest.mark.slow
def test_one_limit_for_all_sentences_is_a_limit_of_each():
    models = natural_models(0)
    for decode in (partial(search.beam_search, width=2), search.greedy):
        one, each = (decode(partial(step, models), start(ROWS), limit, LENGTH) for limit in (3, np.full(ROWS, 3)))
        jax.tree.map(np.testing.assert_array_equal, one, each)
    with pytest.raises(ValueError, match="the state has no arrays"):
        search.greedy(partial(step, models), (), 3, LENGTH)


@pytest.mark.parametrize(
    ("limit", "options", "message"),
    [
        (3, {"width": 2, "nbest": 3}, "nbest 3 is not from 1 to width 2"),
        (3, {"width": 2, "nbest": 0}, "nbest 0 is not from 1 to width 2"),
        (3, {"width": 3, "groups": 2}, "groups 2 does not divide width 3"),
        (3, {"width": 0}, "width 0 is below 1"),
        (3, {"width": 2, "penalty": "meen"}, "penalty is 'meen': it must be one of none, mean, power, gnmt"),
        (3, {"width": 2, "stop": "x"}, "stop is 'x': it must be one of bound, heuristic, first, never"),
        (3, {"width": 2, "forced": "x"}, "forced is 'x': it must be one of scored, free"),
        (3, {"width": 2, "coverage": 0.1}, "coverage requires source_mask"),
        (LENGTH + 1, {"width": 2}, f"limit {LENGTH + 1} is above length {LENGTH}"),
        (2.5, {"width": 2}, "limit is of type float32: give whole numbers"),
        (np.full((1, 1), 3), {"width": 2}, r"limit has shape \(1, 1\): give one number, or one per sentence"),
    ],
)
def test_a_beam_that_cannot_be_is_refused_by_name(limit, options, message):
    with pytest.raises(ValueError, match=message):
        search.beam_search(partial(step, chain()), start(1), limit, LENGTH, **options)


def test_a_limit_may_be_an_array_that_a_compiled_function_closes_over():
    limit = jnp.full(1, 3)
    found = jax.jit(lambda state: search.beam_search(partial(step, chain()), state, limit, LENGTH, width=2))(start(1))
    np.testing.assert_array_equal(
        found.tokens, search.beam_search(partial(step, chain()), start(1), 3, LENGTH, width=2).tokens
    )


def test_an_unknown_option_of_beam_search_is_refused_by_name():
    for function in (search.beam_loop, search.beam_search, search.beam_search_with_tree):
        with pytest.raises(TypeError, match="'beam'"):
            function(partial(step, chain()), start(1), 3, LENGTH, width=2, beam=2)
