"""Strings of pieces, pen strokes and pixels."""

import sys

import numpy as np
import pytest

from s2sjax.data.signals.handwritten_digits import Patterns, PenDigits, SklearnDigits
from s2sjax.data.signals.signal_examples import Strings, fingerprint, split_by_line
from s2sjax.errors import UserError


def message(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    return str(caught.value)


def test_strings_are_a_function_of_seed_split_and_index():
    names = lambda **options: [pieces for pieces, _ in Strings(**options).draw("train", [range(3), range(3, 6)])]
    few, many = names(train=20), names(train=40)
    assert few == many[:20] and names(train=20, seed=1) != few
    assert all({n // 3 for n in pieces} in ({0}, {1}) for pieces in many)  # from one group
    assert {len(pieces) for pieces in many} == {1, 2, 3, 4, 5}


def test_splits_are_spread():
    splits = [split_by_line(n, 10, 20) for n in range(1000)]
    assert abs(splits.count("test") - 200) < 5 and abs(splits.count("dev") - 100) < 5
    assert set(splits[:20]) == {"train", "dev", "test"}


DIGITS = "8\t47 100\t27 81\t57 37\n2\t0 89\t27 100\t42 75\n1\t0 57\t31 68\t72 90\n" * 10


@pytest.fixture
def pen(tmp_path):
    (tmp_path / "train.tsv").write_text(DIGITS)
    return lambda **options: PenDigits(str(tmp_path), Strings(train=20, dev=5, test=5, longest=2), **options)


def test_pen_strokes_stand_side_by_side(pen):
    for example in pen(gap=0.0, pen_lifts=True).examples("test"):
        frames = example.frames
        assert frames.shape == (3 * len(example.labels), 4)
        assert np.flatnonzero(frames[:, 3]).tolist() == list(range(0, len(frames), 3))
        assert frames[0, 1:3].tolist() == [0, 0]  # no step to the first point
        np.testing.assert_allclose(np.diff(frames[:, 0]), frames[1:, 2])  # y and dy
    assert not any(example.frames[:, 3].any() for example in pen().examples("test"))
    used = {split: {n for e in pen().examples(split) for n in e.name.split("+")} for split in ("train", "dev", "test")}
    assert not used["train"] & used["test"] and not used["train"] & used["dev"]


def test_pen_strokes_from_a_line(pen):
    corpus = pen(pen_lifts=True)
    assert corpus.example_of("0 10 5 20 | 9 20", "line 1").frames.tolist() == [
        [10, 0, 0, 1],
        [20, 5, 10, 0],
        [20, 4, 0, 1],
    ]
    what = "write pairs of numbers `x y`, separated by blanks"
    assert message(corpus.example_of, "0 10 5", "line 1") == f"line 1 has 3 numbers: {what}"
    assert message(corpus.example_of, "0 ten", "line 1") == f"line 1: could not convert string to float: 'ten': {what}"
    assert message(corpus.example_of, "0 nan", "line 1") == "line 1 has a number that is not finite: correct it"
    assert message(corpus.example_of, " | ", "line 1").startswith("line 1 is empty")


def test_a_damaged_file_of_strokes_is_refused(tmp_path):
    corpus = PenDigits(str(tmp_path))
    assert "of Pen-Based Recognition of Handwritten Digits" in message(corpus.examples, "train")
    for line, expected in (
        ("x\t1 2", "line 2: the label 'x' is not in the alphabet, 0 1 2 3 4 5 6 7 8 9: correct it"),
        ("3\t1 2\t3", "line 2 has 3 numbers: write pairs"),
        ("3", "line 2 has 0 numbers"),
    ):
        (tmp_path / "train.tsv").write_text(f"1\t0 0\t1 1\n{line}\n")
        assert expected in message(PenDigits(str(tmp_path)).examples, "train")
    assert message(lambda: PenDigits(dev_percent=60.0, test_percent=40.0)).startswith("data.corpus: dev_percent +")


def test_columns_of_pixels(monkeypatch):
    corpus = SklearnDigits(Strings(train=5, dev=2, test=2, longest=3), gap=1)
    line = " ".join(["0 1 2 3 4 5 6 16"] * 2)
    assert corpus.example_of(line, "line 1").frames.shape == (2, 8)
    assert message(corpus.example_of, line + " 1", "line 1").startswith("line 1 has 17 numbers: write 8 numbers for")
    assert "not from 0 to 16" in message(corpus.example_of, line.replace("16", "17"), "line 1")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert message(corpus.examples, "train").endswith("which is not installed: pip install scikit-learn")


@pytest.mark.slow
def test_numbers_of_pixels():
    pytest.importorskip("sklearn")
    corpus = SklearnDigits(Strings(train=5, dev=2, test=2, longest=3), gap=1)
    for example in corpus.examples("train"):
        digits = len(example.labels)
        assert 8 * digits <= len(example.frames) <= 9 * digits + 1 and example.frames.shape[1] == 8


def test_patterns_and_fingerprints():
    corpus = Patterns(Strings(train=6, longest=2), labels=3, width=2, noise=0.0)
    examples = corpus.examples("train")
    assert fingerprint(examples) == fingerprint(corpus.examples("train")) != fingerprint(examples[1:])
    vectors = {tuple(e.frames[0].tolist()) for e in examples if e.labels[0] == examples[0].labels[0]}
    assert len(vectors) == 1 and corpus.example_of("1 2 3 4", "").frames.shape == (2, 2)
    assert message(lambda: Patterns(labels=11)).startswith("data.corpus.labels is 11")
