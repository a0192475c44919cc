"""Addresses such as az://bucket/run are refused, and error messages are short even if a path is long."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import child_environment

import s2sjax
from s2sjax import config, files
from s2sjax.cli import doctor
from s2sjax.config import TextFiles, Tfds
from s2sjax.data.prepare import prepare
from s2sjax.errors import UserError
from s2sjax.report import write as report
from s2sjax.runs import evaluations, train_run
from s2sjax.tasks import Translation

BUCKET = "az://bucket/run"
STORED = "gs://bucket/run"
"""object storage that s2sjax opens, but not for everything"""
PAGE = "from s2sjax.tasks import Translation\nexperiment = Translation('page')\n"
COMMANDS = [
    f"train {BUCKET}.py", f"train page.py --out {BUCKET}", f"train page.py --out={BUCKET}",
    f"train page.py --init {BUCKET}", f"train page.py --data.corpus.folder {BUCKET}",
    f"prepare {BUCKET}.py", f"prepare page.py --out {BUCKET}", f"plan {BUCKET}.py",
    f"evaluate {BUCKET}", f"evaluate run --also {BUCKET}", f"results run {BUCKET}",
    f"results run --curves {BUCKET}.png", f"compare run {BUCKET}", f"compare {BUCKET} run", f"report run {BUCKET}",
    f"report run --out {BUCKET}.html",
    f"decode {BUCKET}", f"decode run --also {BUCKET}", f"decode run --tree {BUCKET}.png", f"serve {BUCKET}",
    f"score {BUCKET}", f"align {BUCKET} b.txt", f"align a.txt b.txt --out {BUCKET}",
    f"align a.txt b.txt --run {BUCKET}",
    f"bench layers --out {BUCKET}", f"launch -- train page.py --out {BUCKET}",
    f"sweep page.py --seed 0,1 --name {BUCKET}", f"import {BUCKET} out", f"import model {BUCKET}",
    f"export run {BUCKET}",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current directory, which must not change."""
    monkeypatch.chdir(tmp_path)
    page = PAGE.replace("'page'", "'page', data=Data(Prepared('ids'))")
    (tmp_path / "page.py").write_text("from s2sjax.config import Data, Prepared\n" + page)
    yield tmp_path
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["page.py"]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_every_command_refuses_an_address(call, here, arguments):
    code, out, error = call(*arguments.split())
    assert (code, out) == (2, "") and error.count("\n") == 1
    assert error.startswith(f"error: {BUCKET}") and "mount it, for example with blobfuse2, and give the folder" in error


@pytest.mark.parametrize(
    "arguments",
    [
        f"train {STORED}.py", f"prepare {STORED}.py", f"plan {STORED}.py", f"align {STORED} b.txt",
        f"align a.txt b.txt --out {STORED}", f"bench layers --out {STORED}", f"serve run --files {STORED}",
    ],
)  # fmt: skip
def test_what_must_be_local_is_refused_in_object_storage(call, here, arguments):
    code, out, error = call(*arguments.split())
    assert (code, out) == (2, "") and error.count("\n") == 1
    assert error.startswith(f"error: {STORED}") and "mount it, for example with gcsfuse, and give the folder" in error


DOORS = {
    "load": s2sjax.load,
    "train": lambda path: s2sjax.train(Translation("page"), path),
    "file": lambda path: s2sjax.train(f"{path}.py"),
    "init": lambda path: train_run._source(Path("new"), path, False),
    "compare": lambda path: s2sjax.compare(path, path),
    "report": lambda path: report.write([path]),
    "report file": lambda path: report.check_out(f"{path}.html"),
    "results": lambda path: evaluations.read_all(path),
    "prepare": lambda path: prepare(config.Data(), path),
    "files": lambda path: s2sjax.train(Translation("page", data=config.Data(TextFiles((str(path),)))), "new"),
    "tfds": lambda path: config.resolve_paths(config.Data(Tfds(data_dir=str(path))), Path()),
}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("door", DOORS)
def test_every_function_refuses_an_address(here, door, kind):
    with pytest.raises(UserError, match=f"{BUCKET}[.a-z]* is not a local path"):
        DOORS[door](kind(BUCKET))


@pytest.mark.parametrize(
    "path, remedy",
    [
        ("s3://bucket/run", "with mount-s3, and give"),
        ("hf://datasets/me", "mount it and give the folder below the mount"),
        ("https://example.org/a.tsv", "download it, and name the file"),
        ("file:///data/run", "write /data/run"),
    ],
)
def test_the_remedy_fits_the_address(path, remedy):
    with pytest.raises(UserError, match=remedy):
        config.local_path(path)


@pytest.mark.parametrize("path", ["runs/a", "/data/a:b", "a:b", "C:/data", "~/a", "."])
def test_local_paths_are_accepted(path):
    assert config.local_path(path) == Path(path)


def test_a_path_of_megabytes_is_one_short_line(call, here):
    for arguments in (["results", "x" * 3_000_000], ["train", "page.py", "--data.corpus.folder", "x" * 3_000_000]):
        code, _, error = call(*arguments)
        assert code == 2 and error.endswith("xxx... has 3,000,000 characters, a path at most 4,096: name a file\n")
        assert len(error) < 200
    code, _, error = call("results", "x" * 1000)  # a file name has at most 255 characters
    assert code == 2 and error.endswith(
        ": File name too long: fix it, or choose another folder, and run the same command again\n"
    )
    assert len(error) < 900


def test_the_start_and_the_remedy_of_a_long_error_are_printed(call, monkeypatch):
    for error in (UserError, OSError):
        text = f"checkpoints/3 cannot be read ({'[source locations=tensorstore/internal.cc] ' * 60}): delete it\n"
        monkeypatch.setattr(doctor, "report", lambda *_, error=error, text=text: (_ for _ in ()).throw(error(text)))
        code, _, said = call("doctor")
        assert code == 2 and said.startswith("error: checkpoints/3 cannot be read ([source") and len(said) < 900
        assert said.count("\n") == 1 and ": delete it" in said


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path):
    """Python decodes such a byte to a lone surrogate, which UTF-8 cannot encode."""
    command = [sys.executable, "-m", "s2sjax.cli.main", "results", b"a\xff"]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: a\\udcff is not a run folder") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "size, words", [(12, "0.0 kB"), (1234, "1.2 kB"), (99_960, "100 kB"), (999_600, "1.0 MB"), (3e12, "3000 GB")]
)
def test_sizes_are_readable(size, words):
    assert files.readable_size(size) == words
