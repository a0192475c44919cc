"""Kneser-Ney against hand-computed numbers, and laws of every language model."""

import math

import numpy as np
import pytest

from s2sjax.errors import UserError
from s2sjax.statistical import ngrams
from s2sjax.statistical.ngrams import END, START, UNKNOWN, estimate

TEXT = ["a b a", "a b c", "b c a b", "", "c c"]


def test_a_bigram_model_by_hand():
    """Of "a b" and "a c": the bigrams <s> a (twice), a b, a c, b </s>, c </s>, and with D(1) = D(2) = 1/2

    unigrams   words before: a 1 (<s>), b 1 (a), c 1 (a), </s> 2 (b, c); of 5 in total, 4 distinct; 5 with <unk>
               g() = 4 (1/2) / 5 = 2/5, p(b) = (1 - 1/2) / 5 + 2/5 1/5 = 9/50, p(</s>) = 3/10 + 2/25 = 19/50
    bigrams    c(a .) = 2, g(a) = 2 (1/2) / 2 = 1/2, p(b | a) = (1 - 1/2) / 2 + 1/2 p(b) = 17/50
               p(a | <s>) = (2 - 1/2) / 2 + 1/4 p(a) = 3/4 + 1/4 9/50 = 159/200
    """
    model = estimate(["a b", "a c"], order=2, discounts=(0.5, 0.5, 0.5))
    p = lambda word, *history: math.exp(model.log_prob(word, history))
    assert p("b") == pytest.approx(9 / 50) and p(END) == pytest.approx(19 / 50)
    assert p(UNKNOWN) == p("never seen") == pytest.approx(2 / 25)
    assert p("b", "a") == pytest.approx(17 / 50) and p("a", START) == pytest.approx(159 / 200)
    assert p(END, "a") == pytest.approx(1 / 2 * 19 / 50)  # backs off
    assert p("b", "never seen") == p("b")
    assert math.exp(model.log_prob_of("a b")) == pytest.approx(159 / 200 * 17 / 50 * p(END, "b"))


def test_discounts_are_those_of_chen_and_goodman():
    """n1 = 4, n2 = 2, n3 = 1, n4 = 0: Y = 4 / 8, D = 1 - 2 Y 2/4, 2 - 3 Y 1/2, 3 - 4 Y 0/1."""
    level = ngrams.Counter({("a",): 1, ("b",): 1, ("c",): 1, ("d",): 1, ("e",): 2, ("f",): 2, ("g",): 3})
    assert ngrams._discounts(level) == pytest.approx((0.5, 1.25, 3.0))
    assert ngrams._discounts(ngrams.Counter({("a",): 1})) == ngrams.FALLBACK


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_sum_to_one_after_any_history(order):
    model = estimate(TEXT, order)
    rng = np.random.default_rng(0)
    words = [START, "a", "b", "c", "unseen"]
    histories = [(), *model.log_backoffs, *(tuple(rng.choice(words, size)) for size in (1, 2, 3) for _ in range(20))]
    assert {END, UNKNOWN, "a", "b", "c"} == set(model.vocabulary)
    for history in histories:
        probs = [math.exp(model.log_prob(word, history)) for word in model.vocabulary]
        assert sum(probs) == pytest.approx(1, abs=1e-12) and min(probs) > 0


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_state_of_a_history_tells_all_of_it(order):
    model = estimate(TEXT, order)
    for history in [("a", "b", "c"), (START,), ("c", "unseen"), ("unseen", "c", "c"), ("c", "b"), ()]:
        state = model.state(history)
        assert len(state) < order or state == ()
        assert all(model.log_prob(w, history) == pytest.approx(model.log_prob(w, state)) for w in model.vocabulary)


def test_words_read_in_parts_have_the_score_of_the_sentence():
    model = estimate(TEXT, 3)
    first, state = model.extend(model.state((START,)), ("b", "c"))
    second, _ = model.extend(state, ("b", "x", END))
    assert first + second == pytest.approx(model.log_prob_of("b c b x"))


def test_it_is_better_than_add_one_on_other_text():
    rng = np.random.default_rng(1)
    table = rng.dirichlet(np.full(30, 0.1), size=30)

    def sentence():
        words = [rng.integers(30)]
        while len(words) < 8:
            words.append(rng.choice(30, p=table[words[-1]]))
        return [f"w{word}" for word in words]

    train, held_out = ([sentence() for _ in range(size)] for size in (200, 50))
    model = estimate(train, 3)
    counts = [ngrams.Counter(), ngrams.Counter()]
    for words in train:
        text = (START, START, *words, END)
        counts[0].update(zip(text, text[1:], text[2:]))
        counts[1].update(gram[:2] for gram in zip(text, text[1:], text[2:]))
    total = 0.0
    for words in held_out:
        text = (START, START, *words, END)
        for gram in zip(text, text[1:], text[2:]):
            total -= math.log((counts[0][gram] + 1) / (counts[1][gram[:2]] + len(model.vocabulary)))
    add_one = math.exp(total / sum(len(words) + 1 for words in held_out))
    assert model.perplexity(held_out) < 0.8 * add_one
    assert model.perplexity(held_out) < estimate(train, 1).perplexity(held_out)


def test_marks_in_the_text_are_unknown_words():
    model = estimate(["<s> a </s>", "a"], 2)
    assert model.log_prob_of("</s> a") == model.log_prob_of("<unk> a")
    assert START not in model.vocabulary


def test_bad_input_is_one_line():
    with pytest.raises(UserError, match="order is 0: it must be at least 1"):
        estimate(["a"], 0)
    with pytest.raises(UserError, match="there are no sentences: a language model needs some"):
        estimate([])
