"""Every option of the search against plain Python, on the models of tests/tables.py."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import (
    CONTEXTS,
    LENGTH,
    POWERS,
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
    natural_models,
    next_log_probs,
    start,
    step,
    written,
)  # fmt: skip

from s2sjax.core import search
from s2sjax.core.search import constraints
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK

PENALTIES = ["none", "mean", "power", "gnmt"]
STOPS = ["bound", "heuristic", "first", "never"]
NEVER = -1e30


def run(models: Models, limit, constraint=lambda limit: (), **options):
    """(hypotheses, tree), compiled; `constraint` makes the constraints from the limits."""

    @jax.jit
    def compiled(models, limit):
        rules = constraints.compose(constraint(limit))
        walked = partial(step, models), start(len(limit)), limit, LENGTH
        if "width" not in options:
            return search.greedy(*walked, constraint=rules, **options), None
        return search.beam_search_with_tree(*walked, constraint=rules, **options)

    return jax.tree.map(np.asarray, compiled(models, limit))


# ------------------------------------------------------------------------------ exhaustive search

MOST = 4
SENTENCES = [(*words, EOS) for count in range(MOST) for words in itertools.product(WORDS, repeat=count)]
PADDED = np.array([sentence + (PAD,) * (MOST - len(sentence)) for sentence in SENTENCES])
LENGTHS = (PADDED != PAD).sum(1)
MODELS = 1024


def many_models(seed: int) -> Models:
    parts = [natural_models(seed + part) for part in range(-(-MODELS // ROWS))]
    return Models(*(np.concatenate(leaves)[:MODELS] for leaves in zip(*parts)))


def enumerated(models: Models) -> tuple[np.ndarray, np.ndarray]:
    """Every sentence at once: log-probabilities [models, sentences], and of every token [models, sentences, t, V]."""
    tables = models.tables.astype(np.float64)
    log_p = tables - np.log(np.exp(tables).sum(-1, keepdims=True))
    history = np.pad(PADDED[:, :-1], ((0, 0), (1, 0)), constant_values=SOS)
    hashed = np.cumsum(history * POWERS[:MOST], axis=1) % CONTEXTS
    contexts = np.where(models.markov[:, None, None], history, hashed)  # [models, sentences, t]
    each = log_p[np.arange(len(tables))[:, None, None], contexts]
    chosen = np.take_along_axis(each, np.broadcast_to(PADDED, contexts.shape)[..., None], axis=-1)[..., 0]
    return np.where(PADDED != PAD, chosen, 0).sum(-1), each


@partial(jax.jit, static_argnames=("penalty", "stop"))
def wide_beam(models, limit, alpha, penalty, stop):
    # 40 sentences exist, and 41 places: the rules that wait for K hypotheses never have enough.
    options = dict(width=41, nbest=41, penalty=penalty, alpha=alpha, stop=stop)
    return search.beam_search(partial(step, models), start(len(limit)), limit, MOST, **options)


def mismatches(found: search.Hypotheses, limit: np.ndarray, scores: np.ndarray) -> int:
    """Places that hold another sentence than enumeration puts there, unless float32 cannot tell the two apart."""
    scores = np.where(limit[:, None] >= LENGTHS, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    expected = np.where(np.take_along_axis(scores, order, 1)[..., None] > -np.inf, PADDED[order], PAD)
    other = (found.tokens[:, :40] != expected).any(-1)
    codes = {sentence: number for number, sentence in enumerate(map(tuple, PADDED.tolist()))}
    wrong = 0
    for row, place in np.argwhere(other):
        number = codes.get(tuple(found.tokens[row, place].tolist()))
        right = scores[row, order[row, place]]
        wrong += number is None or not abs(scores[row, number] - right) < 1e-5 * max(1, abs(right))
    np.testing.assert_allclose(found.scores[:, :40], np.take_along_axis(scores, order, 1), rtol=1e-5, atol=1e-5)
    assert (found.lengths[:, 40] == 0).all()
    return wrong


@zoo.each(STOPS, quick=("bound",))
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_wide_beam_equals_exhaustive_search_on_a_thousand_models(penalty, name):
    """n-best order included: 1,024 models, all sentences of up to three words, limits of 0 to 4 tokens."""
    models, limit = many_models(100), np.random.default_rng(101).integers(0, MOST + 1, MODELS).astype(np.int32)
    log_probs, _ = enumerated(models)
    for alpha in (0.6, 3.7, -1.5) if penalty in ("power", "gnmt") else (0.0,):
        found = jax.tree.map(np.asarray, wide_beam(models, limit, alpha, penalty, stop=name))
        assert_well_formed(found, limit)
        assert mismatches(found, limit, log_probs / divisors(penalty, alpha)[LENGTHS]) == 0
        real = found.lengths > 0
        sums = (found.scores * divisors(penalty, alpha)[found.lengths])[real]
        np.testing.assert_allclose(found.log_probs[real], sums, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, database=None)
@given(st.integers(1000, 2**31), st.sampled_from(PENALTIES), st.sampled_from(STOPS), st.floats(-2, 4))
def test_whatever_the_models_and_the_penalty(seed, penalty, stop, alpha):
    models, limit = many_models(seed), np.random.default_rng(seed).integers(0, MOST + 1, MODELS).astype(np.int32)
    found = jax.tree.map(np.asarray, wide_beam(models, limit, alpha, penalty, stop))
    log_probs, _ = enumerated(models)
    assert mismatches(found, limit, log_probs / divisors(penalty, alpha)[LENGTHS]) == 0


@pytest.mark.parametrize("beta", zoo.first(1, [0.2, 1.5]))
def test_coverage_rewards_hypotheses_that_looked_at_all_of_the_source(beta):
    """The models look at three source positions, as the softmax of their first three logits; some have only two."""
    models, limit = many_models(200), np.full(MODELS, MOST, np.int32)
    mask = np.arange(3) < np.random.default_rng(201).integers(2, 4, (MODELS, 1))

    def looking(models, state, token):
        state, logits, _ = step(models, state, token)
        return state, logits, jax.nn.softmax(logits[:, :3])

    @jax.jit
    def decode(models):
        options = dict(width=41, nbest=41, penalty="mean", coverage=beta, source_mask=mask)
        return search.beam_search(partial(looking, models), start(MODELS), limit, MOST, **options)

    found = jax.tree.map(np.asarray, decode(models))
    log_probs, each = enumerated(models)
    looked = np.exp(each[..., :3]) / np.exp(each[..., :3]).sum(-1, keepdims=True)
    received = np.where((PADDED != PAD)[..., None], looked, 0).sum(2)  # [models, sentences, S]
    covered = np.where(mask[:, None], np.log(received.clip(1e-10, 1)), 0).sum(-1)
    assert mismatches(found, limit, log_probs / LENGTHS + beta * covered) == 0
    plain = jax.tree.map(np.asarray, wide_beam(models, limit, 0.6, "mean", "bound"))
    assert (found.tokens[:, 0] != plain.tokens[:, 0]).any(-1).mean() > 0.05  # and it makes a difference


# ------------------------------------------------------------------------- the narrow beam, by hand


def in_python(
    log_p, limit, width, *, penalty="none", alpha=0.0, stop="never", nbest=1, groups=1, diversity=0.0, weigh=None,
    words=WORDS, forced="scored",
):  # fmt: skip
    """The specification with all its options: (tokens, score, log-probability), best first.

    `weigh(prefix, log-probabilities)` is the constraint. A hypothesis is (tokens, rank, log-probability).
    """
    W, divisor = width // groups, divisors(penalty, alpha)
    live: list = [[((), 0.0, 0.0)] for _ in range(groups)]
    aside: list = [[] for _ in range(groups)]
    done = [False] * groups
    for t in range(1, limit + 1):
        if all(done):
            break
        used: list[int] = []
        for g in range(groups):
            continuations = []
            for prefix, rank, total in live[g]:
                own = log_p(prefix)
                ranks = weigh(prefix, own) if weigh and t < limit else own
                if t == limit and forced == "free":
                    ranks = np.where(own > -np.inf, 0, own)
                allowed = (EOS,) if t == limit else sorted((EOS, *words))
                continuations += [((*prefix, v), rank + ranks[v], total + own[v]) for v in allowed]
            continuations = [continuation for continuation in continuations if continuation[1] > NEVER / 2]
            ranked = sorted(continuations, key=lambda c: -(c[1] - diversity * used.count(c[0][-1])))
            if not done[g]:
                aside[g] += [(c[0], c[1] / divisor[t], c[2]) for c in ranked[:W] if c[0][-1] == EOS]
                aside[g] = sorted(aside[g], key=lambda h: -h[1])[:W]
            live[g] = [c for c in ranked if c[0][-1] != EOS][:W]
            used += [c[0][-1] for c in live[g]]
            if len(aside[g]) == W:
                best = max((rank for _, rank, _ in live[g]), default=-np.inf)
                done[g] |= stop == "first" or (stop == "heuristic" and best / divisor[t] <= aside[g][-1][1])
    found = []
    for hypothesis in sorted(itertools.chain(*aside), key=lambda h: -h[1]):
        if hypothesis[0] not in [each[0] for each in found]:
            found.append(hypothesis)
    return found[:nbest]


def assert_as_in_python(models, limit, found, rows=ROWS, start=SOS, **options):
    for row in range(rows):
        expected = in_python(next_log_probs(models, row, start), limit[row], **options)
        assert [written(found, row, place) for place in range(len(expected))] == [e[0] for e in expected], row
        assert (found.lengths[row, len(expected) :] == 0).all()
        np.testing.assert_allclose(found.scores[row, : len(expected)], [e[1] for e in expected], rtol=1e-6)
        assert found.log_probs[row, : len(expected)].tolist() == [e[2] for e in expected]


@pytest.mark.parametrize("penalty", zoo.first(1, ["none", "mean"]))
def test_the_first_of_the_stop_rules_takes_the_first_k(penalty):
    """It can lose a better hypothesis, which is why it is not the default."""
    models, limit = exact_models(30), limits(31)
    options = dict(width=2, nbest=2, penalty=penalty, stop="first")
    found, _ = run(models, limit, **options)
    assert_as_in_python(models, limit, found, **options)
    patient, _ = run(models, limit, **options | {"stop": "never"})
    assert (patient.scores[:, 0] >= found.scores[:, 0]).all()
    if penalty == "mean":
        assert (patient.scores[:, 0] > found.scores[:, 0]).any()


@pytest.mark.parametrize("penalty, alpha", zoo.first(1, [("power", 2.0), ("none", 0.0), ("power", -0.5)]))
def test_the_heuristic_compares_prefixes_at_their_present_length(penalty, alpha):
    """A penalty that favours long outputs can lose a better hypothesis; one that does not, cannot."""
    models, limit = exact_models(45), limits(46)
    options = dict(width=2, nbest=2, penalty=penalty, alpha=alpha, stop="heuristic")
    found, _ = run(models, limit, **options)
    assert_as_in_python(models, limit, found, **options)
    patient, _ = run(models, limit, **options | {"stop": "never"})
    lost = (patient.scores > found.scores).any(1)
    assert lost.any() == (alpha > 0)


def test_the_heuristic_stops_early():
    """Of 6 steps: b <eos> ends in the second and a <unk> <eos> in the third, and a b a is far below both."""
    steps = []

    def watched(state, token):
        jax.debug.callback(lambda position: steps.append(position.max()), state.position)
        return step(chain(), state, token)

    decode = lambda limit: search.beam_search(
        watched, start(1), limit, LENGTH, width=2, penalty="power", alpha=0.5, stop="heuristic"
    )
    jax.block_until_ready(jax.jit(decode)(np.array([LENGTH], np.int32)))
    jax.effects_barrier()
    assert max(steps) + 1 == 3


@pytest.mark.parametrize("groups, diversity", zoo.first(1, [(2, 40.0), (2, 0.0), (3, 20.0)]))
def test_groups(groups, diversity):
    """log-probabilities are multiples of 20, so these diversities turn ranks around, with ties."""
    models, limit = exact_models(32), limits(33)
    options = dict(width=6, nbest=4, penalty="mean", groups=groups, diversity=diversity, stop="never")
    found, _ = run(models, limit, **options)
    assert_well_formed(found, limit)
    assert_as_in_python(models, limit, found, **options)
    bounded, _ = run(models, limit, **options | {"stop": "bound"})
    jax.tree.map(np.testing.assert_array_equal, found, bounded)


def test_diversity_makes_first_words_differ():
    models, limit = natural_models(34), np.full(ROWS, LENGTH, np.int32)
    kinds = []
    for diversity in (0.0, 50.0):
        found, _ = run(models, limit, width=3, nbest=3, groups=3, diversity=diversity)
        real = np.where(found.lengths > 1, found.tokens[..., 0], -1)
        kinds.append(np.mean([len(set(row) - {-1}) for row in real]))
    assert kinds[1] > kinds[0]


# ------------------------------------------------------------------------------------ constraints


def min_length(prefix, log_p):
    return np.where((np.arange(6) == EOS) & (len(prefix) + 1 < 4), NEVER, log_p)


def begins_with_b_a(prefix, log_p):
    forced = (B, A)[len(prefix)] if len(prefix) < 2 else None
    return log_p if forced is None else np.where(np.arange(6) == forced, log_p, NEVER)


def without_unk_and_a_b(prefix, log_p):
    barred = {UNK} | ({B} if prefix[-1:] == (A,) else set())
    return np.where(np.isin(np.arange(6), list(barred)), NEVER, log_p)


def no_bigram_twice(prefix, log_p):
    pairs = set(itertools.pairwise(prefix))
    return np.array([NEVER if prefix and (prefix[-1], v) in pairs else log_p[v] for v in range(6)])


def no_word_twice(prefix, log_p):
    return np.array([NEVER if v in prefix else log_p[v] for v in range(6)])


def thrice_as_bad_again(prefix, log_p):
    return np.array([3 * log_p[v] if v in prefix else log_p[v] for v in range(6)])


CONSTRAINTS = {
    "min length": (min_length, lambda limit: [constraints.at_least(jnp.full(ROWS, 4))]),
    "prefix": (begins_with_b_a, lambda limit: [constraints.beginning(jnp.tile(jnp.array([B, A]), (ROWS, 1)))]),
    "without": (without_unk_and_a_b, lambda limit: [constraints.without([(UNK,), (A, B)])]),
    "bigrams": (no_bigram_twice, lambda limit: [constraints.no_repeated(2)]),
    "unigrams": (no_word_twice, lambda limit: [constraints.no_repeated(1)]),
    "repetition": (thrice_as_bad_again, lambda limit: [constraints.repetition(3.0)]),
}


@pytest.mark.parametrize("width", zoo.first(1, [3, 1]))
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_does_what_its_few_lines_of_python_do(name, width):
    weigh, constraint = CONSTRAINTS[name]
    models, limit = exact_models(35), limits(36)
    options = dict(width=width, nbest=width, penalty="mean" if width > 1 else "none")
    found, _ = run(models, limit, constraint, **options, stop="bound")
    assert_well_formed(found, limit)
    assert_as_in_python(models, limit, found, **options, weigh=weigh)


def test_two_constraints_at_once_and_greedy():
    both = lambda prefix, log_p: no_bigram_twice(prefix, min_length(prefix, log_p))
    rules = lambda limit: [constraints.no_repeated(2), constraints.at_least(jnp.full(ROWS, 4))]
    models, limit = exact_models(37), limits(38)
    found, _ = run(models, limit, rules, width=1)
    assert_as_in_python(models, limit, found, width=1, weigh=both)
    greedy, _ = run(models, limit, rules)
    jax.tree.map(np.testing.assert_array_equal, greedy, found)


@pytest.mark.parametrize("words", zoo.first(1, [[(A, A, B), (UNK,)], [(A,)], [(A, B)], [(B, UNK), (A,)]]))
def test_required_words_are_written_by_every_hypothesis(words):
    """However unlikely they are."""
    models, limit = natural_models(39), np.random.default_rng(40).integers(5, LENGTH + 1, ROWS).astype(np.int32)
    found, _ = run(models, limit, lambda limit: [constraints.with_all(words, limit)], width=3, nbest=3, penalty="mean")
    assert_well_formed(found, limit)
    assert (found.lengths[:, 0] > 0).all()
    holds = lambda tokens, word: any(tokens[i : i + len(word)] == word for i in range(len(tokens)))
    for row, place in np.argwhere(found.lengths > 0):
        assert all(holds(written(found, row, place), word) for word in words)


@pytest.mark.parametrize("words", zoo.first(1, [[(B, UNK), (A,)], [(A, B)]]))
def test_a_wide_beam_with_required_words_finds_the_best_that_has_them(words):
    models, limit = many_models(41), np.full(MODELS, MOST, np.int32)

    @jax.jit
    def decode(models):
        rule = constraints.with_all(words, jnp.asarray(limit))
        return search.beam_search(
            partial(step, models), start(MODELS), limit, MOST, width=41, nbest=41, constraint=rule
        )

    found = jax.tree.map(np.asarray, decode(models))
    holds = lambda tokens: all(any(tokens[i : i + len(w)] == w for i in range(len(tokens))) for w in words)
    having = np.array([holds(sentence) for sentence in SENTENCES])
    scores = np.where(having, enumerated(models)[0], -np.inf)
    assert mismatches(found, limit, scores) == 0


def test_a_limit_too_short_for_the_constraints_wins():
    models, limit = natural_models(42), np.full(ROWS, 2, np.int32)
    rules = lambda limit: [constraints.with_all([(A, B)], limit), constraints.at_least(jnp.full(ROWS, 5))]
    found, _ = run(models, limit, rules, width=2, nbest=1)
    assert_well_formed(found, limit)
    assert (found.lengths == 2).all()


# ------------------------------------------------------------------------------------ forced tokens


def free_b_a(prefix, log_p):
    """The forced prefix b a, whose tokens count 0 where they are possible."""
    ranks = begins_with_b_a(prefix, log_p)
    return np.where(ranks > NEVER / 2, 0, ranks) if len(prefix) < 2 else ranks


@pytest.mark.parametrize("width", zoo.first(1, [3, 1]))
def test_free_tokens_change_ranks_and_scores_and_not_log_probabilities(width):
    """<eos> at the limit, alone and with a forced prefix."""
    models, limit = exact_models(47), limits(48)
    options = dict(width=width, nbest=width, penalty="mean" if width > 1 else "none", stop="bound")
    prefix = jnp.tile(jnp.array([B, A]), (ROWS, 1))
    found, _ = run(models, limit, forced="free", **options)
    assert_as_in_python(models, limit, found, **options, forced="free")
    scored, _ = run(models, limit, **options)
    assert (found.scores != scored.scores).any()
    prefixed, _ = run(models, limit, lambda limit: [constraints.beginning(prefix, "free")], forced="free", **options)
    assert_as_in_python(models, limit, prefixed, **options, forced="free", weigh=free_b_a)


def test_greedy_scores_free_tokens_and_repetitions_as_a_beam_of_one():
    rules = lambda limit: [
        constraints.repetition(3.0), constraints.beginning(jnp.tile(jnp.array([B, A]), (ROWS, 1)), "free"),
    ]  # fmt: skip
    models, limit = exact_models(49), limits(50)
    narrow, _ = run(models, limit, rules, width=1, forced="free")
    greedy, _ = run(models, limit, rules, forced="free")
    jax.tree.map(np.testing.assert_array_equal, greedy, narrow)
    assert (greedy.scores > greedy.log_probs).any()


@pytest.mark.parametrize("logit", [-np.inf, np.nan])
def test_a_free_token_that_is_impossible_stays_impossible(logit):
    models, limit = natural_models(51), limits(52)
    models.tables[..., EOS] = logit
    for options in ({"width": 2}, {}):
        found, _ = run(models, limit, forced="free", **options)
        assert_well_formed(found, limit)
        assert (found.lengths == 0).all()


# ------------------------------------------------------------------------------------ start tokens


@pytest.mark.parametrize("first", [EOS, PAD])
def test_another_start_token_makes_sos_an_ordinary_word(first):
    """Beam and greedy search, with a constraint that reads what was written: the start token was not."""
    models, limit, words = exact_models(53), limits(54), (SOS, *WORDS)
    weigh, constraint = CONSTRAINTS["repetition"]
    options = dict(width=3, nbest=3, penalty="mean", stop="bound")
    found, _ = run(models, limit, constraint, **options, start=first)
    assert_well_formed(found, limit, words)
    assert_as_in_python(models, limit, found, **options, start=first, words=words, weigh=weigh)
    assert (found.tokens == SOS).any()
    narrow, _ = run(models, limit, constraint, width=1, start=first)
    greedy, _ = run(models, limit, constraint, start=first)
    assert_as_in_python(models, limit, narrow, width=1, start=first, words=words, weigh=weigh)
    jax.tree.map(np.testing.assert_array_equal, greedy, narrow)


# ------------------------------------------------------------------------------------------ trees


def test_the_tree_tells_how_every_hypothesis_came_about():
    models, limit = exact_models(43), limits(44)
    found, tree = run(models, limit, width=3, nbest=3, penalty="mean", record=True)
    plain, nothing = run(models, limit, width=3, nbest=3, penalty="mean")
    assert nothing is None
    jax.tree.map(np.testing.assert_array_equal, found, plain)
    for row in range(ROWS):
        ended = {}
        for t, j in np.argwhere(tree.ended[row, 0]):
            tokens, at, place = [], j, t
            while place >= 0:
                tokens.append(int(tree.tokens[row, 0, place, at]))
                at = tree.lives[row, 0, place - 1, tree.parents[row, 0, place, at]]
                place -= 1
            ended[tuple(reversed(tokens))] = tree.log_probs[row, 0, t, j]
        for place in range(3):
            if found.lengths[row, place]:
                assert ended[written(found, row, place)] == found.log_probs[row, place]


def test_the_tree_of_the_chain_known_by_hand():
    """Step 0: a 0.6, b 0.4. Step 1: b <eos> 0.36 ends, a <unk> 0.30 lives, a <eos> 0.24 is pruned, a b lives."""
    _, tree = run(chain(), np.array([LENGTH], np.int32), width=2, nbest=2, record=True)
    rounded = lambda log_probs: [round(float(p), 2) for p in np.exp(log_probs)]
    step_of = lambda t: list(zip(tree.tokens[0, 0, t].tolist(), rounded(tree.log_probs[0, 0, t])))
    assert step_of(0)[:2] == [(A, 0.6), (B, 0.4)]
    assert step_of(1)[:3] == [(EOS, 0.36), (UNK, 0.30), (EOS, 0.24)]
    assert tree.ended[0, 0, 1].tolist() == [True, False, False, False]
    assert (tree.log_probs[0, 0, 3:] == -np.inf).all()


def test_tokens_are_forbidden_only_after_a_forced_beginning():
    """Row 0 has a forced beginning of one token, row 1 none; token 5 is never allowed, token 4 not as the first."""
    rule = constraints.without_tokens((5,), (4,), jnp.array([1, 0]))
    log_probs = jnp.log(jnp.full((2, 1, 6), 1 / 6))
    for t, expected in ((0, [[], [4, 5]]), (1, [[4, 5], [5]]), (2, [[5], [5]])):
        found = rule(log_probs, jnp.zeros((2, 1, 3), jnp.int32), jnp.full(2, t))
        forbidden = np.asarray(found) <= constraints.DEAD
        assert [np.flatnonzero(row[0]).tolist() for row in forbidden] == expected
        np.testing.assert_array_equal(np.where(forbidden, 0, found), np.where(forbidden, 0, log_probs))
