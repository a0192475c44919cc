"""Converts the words in the search options to tokens of the target vocabulary."""

from __future__ import annotations

from typing import NamedTuple

from s2sjax import config
from s2sjax.core.special_tokens import UNK
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.errors import UserError


class WordConstraints(NamedTuple):
    """The words in the search options, as tokens."""

    prefix: tuple[int, ...] = ()
    without: tuple[tuple[int, ...], ...] = ()
    containing: tuple[tuple[int, ...], ...] = ()
    never: tuple[int, ...] = ()
    """tokens that the vocabulary forbids after the prefix"""
    never_first: tuple[int, ...] = ()
    """tokens that the vocabulary forbids directly after the prefix"""


def word_constraints(o: config.Search, target: AnyVocabulary) -> WordConstraints:
    """Converts search.prefix, search.forbidden_words and search.required_words to tokens.

    Without search.prefix, outputs begin with the forced beginning of the vocabulary, if it has one. A prefix contains
    what `encode` puts before every text, such as a language; a word does not.

    Raises a UserError if a word is not in the vocabulary, if no output can satisfy all constraints, or if the beam is
    larger than the vocabulary.
    """
    if o.beam_size > target.size:
        raise UserError(
            f"search.beam_size {o.beam_size} is larger than the target vocabulary ({target.size}): lower it"
        )

    def ids(field: str, word: str) -> tuple[int, ...]:
        found = (UNK,) if word == "<unk>" else tuple(target.encode(word))
        if field != "prefix":
            before = tuple(target.encode(""))
            found = found[len(before) :] if found[: len(before)] == before else found
        if not found or (UNK in found and word != "<unk>"):
            raise UserError(f"search.{field}: {word!r} is not in the target vocabulary: choose another word")
        return found

    words = WordConstraints(
        ids("prefix", o.prefix) if o.prefix else target.forced_begin,
        tuple(ids("forbidden_words", word) for word in o.forbidden_words),
        tuple(ids("required_words", word) for word in o.required_words),
        target.never,
        target.never_first,
    )
    for word, wanted in zip(o.required_words, words.containing):
        if wanted in words.without:
            raise UserError(f"{word!r} is in both search.required_words and search.forbidden_words: remove it from one")
    beginning = "search.prefix" if o.prefix else "the forced beginning of every output"
    for name, needed in (
        (beginning, len(words.prefix)),
        ("search.required_words", sum(map(len, words.containing))),
    ):
        if 0 < o.max_length <= needed:
            raise UserError(
                f"{name} needs {needed} tokens plus <eos>, but search.max_length is {o.max_length}: "
                "raise search.max_length"
            )
    return words
