"""Pretrained models whose folders, runs and exports are in object storage."""

import subprocess
import sys
from pathlib import Path

import pretrained_folders
import pytest
from conftest import child_environment, refused

import s2sjax
from s2sjax import files
from s2sjax.config import Data, TextFiles, Train
from s2sjax.runs import pretrained
from s2sjax.tasks import Translation

ONE = pytest.mark.parametrize("bucket", ["gs", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
QUIET = {"say": lambda line: None}
LINES = ["Das Haus ist blau.", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of Hugging Face, and the local run that is imported from it."""
    there = pretrained_folders.make("t5", tmp_path_factory.mktemp("t5"))
    return there, pretrained.import_pretrained(there, there.parent / "run", **QUIET)


def contents(folder: Path) -> dict[str, bytes]:
    with files.local_copy(folder) as local:
        return {path.name: path.read_bytes() for path in local.iterdir()}


@ONE
def test_an_import_and_its_export_are_those_of_local_folders(bucket, folder, tmp_path, call):
    there, local = folder
    files.copy_folder(there, files.as_path(f"{bucket}/t5"))
    code, out, _ = call("import", f"{bucket}/t5", f"{bucket}/run")
    assert code == 0 and f"wrote {bucket}/run: translate lines with s2sjax decode {bucket}/run" in out
    imported = s2sjax.load(f"{bucket}/run")
    assert imported.decode(LINES, max_length=8) == local.decode(LINES, max_length=8)
    assert call("export", f"{bucket}/run", f"{bucket}/out")[0] == 0
    pretrained.export(imported, tmp_path / "out")
    assert contents(files.as_path(f"{bucket}/out")) == contents(tmp_path / "out") != {}
    assert "is not empty" in refused(lambda: pretrained.import_pretrained(there, f"{bucket}/t5", **QUIET))
    assert "is not empty" in refused(lambda: pretrained.export(imported, f"{bucket}/run"))
    assert f"{bucket}/run is a run already" in refused(lambda: pretrained.import_pretrained(there, imported.folder))
    (files.as_path(f"{bucket}/t5") / "model.safetensors").write_bytes(b"version https://git-lfs")
    message = refused(lambda: pretrained.import_pretrained(f"{bucket}/t5", f"{bucket}/other", **QUIET))
    assert message.startswith(f"{bucket}/t5/model.safetensors is damaged: it is a pointer of Git LFS")
    assert not files.as_path(f"{bucket}/other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_an_import_that_is_killed_is_no_run_and_is_made_anew(bucket, folder, tmp_path):
    there, local = folder
    stop = (
        "import os, sys\nfrom s2sjax import files\nfrom s2sjax.runs import pretrained\n"
        "copy, left = files.copy_file, [3]\n"
        "def until(source, target):\n"
        "    copy(source, target)\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), 9)\n"
        "files.copy_file = until\n"
        "pretrained.import_pretrained(sys.argv[1], sys.argv[2])\n"
    )
    command = [sys.executable, "-c", stop, str(there), bucket]
    assert subprocess.run(command, env=child_environment(), cwd=tmp_path, capture_output=True).returncode == -9
    assert len(files.as_path(bucket).files()) == 4
    assert f"{bucket} is not a run folder" in refused(lambda: s2sjax.load(bucket))
    imported = pretrained.import_pretrained(there, bucket, **QUIET)
    assert files.BEGUN not in files.as_path(bucket).files()
    assert imported.decode(LINES, max_length=8) == local.decode(LINES, max_length=8)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_a_run_starts_from_an_import_and_keeps_what_its_export_needs(bucket, folder, tmp_path):
    there, _ = folder
    pretrained.import_pretrained(there, f"{bucket}/run", **QUIET)
    (tmp_path / "pairs.tsv").write_text("a house\tein Haus\nhello\thallo\n")
    data = Data(TextFiles((str(tmp_path / "pairs.tsv"),)))
    experiment = Translation("tuned", data=data, train=Train(steps=2, evaluate_every=0), init=f"{bucket}/run")
    tuned = s2sjax.train(experiment, f"{bucket}/tuned")
    assert tuned.experiment.model == s2sjax.load(f"{bucket}/run").experiment.model
    out = pretrained.export(tuned, f"{bucket}/out")
    assert contents(out).keys() == contents(there).keys() and contents(out) != contents(there)
