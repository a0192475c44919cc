"""Gold alignments and the alignment error rate."""

import pytest

from s2sjax.align import gold
from s2sjax.align.gold import Gold
from s2sjax.errors import UserError


def test_alignment_error_rate_precision_and_recall():
    """Sums over all sentences, not means: A 4, S 3, A & S 2, A & P 3."""
    links = [{(0, 0), (1, 1), (2, 2)}, {(0, 1)}]
    answers = [Gold({(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)}), Gold({(0, 0)}, {(0, 0), (0, 1)})]
    found = gold.score(links, answers)
    assert found.aer == pytest.approx(100 * (1 - (2 + 3) / (4 + 3)))
    assert (found.precision, found.recall) == (pytest.approx(75), pytest.approx(200 / 3))
    assert str(found) == "AER 28.6%  precision  75.0%  recall  66.7%"


def test_sure_links_count_as_possible_ones_and_nothing_is_divided_by_zero():
    assert gold.score([{(0, 0)}], [Gold({(0, 0)}, set())]).aer == 0
    assert gold.score([set()], [Gold(set(), set())])[:3] == (0, 0, 0)
    assert gold.score([set()], [Gold({(0, 0)}, {(0, 0)})])[:3] == (100, 0, 0)


def test_links_can_be_read_and_written():
    assert gold.parse("0-0 2?10\t", "") == Gold({(0, 0)}, {(0, 0), (2, 10)})
    assert gold.pharaoh({(10, 2), (9, 1), (0, 3)}) == "0-3 9-1 10-2"
    assert gold.pharaoh(set()) == "" and gold.parse("", "") == Gold(set(), set())


@pytest.mark.parametrize(
    "lines, message",
    [
        (["0-0", "0:1"], "g, line 2: '0:1' is not a link: write 0-1 for a sure and 0?1 for a possible link"),
        (["0-0 -1-2"], "g, line 1: '-1-2' is not a link"),
        (["0-0 ²-1"], "g, line 1: '²-1' is not a link"),
        (["a\tb"], "g, line 1 has 2 columns, not 1 or 3: write on every line either links, or source<tab>target<tab>"),
        (["a\tb\t0-0", "0-0"], "g, line 2 has 1 columns, not 3"),
        (["0-0", "a\tb\t0-0"], "g, line 2 has 3 columns, not 1"),
        (["a\tb c\t0-1 1?0"], "g, line 1: the link 1-0 is outside the sentences of 1 and 2 words: count words from 0"),
    ],
)
def test_an_odd_gold_file_is_refused_with_its_line(lines, message):
    with pytest.raises(UserError) as refused:
        gold.read(lines, "g")
    assert str(refused.value).startswith(message)


def test_as_many_alignments_as_gold_alignments():
    with pytest.raises(UserError, match="there are 1 alignments but 2 gold alignments"):
        gold.score([set()], [Gold(set(), set())] * 2)
    with pytest.raises(UserError, match="g has 1 lines, but there are 2 sentence pairs"):
        gold.read(["0-0"], "g").check([("a", "b")] * 2)
