"""Attention as an alignment of words."""

import numpy as np
import pytest

from s2sjax import config
from s2sjax.align.attention_links import attention_links, best_links, encode_words
from s2sjax.data import text
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError


def test_pieces_know_their_words():
    letters = Vocabulary("characters", " abcd")
    ids, words = encode_words(letters, "ab  cd")
    assert letters.decode(ids) == "ab cd" and words == [0, 0, -1, 1, 1]
    assert encode_words(Vocabulary("words", ["ab", "cd"]), "ab cd ab")[1] == [0, 1, 2]
    assert encode_words(letters, " ") == ([], [])


def test_subwords_are_those_of_the_whole_sentence():
    lines = ["the house", "the mouse in the house", "a mouse house"]
    vocabulary = text.build(config.Text("subwords", size=30), lines)
    for line in lines:
        ids, words = encode_words(vocabulary, line)
        assert ids == vocabulary.encode(line)
        pieces = vocabulary.pieces(ids)
        merged = ["".join(piece for piece, n in zip(pieces, words) if n == word) for word in range(max(words) + 1)]
        assert [word.strip("▁") for word in merged] == line.split()


def test_weights_of_source_pieces_are_added_and_those_of_target_pieces_averaged():
    """The first target word has two pieces. One piece of source word 0 is the best, all of word 1 are better."""
    weights = np.array([[0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05]])
    assert best_links(weights, [0, 1, 1], [0, 0, 1]) == {(1, 0), (0, 1)}
    mean = np.array([[0.9, 0.1], [0.0, 1.0], [0.3, 0.7]])  # 0.45 and 0.55 over a blank of the target, which is left out
    assert best_links(mean, [0, 1], [0, 0, -1]) == {(1, 0)}
    assert best_links(mean, [-1, 0], [0, 0, 1]) == {(0, 0), (0, 1)}
    assert best_links(np.zeros((2, 0)), [], [0, 1]) == set()


class Fake:
    """A translator that reads at most two pieces, and pays attention to the last of them."""

    source = target = Vocabulary("words", ["a", "b", "c"])
    attends = True

    def require_attention(self, what):
        if not self.attends:
            raise UserError(f"{what} requires a model with attention")

    def attention_of(self, params, sources, targets):
        for index, (source, target) in reversed(list(enumerate(zip(sources, targets)))):
            if source:
                yield index, np.tile(np.arange(len(source[:2])), (len(target[:2]), 1))


def test_each_pair_has_its_own_links_and_what_is_cut_has_none():
    pairs = [("a b c", "c b a"), ("", "a"), ("a", ""), ("c", "a b")]
    assert attention_links(Fake(), None, pairs) == [{(1, 0), (1, 1)}, set(), set(), {(0, 0), (0, 1)}]


def test_a_model_without_attention_is_refused():
    fake = Fake()
    fake.attends = False
    with pytest.raises(UserError, match="an alignment requires a model with attention"):
        attention_links(fake, None, [("a", "b")])
