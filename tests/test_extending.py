"""docs/extending.md, typed by a user: every file trains, and its run opens again in another process, elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import zoo
from conftest import child_environment

import s2sjax

ROOT = Path(s2sjax.__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
INPUT = {"corpus": "12\n", "task": "abacab\nccb\n"}


def test_every_section_is_here():
    assert list(FILES) == ["cell", "score", "model", "corpus", "task"]


def in_another_process(program: str, folder: Path, stdin: str = "") -> str:
    environment = child_environment(JAX_PLATFORMS="cpu")
    done = subprocess.run(
        [sys.executable, "-c", program], input=stdin, cwd=folder, env=environment, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN = """
import sys
from s2sjax import cli, load
opened = load(sys.argv[1] if len(sys.argv) > 1 else {run!r})
print("kind", type(opened.experiment).__name__, type(opened.experiment.model).__name__)
cli.main(["evaluate", {run!r}])
cli.main(["decode", {run!r}])
"""


@zoo.each(FILES, quick=("cell", "task"))
def test_a_file_trains_and_its_run_opens_elsewhere(name, tmp_path, call, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / f"{name}.py").write_text(FILES[name], encoding="utf-8")
    monkeypatch.chdir(home)
    code, out, err = call("train", f"{name}.py", "--train.mesh.tensor", "2")
    assert (code, err) == (0, ""), err
    assert f"wrote runs/{name}/checkpoints" in out
    (home / f"{name}.py").unlink()  # the run keeps a copy
    lines = INPUT.get(name, "abc\n")
    said = in_another_process(OPEN.format(run=str(home / "runs" / name)), elsewhere, lines).splitlines()
    assert said[0].startswith("kind ")
    assert any("checkpoint of step" in line for line in said)
    assert len(said) >= 3 + lines.count("\n")


def test_a_class_that_is_nowhere_is_named(tmp_path, call, monkeypatch):
    """The copy of the file is gone: the error says what is missing and what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.py").write_text(FILES["corpus"], encoding="utf-8")
    assert call("train", "corpus.py", "--train.steps", "1", "--train.evaluate_every", "0")[0] == 0
    (tmp_path / "runs/corpus/code/corpus.py").unlink()
    program = "from s2sjax import cli; cli.main(['evaluate', 'runs/corpus'])"
    environment = child_environment()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: runs/corpus/config.json cannot be read (there is no 's2sjax_file_corpus:Squares'"
    )
    assert "add its folder to PYTHONPATH" in done.stderr
