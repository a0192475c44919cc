"""Phrase pairs against their definition, and their probabilities on examples that can be counted by hand."""

import math
from itertools import product

import numpy as np
import pytest

from s2sjax.errors import UserError
from s2sjax.statistical.phrases import Block, PhraseTable, extract


def by_definition(links, source_length, target_length, longest):
    """All blocks with a link inside and none that leaves it."""
    found = set()
    for begin, first in product(range(source_length), range(target_length)):
        for end, last in product(range(begin + 1, source_length + 1), range(first + 1, target_length + 1)):
            inside = [begin <= i < end and first <= j < last for i, j in links]
            touching = [begin <= i < end or first <= j < last for i, j in links]
            if any(inside) and inside == touching and max(end - begin, last - first) <= longest:
                found.add(Block(begin, end, first, last))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_extraction_is_the_definition(seed):
    rng = np.random.default_rng(seed)
    rows, columns, longest = (int(rng.integers(1, top)) for top in (8, 8, 6))
    links = {(int(i), int(j)) for i, j in np.argwhere(rng.random((rows, columns)) < rng.uniform(0.05, 0.35))}
    found = list(extract(links, rows, columns, longest))
    assert len(found) == len(set(found))
    assert set(found) == by_definition(links, rows, columns, longest)


def test_the_example_of_the_docstring():
    """ich sehe ihn nicht / i do not see him; "do" has no link."""
    source, target = (text.split() for text in ("ich sehe ihn nicht", "i do not see him"))
    links = {(0, 0), (1, 3), (2, 4), (3, 2)}
    pairs = {(" ".join(source[b.begin : b.end]), " ".join(target[b.first : b.last])) for b in extract(links, 4, 5)}
    assert ("sehe ihn", "see him") in pairs
    assert {target for source, target in pairs if source == "nicht"} == {"not", "do not"}
    assert not any(source == "ihn nicht" for source, _ in pairs)


def table(longest=7):
    """das Haus / the house, twice; das Buch / the book; das Buch / book, whose "das" has no link."""
    sources = [("das", "haus")] * 2 + [("das", "buch")] * 2
    targets = [("the", "house")] * 2 + [("the", "book"), ("book",)]
    links = [{(0, 0), (1, 1)}] * 3 + [{(1, 0)}]
    return PhraseTable(sources, targets, links, longest)


def test_features_by_hand():
    found = {phrase.words: phrase.features for phrase in table().lookup(("buch",))}
    assert list(found) == [("book",)]
    inverse, inverse_lexical, direct, direct_lexical = map(math.exp, found["book",])
    assert inverse == pytest.approx(2 / 3)  # "book" also translates "das buch"
    assert (inverse_lexical, direct, direct_lexical) == pytest.approx((1, 1, 1))
    found = {phrase.words: phrase.features for phrase in table().lookup(("das", "buch"))}
    assert set(found) == {("the", "book"), ("book",)}
    inverse, inverse_lexical, direct, direct_lexical = map(math.exp, found["book",])
    assert direct == pytest.approx(1 / 2)
    assert inverse_lexical == pytest.approx(1)  # w(das | null) w(buch | book); only "das" is without a link
    inverse, inverse_lexical, direct, direct_lexical = map(math.exp, found["the", "book"])
    assert direct_lexical == pytest.approx(3 / 4)  # w(the | das) w(book | buch)


def test_a_word_with_two_links_has_their_mean():
    """zum becomes "to the"; in the other pair it becomes "for"."""
    found = PhraseTable([("zum",), ("zum",)], [("to", "the"), ("for",)], [{(0, 0), (0, 1)}, {(0, 0)}])
    features = {phrase.words: phrase.features for phrase in found.lookup(("zum",))}
    assert math.exp(features["to", "the"][3]) == pytest.approx(1 / 3 * 1 / 3)
    assert math.exp(features["to", "the"][1]) == pytest.approx((1 + 1) / 2)


def test_the_most_frequent_translations_come_first_and_are_kept():
    sources, targets = [("a",)] * 6, [("x",)] * 3 + [("y",)] * 2 + [("z",)]
    kept = PhraseTable(sources, targets, [{(0, 0)}] * 6, most=2).lookup(("a",))
    assert [phrase.words for phrase in kept] == [("x",), ("y",)]


def test_what_was_never_seen_and_what_is_too_long_has_no_translation():
    assert table().lookup(("auto",)) == [] == table(longest=1).lookup(("das", "haus"))
    assert len(table(longest=1)) == 3 and len(table()) == 5


def test_a_text_without_links_has_no_phrases():
    assert len(PhraseTable([("a",), ()], [("b",), ("c",)], [set(), set()])) == 0


def test_bad_input_is_one_line():
    with pytest.raises(UserError, match="there are 1 sources, 0 targets and 1 sets of links: give one of each"):
        PhraseTable([("a",)], [], [{(0, 0)}])
    with pytest.raises(UserError, match="longest is 0: a phrase has at least 1 word"):
        table(longest=0)
