"""Suspicious training text is counted; it is not an error."""

from s2sjax import config
from s2sjax.data import pairs, prepare
from s2sjax.data.corpora import readers
from s2sjax.data.data_notes import Notes, Sides, notes, overlaps
from s2sjax.data.examples import Example


def written(path, content):
    path.write_text(content)
    return str(path)


def test_what_is_odd_about_training_text_is_counted(tmp_path):
    tsv = written(tmp_path / "train.tsv", "a\tb\n\tb\na\t \na\tb\tc\t\na\tb\t\t\n \tb\tc\n")
    corpus = config.TextFiles(train=(tsv,))
    remedy = "it teaches the model to write nothing"
    expected = [
        f"{tsv}: 2 of 6 lines have a blank source, the first is line 2",
        f"{tsv}: 1 of 6 lines has a blank target, the first is line 3: {remedy}",
        f"{tsv}: 2 of 6 lines have more than two columns, the first is line 4: each further column is one more target",
    ]
    assert notes(corpus, readers.load(corpus, "train")) == expected
    files = written(tmp_path / "source", "a\nb\n"), written(tmp_path / "target", "\nb\n")
    pair = config.TextFiles(train=files)
    blank = f"has a blank target, the first is line 1: {remedy}"
    assert notes(pair, readers.load(pair, "train")) == [f"{files[0]} and {files[1]}: 1 of 2 lines {blank}"]
    both = config.Mixture((corpus, pair, config.Synthetic(train=2)), tags=("<a>", "<b>", "<c>"))
    assert len(notes(both, readers.load(both, "train"))) == 4
    assert notes(config.Synthetic(train=2), readers.load(config.Synthetic(train=2), "train")) == []
    several = [Example("read", ("R EH D", "R IY D")), Example("", ("b",))]  # CMUdict usually has several targets
    assert notes(config.Cmudict(), several) == ["Cmudict: 1 of 2 examples has a blank source, the first is example 2"]


def test_notes_on_parts_of_a_text_add_up(tmp_path):
    corpora = [
        config.TextFiles(train=(written(tmp_path / f"{n}.tsv", "a\tb\n" * 2 * n + "\tb\na\t \n" * 3 + "a\tb\tc\n"),))
        for n in range(3)
    ]
    both = config.Mixture(tuple(corpora), tags=("<a>", "<b>", "<c>"))
    examples = readers.load(both, "train")
    for cut in range(0, len(examples), 5):
        whole = Notes(both)
        for part in (examples[:cut], examples[cut : cut + 3], examples[cut + 3 :]):
            found = Notes(both)
            list(found.watch(part))
            whole.add(found)
        assert whole.lines() == notes(both, examples) != []


def test_a_prepared_folder_keeps_its_remarks(tmp_path):
    data = config.Data(config.TextFiles(train=(written(tmp_path / "train.tsv", "a\tb\na\t\n"),)))
    done = prepare.prepare(data, tmp_path / "made")
    raw = pairs.remarks_on(data, pairs.read(data))
    prepared = config.replace(data, corpus=config.Prepared(str(tmp_path / "made")))
    assert done.remarks == pairs.remarks_on(prepared, pairs.read(prepared)) == raw != []


def test_examples_in_two_splits_are_counted_exactly_and_normalised():
    train = [Example("a dog", ("ein Hund",)), Example("a cat", ("eine Katze", "die Katze")), Example("", ("x",))]
    dev = [
        Example("a dog", ("ein Hund",)),  # exactly
        Example("A  cat", ("Die\u00a0Katze",)),  # up to case, blanks and Unicode form
        Example("a dog", ("der Hund",)),  # only the source
        Example("a bird", ("ein Vogel",)),
        Example("", ("x",)),  # blank: ignored
    ]
    test = [Example("a bird", ("kein Vogel", "ein Vogel"))]
    assert overlaps(train, {"dev": dev, "test": test}, "sentence") == [
        "2 of 4 dev sentences are also in train, 1 of them with another case, blanks or Unicode form, "
        "1 more has a source of train with another target",
        "1 of 1 test sentences is also in dev",
    ]
    assert overlaps(train, {"dev": dev[2:4]}, "word") == ["1 of 2 dev words has a source of train with another target"]
    assert overlaps(train, {"dev": dev[3:], "test": []}, "word") == overlaps(train, {}, "word") == []


def test_bytes_are_compared_as_they_are_and_texts_without_targets_by_themselves():
    train = [Sides(b"A", ("x",)), Sides("line ")]
    held_out = [Sides(b"a", ("x",)), Sides(b"A", ("X",)), Sides("Line"), Sides("other")]
    assert overlaps(iter(train), {"test": iter(held_out)}, "line") == [
        "2 of 4 test lines are also in train, 2 of them with another case, blanks or Unicode form"
    ]


def test_a_prepared_folder_keeps_how_many_examples_its_splits_share(tmp_path):
    names = [written(tmp_path / name, text) for name, text in (("train", "a\tb\nc\td\n"), ("dev", "A\tb\ne\tf\n"))]
    data = config.Data(config.TextFiles(train=names[:1], dev=names[1:], test=names[1:]))
    done = prepare.prepare(data, tmp_path / "made")
    shared = "of 2 {} examples {} also in {}"
    assert done.remarks == [
        "1 " + shared.format("dev", "is", "train") + ", 1 of them with another case, blanks or Unicode form",
        "1 " + shared.format("test", "is", "train") + ", 1 of them with another case, blanks or Unicode form",
        "2 " + shared.format("test", "are", "dev"),
    ]
