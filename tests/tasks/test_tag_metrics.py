"""Scores of tagged sentences, each worked out by hand."""

import pytest

from s2sjax.evaluate.metrics.significance import bootstrap
from s2sjax.tasks.tagging.tag_figure import tag_bars
from s2sjax.tasks.tagging.tag_metrics import Pair, TagScore, by_tag, entities, score


def pair(predicted: str, correct: str, *intents: str) -> Pair:
    return Pair(predicted.split(), correct.split(), *intents)


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("", set()),
        ("O O", set()),
        ("B-a I-a O", {("a", 0, 2)}),
        ("B-a B-a", {("a", 0, 1), ("a", 1, 2)}),  # B- always begins another
        ("I-a I-a O I-b", {("a", 0, 2), ("b", 3, 4)}),  # I- without B- begins one
        ("B-a I-b I-b", {("a", 0, 1), ("b", 1, 3)}),  # and so does I- of another type
        ("O B-a I-a", {("a", 1, 3)}),  # up to the end
        ("B-a-b I-a-b", {("a-b", 0, 2)}),  # a type may have a dash
        ("NOUN B- I-a", {("a", 2, 3)}),  # no type, no entity
    ],
)
def test_entities_by_the_rules_of_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_entity_scores_by_hand():
    """3 entities are right in type and both ends, of 5 predicted and 4 correct: F1 = 2 * 3 / 9."""
    pairs = [
        pair("B-a I-a O B-b", "B-a I-a O B-b"),  # both right
        pair("B-a O O", "B-a I-a O"),  # one end is wrong
        pair("B-b O B-a", "O O B-a"),  # one too many
    ]
    found = score(["f1", "precision", "recall"], pairs)
    assert found["precision"].value == pytest.approx(100 * 3 / 5)
    assert found["recall"].value == pytest.approx(100 * 3 / 4)
    assert found["f1"].value == pytest.approx(100 * 2 * 3 / (5 + 4))
    assert score(["f1"], [pair("O", "O")])["f1"].value == 0  # no entities anywhere
    assert score(["f1"], [pair("O B-a", "B-a O")])["f1"].value == 0


def test_accuracy_ignores_padding_and_the_flattering_number_does_not():
    """2 of 5 words are right; padded to 4 words each, 5 of 8."""
    pairs = [pair("A", "A"), pair("A B B B", "B A B A")]
    found = score(["accuracy", "padded"], pairs)
    assert found["accuracy"].value == pytest.approx(100 * 2 / 5)
    assert found["padded"].value == pytest.approx(100 * 5 / 8)
    assert "flattering" in str(found["padded"]) and "flattering" not in str(found["accuracy"])


def test_intents_and_whole_sentences():
    pairs = [
        pair("A B", "A B", "play", "play"),
        pair("A B", "A B", "play", "book"),
        pair("A A", "A B", "play", "play"),
    ]
    found = score(["intent", "sentence"], pairs)
    assert found["intent"].value == pytest.approx(200 / 3) and found["sentence"].value == pytest.approx(100 / 3)


def test_the_terms_of_the_sentences_give_the_score():
    pairs = [pair("B-a O", "B-a B-a", "x", "x"), pair("O B-b O", "O B-b I-b", "x", "y")]
    for name, result in score(["accuracy", "padded", "f1", "precision", "recall", "intent", "sentence"], pairs).items():
        assert bootstrap(result.terms, result.terms, 2).first == pytest.approx(result.value), name
        assert result.examples == 2 and result.higher_is_better


def test_the_tags_one_by_one():
    found = by_tag([pair("A B A", "A A A"), pair("C C", "A B")])
    assert found == [TagScore("A", 4, 2, "B"), TagScore("B", 1, 0, "C")]


def test_a_figure_has_a_bar_for_each_tag(tmp_path):
    scores = [TagScore("NOUN", 40, 30, "$X$"), *(TagScore(f"B-{n}", 1, 1, "") for n in range(50))]
    tag_bars(tmp_path / "tags.svg", scores)
    drawn = (tmp_path / "tags.svg").read_text()
    for words in ("NOUN", "75.0% of 40, mostly mistaken for $X$", "100.0% of 1", "B-38", "11 rarer tags are not shown"):
        assert words in drawn
    assert "B-39" not in drawn
