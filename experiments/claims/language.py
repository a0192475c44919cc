"""An artificial pair of languages with a known translation of every word, for claims at small size.

A word is a stem and an ending. Stems are arbitrary on both sides, and endings translate regularly, so a form that is
not in the training data can be translated from its parts. In the target, adjectives follow their nouns and the verb
comes last; articles have no translation, and some stems translate into two words:

    ka dokiti salati soketati diruti     article, noun, verb, adjective, noun; three have the ending -ti
    bupoez vozoo bavoez zanapuez         noun, noun, adjective, verb; -ez for -ti
"""

from __future__ import annotations

import random
from typing import NamedTuple

from s2sjax.config import RNNsearch, Train

MODEL = RNNsearch(width=48, embedding_size=32, dropout=0.1)
"""model that learns to translate it"""
SOURCE_LETTERS, TARGET_LETTERS = ("ktsmrld", "aeiou"), ("bgpfnvz", "aeou")
ENDINGS = (("", "ne", "ti", "sku"), ("o", "ab", "ez", "uv"))
"""endings of the source, and their translations"""
ARTICLES, PARTICLE = ("ka", "ko"), "ta"
TWO_WORDS = 5
"""every verb whose number is a multiple of this is two words in the target"""


def training(steps: int) -> Train:
    return Train(
        steps=steps,
        learning_rate=5e-3,
        warmup_steps=steps // 10,
        log_every=steps // 2,
        evaluate_every=steps,
        save_every=steps,
    )


class Pair(NamedTuple):
    source: str
    target: str
    links: frozenset[tuple[int, int]]
    """(source word, target word)"""


class Language(NamedTuple):
    nouns: list[tuple[str, str]]
    adjectives: list[tuple[str, str]]
    verbs: list[tuple[str, str]]


def make(stems: int, seed: int = 0) -> Language:
    """Makes a language with this number of nouns, and half as many adjectives and verbs."""
    rng = random.Random(seed)

    def names(letters: tuple[str, str], count: int) -> list[str]:
        found: dict[str, None] = {}  # an ordered set
        while len(found) < count:
            syllables = rng.choice((2, 2, 3))
            found["".join(rng.choice(part) for _ in range(syllables) for part in letters)] = None
        return list(found)

    total = 2 * stems
    pairs = list(zip(names(SOURCE_LETTERS, total), names(TARGET_LETTERS, total)))
    return Language(pairs[:stems], pairs[stems : stems + stems // 2], pairs[stems + stems // 2 :])


def sentence(language: Language, rng: random.Random, free: float = 0.0) -> Pair:
    """Draws a subject, a verb and an object. free: how often the object comes before the subject in the target."""
    source: list[str] = []
    Translated = tuple[str, int]  # a target word, and the number of its source word

    def word(stems: list[tuple[str, str]]) -> tuple[Translated, int]:
        """Adds a source word. Returns its translation and the number of its stem; low numbers are frequent."""
        number = min(int(rng.paretovariate(0.8)) - 1, len(stems) - 1)
        (stem, translation), ending = stems[number], rng.choices(range(4), (8, 4, 2, 1))[0]
        source.append(stem + ENDINGS[0][ending])
        return (translation + ENDINGS[1][ending], len(source) - 1), number

    def phrase() -> list[Translated]:
        if rng.random() < 0.5:
            source.append(rng.choice(ARTICLES))
        adjective = [word(language.adjectives)[0]] if rng.random() < 0.5 else []
        return [word(language.nouns)[0], *adjective]

    first = phrase()
    verb, number = word(language.verbs)
    second = phrase()
    target = second + first if rng.random() < free else first + second
    target += [(PARTICLE, verb[1]), verb] if number % TWO_WORDS == 0 else [verb]
    links = frozenset((place, j) for j, (_, place) in enumerate(target))
    return Pair(" ".join(source), " ".join(text for text, _ in target), links)


def corpus(language: Language, count: int, seed: int, free: float = 0.0) -> list[Pair]:
    """Draws different sentences."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        pair = sentence(language, rng, free)
        found.setdefault(pair.source, pair)
    return list(found.values())
