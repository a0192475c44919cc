"""Well-known edit distances, then the laws that any edit distance must satisfy."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.edit_distance import Edit, alignment, distance, show

patient = settings(deadline=None)  # a busy machine is not a failure
words = st.text(alphabet="abc", max_size=6)
# Symbols that RapidFuzz alone would confuse: "a" with 97, -1 with -2.
symbols = st.lists(st.sampled_from(["a", 97, -1, -2, "ab", ("x",)]), max_size=6)
costs = st.integers(1, 3)


def by_definition(a, b, substitution):
    """The recursive definition on suffixes, without a table or a library."""

    @cache
    def least(i, j):
        if i == len(a) or j == len(b):
            return len(a) - i + len(b) - j
        exchange = 0 if a[i] == b[j] else substitution
        return min(least(i + 1, j) + 1, least(i, j + 1) + 1, least(i + 1, j + 1) + exchange)

    return least(0, 0)


@pytest.mark.parametrize(
    "a, b, substitution, expected",
    [
        ("monkey", "money", 1, 1),
        ("intention", "execution", 1, 5),
        ("intention", "execution", 2, 8),
        ("Hello", "Hella", 1, 1),
        ("good", "gold", 1, 1),
        ("", "", 1, 0),
        ("", "abc", 1, 3),
        (["the", "cat", "sat"], ["the", "cat", "sat", "down"], 1, 1),
        (["K", "AE1", "T"], ["K", "AH0", "T", "S"], 1, 2),
    ],
)
def test_distances_known_by_heart(a, b, substitution, expected):
    assert distance(a, b, substitution) == expected


def test_the_table_of_hello_and_hella():
    """The distances of all prefixes: the slide that docs/lectures.md corrects."""
    table = [[distance("Hella"[:i], "Hello"[:j]) for j in range(1, 6)] for i in range(1, 6)]
    assert table[2:] == [[2, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 1]]


@patient
@given(symbols, symbols, costs)
def test_distance_is_what_the_recursive_definition_says(a, b, substitution):
    assert distance(a, b, substitution) == by_definition(a, b, substitution)


@patient
@given(words, words, words, costs)
def test_distance_is_a_metric(a, b, c, substitution):
    assert (distance(a, b, substitution) == 0) == (a == b)
    assert distance(a, b, substitution) == distance(b, a, substitution)
    assert distance(a, c, substitution) <= distance(a, b, substitution) + distance(b, c, substitution)


@patient
@given(symbols, symbols, costs)
def test_alignment_costs_the_distance_and_turns_a_into_b(a, b, substitution):
    edits = alignment(a, b, substitution)
    cost = {"match": 0, "substitute": substitution, "insert": 1, "delete": 1}
    assert sum(cost[edit.operation] for edit in edits) == distance(a, b, substitution)
    assert [edit.left for edit in edits if edit.operation != "insert"] == a
    assert [edit.right for edit in edits if edit.operation != "delete"] == b
    for edit in edits:
        assert (edit.operation == "match") == (edit.left == edit.right)
        assert (edit.left is None) == (edit.operation == "insert")
        assert (edit.right is None) == (edit.operation == "delete")


def test_among_equal_paths_gaps_stand_to_the_left_and_an_exchange_beats_two_gaps():
    assert alignment("gooal", "goal")[1] == Edit("delete", "o", None)
    assert alignment("goal", "gooal")[1] == Edit("insert", None, "o")
    assert alignment("a", "b", substitution=2) == [Edit("substitute", "a", "b")]
    assert alignment("a", "b", substitution=3) == [Edit("insert", None, "b"), Edit("delete", "a", None)]


def test_the_picture_aligns_words_of_any_width():
    edits = alignment(["the", "cat", "sat"], ["a", "cat", "sat", "down"])
    assert show(edits) == "the cat sat *\ns   |   |   i\na   cat sat down"


def test_the_picture_counts_wide_characters_twice_and_shows_blanks():
    edits = [
        Edit("substitute", "日", "x"),
        Edit("match", " ", " "),
        Edit("delete", "\n", None),
        Edit("insert", None, ""),
    ]
    assert show(edits) == "日 ␣ \\n *\ns  | d  i\nx  ␣ *  ''"


def test_the_picture_of_nothing_is_three_empty_lines():
    assert show([]) == "\n\n"


@pytest.mark.parametrize("function", [distance, alignment])
def test_a_free_exchange_is_refused(function):
    with pytest.raises(UserError, match="substitution is 0"):
        function("a", "b", substitution=0)
