"""Paths of an experiment file are relative to it; those of the command line to the current directory."""

import json
from pathlib import Path

import pytest

from s2sjax import config
from s2sjax.config import Mixture, Prepared, TextFiles, Tfds
from s2sjax.config.paths import resolve_paths, without_folders
from s2sjax.files import relative_path
from s2sjax.runs import folder, run, stored_code
from s2sjax.runs.experiment_file import load_experiment

PAGE = """
from s2sjax.config import *
from s2sjax.tasks import Translation
experiment = Translation(
    "page", data=Data(TextFiles(train=("../data/train.tsv",), dev=("../data/dev.tsv",)), buckets=((6, 6),),
                      batch_tokens=96),
    model=Luong(width=8, embedding_size=4, layers=1), train=Train(steps=1, warmup_steps=1, evaluate_every=0),
    search=Search(beam_size=1),
)
"""


def test_every_path_is_joined_and_empty_ones_are_not():
    files = TextFiles(train=("a.en", "/data/a.de"), dev=("../b.tsv",))
    corpus = Mixture((files, Tfds(data_dir="/data/tfds"), Tfds()))
    found = resolve_paths(config.Data(corpus), Path("/home/me")).corpus.corpora
    assert found[0] == TextFiles(train=("/home/me/a.en", "/data/a.de"), dev=("/home/b.tsv",))
    assert found[1:] == corpus.corpora[1:]
    prepared = resolve_paths(Prepared("ids", files), Path("/home/me"))
    assert (prepared.folder, prepared.corpus.dev) == ("/home/me/ids", ("/home/b.tsv",))
    assert resolve_paths(Prepared("~/ids"), Path("/x")).folder == str(Path.home() / "ids")
    assert without_folders(prepared) == Prepared("ids", TextFiles(train=("a.en", "a.de"), dev=("b.tsv",)))
    assert resolve_paths(Prepared("~nouser/ids"), Path("/x")).folder == "/x/~nouser/ids"  # as in the shell
    plain = config.Data()
    assert resolve_paths(plain, Path("/x")) is plain


def test_a_path_of_a_users_own_corpus():
    @config.settings
    class Lexicon(config.Corpus):
        file: config.FilePath = "lexicon.tsv"
        name: str = "lexicon.tsv"

    assert resolve_paths(Lexicon(), Path("/x")) == Lexicon("/x/lexicon.tsv", "lexicon.tsv")


def test_paths_are_shown_from_the_current_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (
        relative_path(tmp_path / "a/b") == "a/b" and relative_path("a/b") == "a/b" and relative_path("/etc") == "/etc"
    )


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A project with an experiment and its data in two folders."""
    tmp_path /= "home"
    for name in ("experiments", "data", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    for split in ("train", "dev"):
        (tmp_path / f"data/{split}.tsv").write_text("ab\tba\nabb\tbba\n" * 4)
    (tmp_path / "experiments/page.py").write_text(PAGE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_file_is_read_from_any_directory_and_a_field_from_this_one(home, call):
    corpus = load_experiment("../experiments/page.py").data.corpus
    assert corpus.train == (str(home / "data/train.tsv"),)
    code, _, err = call("train", "../experiments/page.py", "--data.corpus.train", "nothing.tsv")
    assert (code, err) == (2, "error: there is no file nothing.tsv: correct data.corpus.train\n")


def start(page: Path, path: Path) -> None:
    experiment = load_experiment(page)
    folder.start_task(experiment, path, experiment.task().read(), stored_code.origin_of(experiment, page))


def test_a_run_finds_its_data_from_any_directory_and_follows_its_project(home, monkeypatch):
    start(home / "experiments/page.py", home / "run")
    page = json.loads((home / "run/config.json").read_text())
    assert page["experiment"]["data"]["corpus"]["dev"] == [str(home / "data/dev.tsv")]
    monkeypatch.chdir("/")
    assert len(run.load(home / "run").task.examples("dev")) == 8
    moved = home.rename(home.with_name("moved"))  # with all that is in it: the same experiment, with new paths
    start(moved / "experiments/page.py", moved / "run")
    assert run.load(moved / "run").experiment.data.corpus.dev == (str(moved / "data/dev.tsv"),)


@pytest.mark.slow
def test_from_python_paths_are_relative_to_the_current_directory(home, monkeypatch):
    monkeypatch.chdir(home / "experiments")
    data = config.Data(TextFiles(train=("../data/train.tsv",)), buckets=((6, 6),), batch_tokens=96)
    started = []
    monkeypatch.setattr(folder, "start_task", lambda experiment, *_, **__: started.append(experiment) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.train(config.replace(load_experiment("page.py"), data=data), home / "elsewhere/run")
    assert started[0].data.corpus.train == (str(home / "data/train.tsv"),)
