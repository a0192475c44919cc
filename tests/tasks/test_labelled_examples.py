"""Examples with labels: their splits, and errors that name the file and the line."""

import numpy as np
import pytest

from s2sjax import config
from s2sjax.config import InMemory, TextFiles
from s2sjax.data.assets import Labels, Statistics, load_json
from s2sjax.errors import UserError
from s2sjax.tasks.classification import labelled_examples
from s2sjax.tasks.classification.labelled_examples import Labelled
from s2sjax.tasks.classification.settings import LabelledFrames, LabelledText


def written(folder, content, name="train.tsv"):
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder)


def error_of(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts_of(corpus, split="train"):
    return [(example.source, example.label) for example in labelled_examples.load(corpus, split)]


def test_texts_and_labels_from_named_columns(tmp_path):
    folder = written(tmp_path, "What is it ?\tDESC\tdef\nWho ?\tHUM\tind\n")
    coarse = LabelledText(folder, columns=("text", "label", "fine"))
    assert texts_of(coarse) == [("What is it ?", "DESC"), ("Who ?", "HUM")]
    assert texts_of(config.replace(coarse, columns=("text", "coarse", "label")))[1] == ("Who ?", "ind")
    assert not coarse.has("dev") and config.replace(coarse, dev_percent=10.0).has("dev")


def test_a_share_of_train_is_part_of_a_larger_one_and_dev_stays_whole(tmp_path):
    lines = "".join(f"word {n}\t{n % 2}\n" for n in range(400))
    corpus = LabelledText(written(tmp_path, lines), dev_percent=20.0)
    shares = {percent: texts_of(config.replace(corpus, train_percent=percent)) for percent in (5.0, 50.0, 100.0)}
    assert {*shares[5.0]} < {*shares[50.0]} < {*shares[100.0]} and shares[100.0] == texts_of(corpus)
    assert 0.4 < len(shares[50.0]) / len(shares[100.0]) < 0.6
    assert texts_of(config.replace(corpus, train_percent=5.0), "dev") == texts_of(corpus, "dev")
    none = config.replace(corpus, train_percent=0.001)
    assert error_of(lambda: texts_of(none)).endswith("no train examples: raise data.corpus.train_percent")


def test_a_held_out_part_has_no_text_of_train(tmp_path):
    lines = [f"word {n % 150}\t{n % 2}\n" for n in range(300)] + [f"WORD  {n}\t1\n" for n in range(150)]
    corpus = LabelledText(written(tmp_path, "".join(lines)), dev_percent=20.0, test_percent=20.0)
    parts = {split: texts_of(corpus, split) for split in ("train", "dev", "test")}
    assert sum(map(len, parts.values())) == len(lines)
    found = {split: {" ".join(text.lower().split()) for text, _ in part} for split, part in parts.items()}
    assert not found["train"] & found["dev"] and not found["train"] & found["test"] and not found["dev"] & found["test"]
    assert len(found["dev"]) > 15 and len(found["test"]) > 15
    assert texts_of(config.replace(corpus, split_seed=1), "dev") != parts["dev"]


def test_frames_one_a_field(tmp_path):
    corpus = LabelledFrames(written(tmp_path, "1\t1 2\t3 4.5\n2\t-1 0\n"))
    first, second = labelled_examples.load(corpus, "train")
    assert first.source.tolist() == [[1, 2], [3, 4.5]] and first.label == "1"
    assert second.source.shape == (1, 2)


def test_pairs_from_memory_text_files_and_a_corpus_of_ones_own(tmp_path):
    pairs = [("a good film", "1"), ("bad", "0")]
    assert texts_of(InMemory(train=pairs)) == pairs
    path = written(tmp_path, "a good film\t1\nbad\t0\n") + "/train.tsv"
    assert texts_of(TextFiles(train=(path,))) == pairs

    class Mine(config.Corpus):
        def examples(self, split):
            yield Labelled(np.ones((2, 3)), "x")
            yield from [] if split == "train" else ["not an example"]

    assert labelled_examples.load(Mine(), "train")[0].where == "train example 1"
    assert error_of(lambda: labelled_examples.load(Mine(), "dev")).startswith(
        "dev example 2 is 'not an example': yield"
    )


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\n", "line 1 has 1 of 2 columns: write text, a tab, label"),
        ("a\t1\n \t1\n", "line 2: the text is empty: write one, or remove the line"),
        ("a\t1\nb\t\n", "line 2: the label is empty: write one, or remove the line"),
    ],
)
def test_a_line_that_is_no_labelled_text_is_refused(tmp_path, content, message):
    found = error_of(lambda: labelled_examples.load(LabelledText(written(tmp_path, content)), "train"))
    assert found == f"{tmp_path}/train.tsv, {message}"


@pytest.mark.parametrize(
    "content, message",
    [
        ("1\t1 2\t3\n", "line 1, frame 2 has 1 numbers, frame 1 has 2: write equally many"),
        ("1\t1 x\n", "line 1, frame 1: could not convert string to float: 'x': write numbers, separated by blanks"),
        ("1\t1 inf\n", "line 1, frame 1 has a number that is not finite: correct it"),
        ("1\t1 2\t\n", "line 1, frame 2 is empty: write numbers, separated by blanks"),
        ("1\t1 2\n2\t1 2 3\n", "line 2 has frames of 3 numbers, {}, line 1 of 2: write equally many"),
        ("1\n", "line 1 has 1 of 2 columns: write label, a tab, first frame, a tab, one field for each frame"),
    ],
)
def test_a_line_that_is_no_sequence_of_frames_is_refused(tmp_path, content, message):
    path = f"{tmp_path}/train.tsv"
    found = error_of(lambda: labelled_examples.load(LabelledFrames(written(tmp_path, content)), "train"))
    assert found == f"{path}, " + message.format(path)


def test_a_missing_file_and_an_empty_part(tmp_path):
    corpus = LabelledText(str(tmp_path), origin="SST-2 (Socher et al. 2013)")
    found = error_of(lambda: labelled_examples.load(corpus, "train"))
    assert found.endswith("train.tsv (each line: text, a tab, label) of SST-2 (Socher et al. 2013): correct " + FOLDER)
    part = LabelledText(written(tmp_path, "a\t1\n"), dev_percent=0.01)
    message = "the corpus has no dev examples: raise data.corpus.dev_percent"
    assert error_of(lambda: labelled_examples.load(part, "dev")) == message


FOLDER = "data.corpus.folder"


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: LabelledText(columns=("text", "class")), "data.corpus.columns is ('text', 'class'): it must name one"),
        (lambda: LabelledText(dev="dev.tsv", dev_percent=5.0), "data.corpus has both dev and dev_percent"),
        (lambda: LabelledFrames(dev_percent=60.0, test_percent=40.0), "data.corpus: dev_percent + test_percent is 100"),
        (lambda: LabelledText(train=""), "data.corpus.train is empty"),
        (lambda: LabelledText(train_percent=0.0), "data.corpus.train_percent is 0.0: it must be above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(build, message):
    assert error_of(build).startswith(message)


def test_assets_are_read_as_they_were_written(tmp_path):
    names = Labels.of(["b", "a", "b"])
    assert names.names == ("a", "b") and names.number("b", "") == 1
    assert error_of(lambda: names.number("c", "dev.tsv, line 7")) == (
        "dev.tsv, line 7: label 'c' does not occur in the training data: use a, b"
    )
    statistics = Statistics.of([np.array([[1.0, 0.1], [3.0, 0.1], [2.0, 0.1]])])  # the mean of three 0.1 is not 0.1
    assert statistics.apply(np.array([[2.0, 6.0]])).tolist() == [[0.0, 0.0]]
    for asset in (names, statistics):
        asset.save(tmp_path, "asset")
        again = load_json(type(asset), tmp_path, "asset")
        assert again == asset and again.fingerprint == asset.fingerprint
    (tmp_path / "asset.json").write_text("[1]")
    assert "cannot be read" in error_of(lambda: load_json(Labels, tmp_path, "asset"))
