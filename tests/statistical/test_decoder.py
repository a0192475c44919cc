"""The stack decoder against exhaustive search on tiny tables."""

import math
from itertools import permutations, product

import numpy as np
import pytest

from s2sjax.statistical import ngrams
from s2sjax.statistical.decoder import NOISY_CHANNEL, Search, Weights, decode
from s2sjax.statistical.ngrams import END, START
from s2sjax.statistical.phrases import Phrase

EXACT = Search(beam=None, options=None, distortion=None)
LANGUAGE = ngrams.estimate(["u v w", "v u", "w w u v", "u w"], order=3)


def tiny(seed, length=4, longest=2, vocabulary="abc"):
    """A sentence and a random table; a word may be without translation."""
    rng = np.random.default_rng(seed)
    source = tuple(str(word) for word in rng.choice(list(vocabulary), length))
    table = {}
    for size in range(1, longest + 1):
        for words in product(vocabulary, repeat=size):
            if rng.random() < 0.8:
                chosen = {tuple(map(str, rng.choice(list("uvw"), rng.integers(1, 3)))) for _ in range(2)}
                table[words] = [Phrase(ys, tuple(map(float, np.log(rng.random(4))))) for ys in sorted(chosen)]
    weights = Weights(*map(float, rng.uniform(0.1, 1, len(Weights._fields))))
    return source, lambda words: table.get(words, []), longest, weights


def segmentations(begin, end, longest):
    if begin == end:
        yield ()
    for middle in range(begin + 1, min(begin + longest, end) + 1):
        for rest in segmentations(middle, end, longest):
            yield ((begin, middle), *rest)


def exhaustive(source, lookup, longest, weights, limit=None):
    """The score and the features of every derivation: {words: (score, features)} of the best one for these words."""
    found = {}
    for spans in segmentations(0, len(source), longest):
        choices = [lookup(source[b:e]) or ([Phrase(source[b:e], (0.0,) * 4)] if e - b == 1 else []) for b, e in spans]
        for order in permutations(range(len(spans))):
            if limit is not None and not near(spans, order, limit):
                continue
            for phrases in product(*choices):
                words = tuple(word for k in order for word in phrases[k].words)
                ends = [0, *(spans[k][1] for k in order)]
                skipped = sum(abs(spans[k][0] - end) for k, end in zip(order, ends))
                text = (START, START, *words, END)
                lm = sum(LANGUAGE.log_prob(text[i], text[max(0, i - 2) : i]) for i in range(2, len(text)))
                features = [sum(p.features[k] for p in phrases) for k in range(4)]
                features += [lm, -skipped, len(spans), len(words)]
                score = float(np.dot(weights, features))
                if words not in found or score > found[words][0]:
                    found[words] = (score, features)
    return found


def near(spans, order, limit):
    """No jump is longer than the limit, and after none is the first gap further back than the limit."""
    end, covered = 0, set()
    for k in order:
        begin, after = spans[k]
        gap = next(i for i in range(99) if i not in covered)
        if abs(begin - end) > limit or (begin != gap and after - gap > limit):
            return False
        covered |= set(range(begin, after))
        end = after
    return True


@pytest.mark.parametrize("seed", range(12))
def test_without_a_beam_it_is_exhaustive_search(seed):
    source, lookup, longest, weights = tiny(seed)
    every = exhaustive(source, lookup, longest, weights)
    found = decode(source, lookup, longest, LANGUAGE, weights, EXACT, n=5)
    best = sorted((score for score, _ in every.values()), reverse=True)[:5]
    assert [h.score for h in found] == pytest.approx(best, abs=1e-9)
    for h in found:
        assert h.features == pytest.approx(every[h.words][1], abs=1e-9)
        assert h.score == pytest.approx(np.dot(weights, h.features))


@pytest.mark.parametrize("limit", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_the_distortion_limit_leaves_the_best_of_those_within_it(seed, limit):
    source, lookup, longest, weights = tiny(seed, length=5)
    every = exhaustive(source, lookup, longest, weights, limit)
    (found,) = decode(source, lookup, longest, LANGUAGE, weights, EXACT._replace(distortion=limit))
    assert found.score == pytest.approx(max(score for score, _ in every.values()), abs=1e-9)
    spans = [span for span, _ in found.phrases]
    assert sorted(i for span in spans for i in range(*span)) == list(range(5))  # each word once
    if limit == 0:
        assert spans == sorted(spans)


@pytest.mark.parametrize("seed", range(6))
def test_recombination_and_future_cost_change_nothing_without_a_beam(seed):
    source, lookup, longest, weights = tiny(seed)
    all_of = lambda **options: {
        h.words: pytest.approx(h.score, abs=1e-9)
        for h in decode(source, lookup, longest, LANGUAGE, weights, EXACT._replace(**options), n=8)
    }
    expected = all_of()
    assert all_of(recombine=False) == expected == all_of(future_cost=False)


def test_a_wider_beam_is_not_worse_and_a_narrow_one_makes_search_errors():
    """Of 30 sentences; a beam of one extension is worse for some, and the future cost helps it."""
    widths = (1, 3, 10, None)
    scores = {width: [] for width in widths} | {"blind": []}
    for seed in range(30):
        searches = {width: EXACT._replace(beam=width) for width in widths}
        searches["blind"] = EXACT._replace(beam=1, future_cost=False)
        source, lookup, longest, weights = tiny(seed, length=6)
        for name, search in searches.items():
            scores[name].append(decode(source, lookup, longest, LANGUAGE, weights, search)[0].score)
    exact = np.array(scores[None])
    errors = {name: int((np.array(values) < exact - 1e-9).sum()) for name, values in scores.items()}
    assert all(np.max(np.array(values) - exact) < 1e-9 for values in scores.values())
    assert errors[1] > errors[3] > errors[10] >= errors[None] == 0
    assert np.mean(scores["blind"]) < np.mean(scores[1])


def test_a_word_without_translation_is_copied():
    (found,) = decode(("never", "seen"), lambda words: [], 7, LANGUAGE)
    assert found.words == ("never", "seen") and found.features[:4] == (0, 0, 0, 0)


def test_an_empty_sentence_has_an_empty_translation():
    assert decode((), lambda words: [], 7, LANGUAGE, n=3)[0].words == ()


def test_the_noisy_channel_weighs_the_two_halves():
    """p(x | y) p(y): two translations of one word."""
    table = {("x",): [Phrase(("u",), (math.log(0.1), 0, 0, 0)), Phrase(("w",), (math.log(0.5), 0, 0, 0))]}
    found = decode(("x",), lambda words: table.get(words, []), 1, LANGUAGE, NOISY_CHANNEL, n=2)
    scores = {h.words: h.score for h in found}
    assert scores["u",] == pytest.approx(math.log(0.1) + LANGUAGE.log_prob_of("u"))
    assert scores["w",] == pytest.approx(math.log(0.5) + LANGUAGE.log_prob_of("w"))


def test_the_same_twice():
    source, lookup, longest, weights = tiny(3, length=6)
    run = lambda: decode(source, lookup, longest, LANGUAGE, weights, n=10)
    assert run() == run()
