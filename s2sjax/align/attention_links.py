"""Alignments from a trained model's attention, for comparison with the models of this package.

Letters: T pieces of the target, S pieces of the source; a piece is a word, a subword or a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from s2sjax.align.symmetrize import Link
from s2sjax.data.text.vocabulary import AnyVocabulary


def encode_words(vocabulary: AnyVocabulary, sentence: str) -> tuple[list[int], list[int]]:
    """Encodes the words of `str.split` one by one. Returns (ids, the word of each id).

    ab cd    as characters    ids of a b ␣ c d, words 0 0 -1 1 1
    """
    blank = vocabulary.encode(" ") if getattr(vocabulary, "unit", "") == "characters" else []
    ids: list[int] = []
    words: list[int] = []
    for number, word in enumerate(sentence.split()):
        between = blank if number else []
        pieces = vocabulary.encode(word)
        ids += between + pieces
        words += [-1] * len(between) + [number] * len(pieces)
    return ids, words


def best_links(weights: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]) -> set[Link]:
    """Links each target word to the source word that gets most of its attention: (source word, target word).

    weights [T, S]: summed over the pieces of a source word, averaged over the pieces of a target word. Pieces outside
    words (-1), such as blanks, are left out.
    """
    sources, targets = np.asarray(source_words, int), np.asarray(target_words, int)
    if not (sources >= 0).any():
        return set()
    merged = np.zeros((len(weights), sources.max() + 1))  # [T, source words]
    for word in range(merged.shape[1]):
        merged[:, word] = weights[:, sources == word].sum(1)
    return {(int(merged[targets == word].mean(0).argmax()), int(word)) for word in np.unique(targets[targets >= 0])}


def attention_links(translator: Any, params: Any, pairs: Sequence[tuple[str, str]]) -> list[set[Link]]:
    """The links of each (source, target) pair, from the attention of the model given the target (teacher forcing).

    translator: a `Translator` (evaluate/prediction/translator.py) of a model with attention. Words beyond its maximum
        length have no links.
    """
    translator.require_attention("an alignment")
    sources = [encode_words(translator.source, source) for source, _ in pairs]
    targets = [encode_words(translator.target, target) for _, target in pairs]
    found: list[set[Link]] = [set() for _ in pairs]
    ids = [[ids for ids, _ in side] for side in (sources, targets)]
    for index, weights in translator.attention_of(params, *ids):  # [T, S]
        length, width = weights.shape
        found[index] = best_links(weights, sources[index][1][:width], targets[index][1][:length])
    return found
