"""N-gram language models over words, with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999).

    p(w | h) = (c(h w) - D(c(h w))) / c(h .) + g(h) p(w | h')        h' is h without its oldest word
    g(h)     = (D(1) n_1(h) + D(2) n_2(h) + D(3) n_3+(h)) / c(h .)   n_k(h): how many words follow h k times

down to the uniform distribution over the vocabulary. In the highest order c is a count. In the lower orders it is the
number of different words before the n-gram: "Francisco" is frequent, but only after "San", so it is unlikely after an
unseen history. N-grams at the beginning of a sentence have no word before them and keep their count.

    model = estimate(["the house", "the small house"], order=3)
    model.log_prob("house", ("<s>", "the"))
    model.perplexity(["the house"])
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from s2sjax.errors import UserError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
Gram = tuple[str, ...]
Discounts = tuple[float, float, float]
FALLBACK: Discounts = (0.5, 1.0, 1.5)
"""discounts of an order with too few n-grams to estimate them"""


class NGrams(NamedTuple):
    """A language model. Only seen n-grams are stored, with their interpolated probabilities."""

    order: int
    log_probs: dict[Gram, float]
    log_backoffs: dict[Gram, float]
    """log g(h) of each history"""

    @property
    def vocabulary(self) -> list[str]:
        """The words that can follow a history, with the end of the sentence and the unknown word."""
        return [gram[0] for gram in self.log_probs if len(gram) == 1]

    def log_prob(self, word: str, history: Sequence[str]) -> float:
        """log p(word | history). A word outside the vocabulary has the probability of the unknown word."""
        known = word if (word,) in self.log_probs else UNKNOWN
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        total = 0.0
        while (found := self.log_probs.get((*history, known))) is None:
            total += self.log_backoffs.get(history, 0.0)
            history = history[1:]
        return total + found

    def state(self, history: Gram) -> Gram:
        """The longest end of a history that matters for the next word."""
        history = history[-(self.order - 1) :] if self.order > 1 else ()
        while history and history not in self.log_backoffs:
            history = history[1:]
        return history

    def extend(self, state: Gram, words: Sequence[str]) -> tuple[float, Gram]:
        """Reads words after a state: their log-probability and the new state."""
        total = 0.0
        for word in words:
            total += self.log_prob(word, state)
            state = self.state((*state, word))
        return total, state

    def log_prob_of(self, sentence: str | Sequence[str]) -> float:
        """The log-probability of a sentence, with its end."""
        return self.extend(self.state((START,)), (*_words(sentence), END))[0]

    def perplexity(self, sentences: Iterable[str | Sequence[str]]) -> float:
        """Perplexity per word, counting the end of each sentence as a word."""
        texts = [_words(sentence) for sentence in sentences]
        total = sum(map(self.log_prob_of, texts))
        return math.exp(-total / max(sum(len(text) + 1 for text in texts), 1))


def estimate(sentences: Iterable[str | Sequence[str]], order: int = 3, discounts: Discounts | None = None) -> NGrams:
    """Estimates a model from sentences.

    discounts: D(1), D(2) and D(3) of every order; by default, those that Chen and Goodman derive from the numbers of
        n-grams seen one to four times.
    """
    if order < 1:
        raise UserError(f"order is {order}: it must be at least 1")
    counts = _counts(sentences, order)
    if not counts[0]:
        raise UserError("there are no sentences: a language model needs some")
    size = len(counts[0].keys() | {(END,), (UNKNOWN,)})
    probs: dict[Gram, float] = {}
    backoffs: dict[Gram, float] = {}
    for level in counts:
        d = (0.0, *(discounts or _discounts(level)))
        totals: defaultdict[Gram, int] = defaultdict(int)
        reserved: defaultdict[Gram, float] = defaultdict(float)
        for gram, count in level.items():
            totals[gram[:-1]] += count
            reserved[gram[:-1]] += d[min(count, 3)]
        backoffs |= {history: reserved[history] / totals[history] for history in totals}
        for gram, count in level.items():
            history = gram[:-1]
            shorter = probs[gram[1:]] if history else 1 / size
            probs[gram] = (count - d[min(count, 3)]) / totals[history] + backoffs[history] * shorter
    probs.setdefault((UNKNOWN,), backoffs[()] / size)
    log = lambda table: {gram: math.log(value) if value > 0 else -math.inf for gram, value in table.items()}
    return NGrams(order, log(probs), log(backoffs))


def _counts(sentences: Iterable[str | Sequence[str]], order: int) -> list[Counter[Gram]]:
    """The count c of each n-gram, for n from 1 to `order`."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        text = (START, *_words(sentence), END)
        for n in range(1, order + 1):
            first = 1 if n == 1 else 0  # the start is never predicted
            raw[n - 1].update(text[i : i + n] for i in range(first, len(text) - n + 1))
    lower = [Counter({gram: n for gram, n in level.items() if gram[0] == START}) for level in raw[:-1]]
    for shorter, longer in zip(lower, raw[1:]):
        shorter.update(gram[1:] for gram in longer)
    return [*lower, raw[-1]]


def _discounts(level: Counter[Gram]) -> Discounts:
    n1, n2, n3, n4 = (Counter(level.values())[k] for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 < d <= k for k, d in enumerate(found, start=1)) else FALLBACK


def _words(sentence: str | Sequence[str]) -> list[str]:
    """The words of a sentence. The marks of start and end are unknown words in it."""
    words = sentence.split() if isinstance(sentence, str) else sentence
    return [UNKNOWN if word in (START, END) else word for word in words]
