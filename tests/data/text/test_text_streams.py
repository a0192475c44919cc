"""A text as parallel streams: each token is predicted once per epoch, from the token before it."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from s2sjax import config
from s2sjax.core.special_tokens import EOS, PAD, UNK
from s2sjax.data.batching.batch_plan import make_batch
from s2sjax.data.text import text_streams
from s2sjax.datasets.folder import data_folder
from s2sjax.errors import UserError

DATA = data_folder()


def planned(total=23, rows=3, steps=4, seed=None):
    columns = text_streams.Segments(np.arange(10, 10 + total, dtype=np.int32), rows, steps, seed)
    return columns, text_streams.InOrder(columns.lengths, ((steps,),), rows * steps, 0, 1)


def test_a_step_has_the_next_segment_of_each_stream():
    columns, plan = planned(11, 2, 3)
    assert plan.steps_per_epoch == 2 and plan.first_uses(0, 9) == [0]
    first, second, third = (make_batch(columns, plan, step) for step in range(3))
    assert first["targets"].tolist() == [[10, 11, 12], [16, 17, 18]]
    assert first["inputs"].tolist() == [[EOS, 10, 11], [15, 16, 17]]
    assert second["targets"].tolist() == [[13, 14, 15], [19, 20, PAD]]
    assert second["inputs"].tolist() == [[12, 13, 14], [18, 19, PAD]]
    assert first["start"].all() and not second["start"].any()
    for name in first:
        np.testing.assert_array_equal(third[name], first[name])


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("total, rows, steps", [(23, 3, 4), (24, 3, 4), (7, 7, 2), (9, 4, 5), (5, 1, 2)])
def test_every_token_is_predicted_once_an_epoch_from_the_one_before_it(total, rows, steps, seed):
    columns, plan = planned(total, rows, steps, seed)
    for epoch in (0, 1):
        batches = [make_batch(columns, plan, epoch * plan.steps_per_epoch + t) for t in range(plan.steps_per_epoch)]
        targets = np.concatenate([batch["targets"] for batch in batches], axis=1)
        inputs = np.concatenate([batch["inputs"] for batch in batches], axis=1)
        real = targets != PAD
        assert sorted(targets[real]) == list(range(10, 10 + total))
        assert ((inputs != PAD) == real).all()
        before = np.where(targets == 10, EOS if seed is None else 9 + total, targets - 1)
        assert (inputs[real] == np.where(inputs == EOS, EOS, before)[real]).all()
        assert (inputs[:, 1:] == targets[:, :-1])[real[:, 1:] & (inputs[:, 1:] != EOS)].all()  # a stream continues


def test_epochs_begin_at_other_places_that_the_seed_decides():
    columns, _ = planned(seed=5)
    begins = [columns.begin(epoch) for epoch in range(8)]
    assert begins == [columns.begin(epoch) for epoch in range(8)] and len(set(begins)) > 4
    assert begins != [planned(seed=6)[0].begin(epoch) for epoch in range(8)]


def test_lines_become_ids_and_blank_lines_are_line_ends(tmp_path):
    file = tmp_path / "text.txt.gz"
    file.write_bytes(gzip.compress(b" a  b \n\n <unk> <eos> c\n"))
    lines = text_streams.read_lines(str(file), "data.train")
    assert lines == ["a b", "", "<unk> <eos> c"]
    words = text_streams.vocabulary(config.PlainText(), lines)
    ids, offsets = text_streams.encode(words, [*lines, "d"])
    a, b, c = (words.encode(word)[0] for word in "abc")
    assert ids.tolist() == [a, b, EOS, EOS, UNK, UNK, c, EOS, UNK, EOS] and offsets.tolist() == [0, 3, 4, 8, 10]
    letters = text_streams.vocabulary(config.PlainText(unit="characters"), lines)
    assert len(text_streams.encode(letters, lines)[0]) == 4 + 1 + 14


@pytest.mark.parametrize(
    "path, content, message",
    [
        ("", None, "data.dev is empty: name a text file with one sentence a line"),
        ("none.txt", None, "there is no file none.txt (text, one sentence a line) of the Treebank: correct data.dev"),
        ("empty.txt", b"", "empty.txt is empty: put examples in it, or change data.dev"),
        ("latin.txt", b"a\n\xff\n", "latin.txt, line 2: not UTF-8: convert the file to UTF-8"),
        ("bad.gz", b"no", "bad.gz cannot be read (Not a gzipped file (b'no')): correct data.dev"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(path, content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(UserError) as caught:
        text_streams.read_lines(path, "data.dev", "the Treebank")
    assert str(caught.value) == message


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "train, dev, unit, counts",
    [
        ("ptb/ptb.train.txt", "ptb/ptb.valid.txt", "words", (929_589, 73_760, 10_000)),
        ("wikitext2/wiki.train.txt.gz", "wikitext2/wiki.valid.txt", "words", (2_088_628, 217_646, 33_278)),
        ("ptb/ptb.train.txt", "ptb/ptb.valid.txt", "characters", (5_017_482, 393_042, 50)),
    ],
)
def test_the_published_texts_have_their_published_counts(train, dev, unit, counts):
    if not (DATA / train).exists():
        pytest.skip(f"there is no data:{train}")
    texts = [text_streams.read_lines(str(DATA / file), "data.train") for file in (train, dev)]
    vocabulary = text_streams.vocabulary(config.PlainText(unit=unit), texts[0])
    ids = [text_streams.encode(vocabulary, lines)[0] for lines in texts]
    assert (len(ids[0]), len(ids[1]), len(np.unique(ids[0]))) == counts
    assert np.isin(ids[1], ids[0]).all()
