"""Preparing a corpus and decoding with tags, from a user's point of view."""

import json
import sys
from pathlib import Path

import pytest

from s2sjax.training import loop

PAGE = """
from s2sjax.config import *
from s2sjax.tasks import *
parts = tuple(Synthetic(task, train=40, dev=4, test=4, length=4, alphabet=3) for task in ("copy", "reverse"))
mixture = Mixture(parts, temperature=2.0, tags=("<copy>", "<back>"))
experiment = Translation(
    name="both",
    data=Data({corpus}, buckets=((6, 6),), batch_tokens=96),
    model=Luong(width=8, embedding_size=4, layers=1, dropout=0.0),
    train=Train(steps=2, warmup_steps=1, evaluate_every=2, save_every=2),
    evaluate=Evaluate(batch_size=8),
    search=Search(beam_size=1),
    show=("<copy> abc",),
)
"""


@pytest.fixture(autouse=True)
def _in_its_own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def page(tmp_path, corpus: str) -> str:
    path = tmp_path / "page.py"
    path.write_text(PAGE.format(corpus=corpus))
    return str(path)


def test_prepare_says_what_it_wrote_and_how_to_train_on_it(call, tmp_path):
    file = page(tmp_path, "mixture")
    code, out, err = call("prepare", file, "--workers", 1)
    assert (code, err) == (0, "") and Path("prepared/both/prepared.json").is_file()
    wrote, hint = out.strip().splitlines()[-2:]
    assert wrote.startswith("wrote prepared/both, 80 pairs of ")
    assert hint == f"to train on it, write in {file}: data.corpus = config.Prepared('prepared/both')"
    assert "nothing to do: prepared/both, 80 pairs" in call("prepare", file, "--workers", 1)[1]
    assert call("prepare", file, "--workers", 1, "--data.corpus.tags", "<a>", "<b>")[2] == (
        "error: prepared/both contains another corpus: choose another --out, or delete the folder\n"
    )
    assert call("prepare", file, "--workers", 0)[2] == "error: --workers is 0: it must be at least 1\n"
    assert call("prepare", file, "--worker", 2)[2].startswith(
        "error: there is no field --worker: did you mean --workers?"
    )


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_what_is_odd_about_the_text_is_printed_before_training(call, tmp_path, monkeypatch, command):
    Path("train.tsv").write_text("ab\tba\na\t\nab\tba\tbb\n")
    monkeypatch.setattr(loop, "fit", lambda *_, **__: sys.exit(0))  # the loop
    file = page(tmp_path, "TextFiles(train=('train.tsv',), dev=('train.tsv',))")
    code, out, err = call(command, file, "--show", "ab")
    assert (code, err) == (0, "")
    assert "\ntrain.tsv: 1 of 3 lines has a blank target, the first is line 2: it teaches " in out
    assert "\ntrain.tsv: 1 of 3 lines has more than two columns, the first is line 3: each further column " in out


def test_a_page_names_the_folder_that_it_is_prepared_into(call, tmp_path):
    file = page(tmp_path, "Prepared('corpus', mixture)")
    assert call("train", file)[2] == (
        "error: corpus is not prepared: run `s2sjax prepare FILE` first, or correct data.corpus.folder\n"
    )
    code, out, _ = call("prepare", file, "--workers", 1)
    assert code == 0 and "to train on it" not in out and Path("corpus/prepared.json").is_file()
    out = call("prepare", file, "--workers", 1, "--out", tmp_path.parent / "other")[1]  # relative to the file
    assert "data.corpus = config.Prepared('../other')\n" in out
    assert "--workers" in call("prepare", file, "--help")[1]


def test_a_benchmark_that_is_not_there_names_its_neighbour(call):
    assert call("bench", "date")[2] == "error: there is no benchmark 'date': did you mean 'data'?\n"


@pytest.mark.slow
def test_a_mixture_is_prepared_trained_judged_by_corpus_and_decoded_by_tag(call, tmp_path):
    file = page(tmp_path, "Prepared('corpus', mixture)")
    call("prepare", file, "--workers", 1)
    code, out, err = call("train", file)
    assert code == 0 and "\ncorpus 1 <copy>:\n" in out and "\ncorpus 2 <back>:\n" in out, err
    results = json.loads(next(Path("runs/both/evaluations").glob("*/results.json")).read_text())
    assert set(results["corpora"]) == {"corpus 1 <copy>", "corpus 2 <back>"}
    written = call("decode", "runs/both", stdin=b"<copy> abc\n\n<back> abc\n")
    assert written[0] == 0 and written[1].count("\n") == 3
    assert call("decode", "runs/both", "--tag", "<copy>", stdin=b"abc\n\n<back> abc\n") == written
    assert call("decode", "runs/both", stdin=b"<copy> a\nabc\n")[2] == (
        "error: standard input, line 2 does not begin with a tag: "
        "begin it with one of <copy>, <back> and a space, or set --tag\n"
        "error: 1 of 2 lines could not be read and got empty answers: see the errors above\n"
    )
    assert call("score", "runs/both", "--tag", "<2de>", stdin=b"abc\tabc\n")[2] == (
        "error: unknown tag '<2de>': choose from <copy>, <back>\n"
    )
    assert call("score", "runs/both", "--tag", "<copy>", stdin=b"abc\tabc\n")[0] == 0
