"""The paired bootstrap against sacreBLEU's own, and cases whose answer is known."""

import numpy as np
import pytest

from s2sjax.evaluate.metrics import significance
from s2sjax.evaluate.metrics.significance import bootstrap, line_scores, sacrebleu_bootstrap


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
