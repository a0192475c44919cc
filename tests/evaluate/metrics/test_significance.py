"""The bootstrap against sacreBLEU's own, permutation tests against enumeration, and cases whose answer is known."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from s2sjax.evaluate.metrics import significance
from s2sjax.evaluate.metrics.significance import (
    bootstrap,
    line_scores,
    paired_permutation,
    permutation,
    sacrebleu_bootstrap,
)


def test_the_scores_and_their_margins_are_those_of_the_normal_approximation():
    """Of 1,000 coins: p = 0.3 has the standard error sqrt(0.3 * 0.7 / 1000) = 1.45%."""
    rng = np.random.default_rng(0)
    first = [(100.0 * right, 1.0) for right in rng.random(1000) < 0.3]
    second = [(100.0 * right, 1.0) for right in rng.random(1000) < 0.5]
    found = bootstrap(first, second)
    assert found.first == pytest.approx(np.mean(first, axis=0)[0])
    assert found.first_margin == pytest.approx(1.96 * 1.45, rel=0.15)
    assert found.p == pytest.approx(1 / 1001) and found.value > 15


def test_equal_systems_are_seldom_called_different():
    """Under the null hypothesis p is uniform: about 5% of the tests are below 0.05."""
    rng = np.random.default_rng(1)
    draw = lambda: [(value, 1.0) for value in rng.normal(size=100)]
    found = np.array([bootstrap(draw(), draw(), 300).p for _ in range(200)])
    assert 0.01 <= np.mean(found < 0.05) <= 0.1 and 0.4 <= np.mean(found) <= 0.6


def test_terms_are_summed_before_they_are_divided():
    found = bootstrap([(100.0, 1.0), (0.0, 9.0)], [(0.0, 1.0), (0.0, 0.0)])
    assert (found.first, found.second) == (10.0, 0.0)


def test_the_result_does_not_depend_on_how_many_draws_are_in_memory(monkeypatch):
    rng = np.random.default_rng(2)
    first, second = ([(value, 1.0) for value in rng.random(50)] for _ in range(2))
    whole = bootstrap(first, second, 100)
    monkeypatch.setattr(significance, "AT_ONCE", 70)
    assert bootstrap(first, second, 100) == pytest.approx(whole)


def test_outputs_that_are_no_numbers_cannot_be_tested():
    found = bootstrap([(np.nan, 1.0), (1.0, 1.0)], [(1.0, 1.0), (1.0, 1.0)])
    assert found.first == np.inf and np.isnan(found.p)


def test_sacrebleus_formula_finds_what_ours_finds():
    """TER is also a ratio of sums: the scores and the margins of both bootstraps agree."""
    references = [(f"a b c d {n}",) for n in range(60)]
    a = [f"a b c d {n if n % 3 else 'x'}" for n in range(60)]
    b = [f"a b c d {n if n % 2 else 'x'}" for n in range(60)]
    theirs = sacrebleu_bootstrap("ter", a, b, references)
    ours = bootstrap(*([(100.0 * ("x" in line), 5.0) for line in lines] for lines in (a, b)))
    assert (ours.first, ours.second) == pytest.approx((theirs.first, theirs.second), rel=1e-5)
    assert ours.first_margin == pytest.approx(theirs.first_margin, rel=0.2)
    assert sacrebleu_bootstrap("bleu", a, a, references).p == 1.0


def test_a_short_line_has_a_score_of_its_own():
    assert line_scores("bleu", ["a b", "a c"], [("a b",), ("a b",)]).tolist() == pytest.approx([100, 50])


# ------------------------------------------------------------------------------ permutation tests

SCORES = [([7, 5, 9, 6], [4, 6, 5, 1]), ([3, 3], [3, 3]), ([1, 2, 3], [2, 3, 1]), ([10, 11, 12], [1, 2, 3])]


@pytest.mark.parametrize("first, second", SCORES)
@pytest.mark.parametrize("unit", [1, 0.1, 1e6])
def test_a_paired_permutation_test_counts_every_exchange_of_scores(first, second, unit):
    """Enumerated in exact arithmetic: rounding decides no tie, whatever the unit of the scores."""
    differences = [Fraction(a - b) for a, b in zip(first, second)]
    sums = [abs(sum(s * d for s, d in zip(signs, differences))) for signs in product((1, -1), repeat=len(first))]
    expected = Fraction(sum(each >= abs(sum(differences)) for each in sums), len(sums))
    a, b = ([unit * value for value in scores] for scores in (first, second))
    assert paired_permutation(a, b) == paired_permutation(b, a) == float(expected)


@pytest.mark.parametrize("first, second", [*SCORES, ([5], [1, 2, 3]), ([1, 9], [2, 3, 4, 4, 2])])
@pytest.mark.parametrize("unit", [1, 0.1, 1e6])
def test_a_permutation_test_counts_every_division_into_two_groups(first, second, unit):
    both, size = [*map(Fraction, (*first, *second))], len(first)
    found = []
    for group in combinations(range(len(both)), size):
        rest = [both[n] for n in range(len(both)) if n not in group]
        found.append(abs(sum(both[n] for n in group) / size - sum(rest) / len(rest)))
    expected = sum(each >= found[0] for each in found) / len(found)
    a, b = ([unit * value for value in scores] for scores in (first, second))
    assert permutation(a, b) == pytest.approx(expected, abs=1e-12)
    assert permutation(b, a) == pytest.approx(expected, abs=1e-12)


def test_the_smallest_p_of_few_seeds():
    assert [paired_permutation([9.0 + n for n in range(k)], [0.0] * k) for k in (1, 2, 3, 5)] == [
        1,
        1 / 2,
        1 / 4,
        1 / 16,
    ]
    assert permutation([9, 8, 7], [1, 2, 3]) == 2 / 20


@pytest.mark.parametrize("test", [paired_permutation, permutation])
def test_many_seeds_are_drawn_with_a_fixed_seed(test, monkeypatch):
    """The share of the drawn exchanges is that of all, within four standard errors."""
    rng = np.random.default_rng(3)
    first, second = rng.normal(0.7, 1, size=(2, 8)) - [[0.7], [0]]
    exact = test(first, second)
    assert 0 < exact < 0.6
    monkeypatch.setattr(significance, "MOST", 200)
    found = test(first, second)
    assert found == test(first, second) and 0 < abs(found - exact) < 4 * (exact * (1 - exact) / 200) ** 0.5
    many = np.arange(30.0)
    assert test(many + 99, many) == 1 / 200  # the scores as they are count as one of them


@pytest.mark.parametrize("test", [paired_permutation, permutation])
def test_equal_trainings_are_seldom_called_different(test):
    """Under the null hypothesis p is at most 0.05 in at most 5% of the tests."""
    draws = np.random.default_rng(4).normal(size=(300, 2, 6))
    found = np.array([test(*draw) for draw in draws])
    assert 0.01 <= np.mean(found <= 0.05) <= 0.08 and 0.4 <= found.mean() <= 0.6


@pytest.mark.parametrize("test", [paired_permutation, permutation])
def test_scores_that_are_no_numbers_cannot_be_tested(test):
    assert np.isnan(test([1.0, np.nan], [1.0, 2.0])) and np.isnan(test([1.0, 2.0], [np.inf, 2.0]))
