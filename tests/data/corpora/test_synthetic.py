"""Synthetic tasks, whose targets are verified by other means."""

import re
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from itertools import pairwise

import pytest

from s2sjax import config
from s2sjax.data.corpora import synthetic
from s2sjax.errors import UserError

TASKS = ("copy", "reverse", "sort", "addition", "dates")


def corpus(task, **changes):
    return config.Synthetic(task=task, **{"train": 300, "dev": 60, "test": 60, "length": 6, **changes})


def made(task, split="train", **changes):
    return [(example.source, *example.targets) for example in synthetic.make(corpus(task, **changes), split)]


def test_letters():
    for source, target in made("copy"):
        assert target == source
    for source, target in made("reverse"):
        assert [target[-1 - i] for i in range(len(source))] == list(source) and len(target) == len(source)
    for source, target in made("sort"):
        assert all(a <= b for a, b in pairwise(target))
        assert {c: source.count(c) for c in source} == {c: target.count(c) for c in target}


def test_letters_keep_to_their_length_and_alphabet():
    sources = [source for source, _ in made("copy", alphabet=3, length=5)]
    assert {len(source) for source in sources} == {1, 2, 3, 4, 5}
    assert set("".join(sources)) == set("abc")


def test_lengths_are_uniform():
    lengths = [len(source) for source, _ in made("copy", train=4000, length=8, alphabet=26)]
    counts = [lengths.count(n) for n in range(1, 9)]
    assert min(counts) > 400 and max(counts) < 600  # 500 expected, standard deviation 21


def test_sums():
    for source, target in made("addition", length=4):
        left, right = source.split("+")
        assert int(left) + int(right) == int(target)
        assert all(number == str(int(number)) and len(number) <= 4 for number in (left, right, target[:4]))
    digits = {len(number) for source, _ in made("addition", length=4) for number in source.split("+")}
    assert digits == {1, 2, 3, 4}


READERS = (  # how Python's own parser reads a form, once ordinal endings, "the" and "of" are gone
    "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y", "%d-%b-%Y", "%A, %B %d, %Y",
    "%A %d %B, %Y", "%a %d %b %Y", "%Y %B %d", "%Y/%m/%d",
)  # fmt: skip


def readings(source):
    """All days that a written date can mean."""
    plain = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", source.replace("the ", "").replace("of ", ""))
    for form in READERS:
        with suppress(ValueError):
            yield datetime.strptime(plain, form).date()


def test_dates_read_back_in_one_way_only():
    for source, target in made("dates", train=600):
        assert {day.isoformat() for day in readings(source)} == {target}, source
        year = int(target[:4])
        assert 1900 <= year <= 2099


def test_a_written_weekday_is_the_right_one():
    seen = 0
    for source, target in made("dates", train=600):
        first = source.replace(",", "").split(" ")[0]
        for number, day in enumerate(synthetic.DAYS):
            if first in (day, day[:3]):
                assert date.fromisoformat(target).weekday() == number
                seen += 1
    assert seen > 100


def test_every_form_of_date_has_its_own_look():
    day = date(2021, 3, 3)
    written = [synthetic.write_date(day, form) for form in synthetic.DATE_FORMS]
    assert len(set(written)) == len(written) >= 8
    assert "the 3rd of March 2021" in written and "Wednesday, March 3, 2021" in written and "3 Mar 2021" in written
    ordinals = " ".join(synthetic._ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31))
    assert ordinals == "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 30th 31st"


# ---------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize("task", TASKS)
def test_example_i_depends_on_nothing_but_task_seed_split_and_i(task):
    few, many = corpus(task, train=20), corpus(task, train=60, dev=1, test=1)
    assert synthetic.make(few, "train") == synthetic.make(many, "train")[:20]
    assert synthetic.make(few, "train") != synthetic.make(replace(few, seed=1), "train")


@pytest.mark.parametrize("task", TASKS)
def test_no_source_is_in_two_splits(task):
    tiny = dict(length=2, alphabet=8)  # 72 strings of letters: many repeats, still no leak
    assert len(made(task, "dev", **tiny)) == 60
    train, dev, test = ({source for source, _ in made(task, split, **tiny)} for split in ("train", "dev", "test"))
    assert train and dev and test
    assert not train & dev and not train & test and not dev & test


def test_a_space_too_small_for_three_splits_is_refused():
    with pytest.raises(UserError) as caught:
        synthetic.make(corpus("copy", length=1, alphabet=1), "dev")
    assert str(caught.value) == (
        "data.corpus: copy of length 1 has too few distinct sources for 60 dev examples: raise data.corpus.length"
    )


def test_the_first_examples_are_written_in_stone():
    """A change here changes the data of every recorded experiment."""
    assert [made(task, train=1)[0] for task in TASKS] == [
        ("gdfacg", "gdfacg"),
        ("dhfg", "gfhd"),
        ("gj", "gj"),
        ("34041+861", "34902"),
        ("1980/02/11", "1980-02-11"),
    ]
