"""docs/extending.md, typed by a user: every file trains, and its run opens again in another process, elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import zoo
from conftest import child_environment

import s2sjax

ROOT = Path(s2sjax.__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
FILES = {name: text for name, text in PROGRAMS.items() if not name.startswith("test_")}
INPUT = {"corpus": "12\n", "task": "abacab\nccb\n"}


def test_every_section_is_here():
    assert list(FILES) == ["cell", "mixer", "score", "model", "corpus", "task"]
    assert PROGRAMS.keys() - FILES == {f"test_{name}" for name in FILES}


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
from s2sjax import load
from s2sjax.cli import main
opened = load(sys.argv[1] if len(sys.argv) > 1 else {run!r})
print("kind", type(opened.experiment).__name__, type(opened.experiment.model).__name__)
main.main(["evaluate", {run!r}])
main.main(["decode", {run!r}])
"""


@zoo.each(FILES, quick=("cell",), rare=set(FILES) - {"cell"})
def test_a_file_trains_and_its_run_opens_elsewhere(name, tmp_path, call, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / f"{name}.py").write_text(FILES[name], encoding="utf-8")
    monkeypatch.chdir(home)
    code, out, err = call("train", f"{name}.py", "--train.mesh.tensor", "2", "--train.evaluate_every", "0")
    assert (code, err) == (0, ""), err
    assert f"wrote runs/{name}/checkpoints" in out
    (home / f"{name}.py").unlink()  # the run keeps a copy
    lines = INPUT.get(name, "abc\n")
    said = in_another_process(OPEN.format(run=str(home / "runs" / name)), elsewhere, lines).splitlines()
    assert said[0].startswith("kind ")
    assert any("checkpoint of step" in line for line in said)
    assert len(said) >= 3 + lines.count("\n")


@pytest.mark.slow
def test_their_own_tests_pass(tmp_path):
    """As a user runs them, beside the files."""
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    run = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"
    count = sum(text.count("\ndef test_") for text in PROGRAMS.values())
    assert in_another_process(run, tmp_path).startswith("." * count)  # it ends with an error if one fails


@pytest.mark.slow
def test_the_task_tells_its_dev_loss(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(FILES["task"], encoding="utf-8")
    code, out, err = call("train", "task.py", "--train.steps", "2", "--train.evaluate_every", "2")
    assert (code, err) == (0, "")
    assert re.search(r"^step 2  accuracy \S+  dev_loss \d\S+$", out, re.MULTILINE)


@pytest.mark.slow
def test_a_class_that_is_nowhere_is_named(tmp_path, call, monkeypatch):
    """The copy of the file is gone: the error says what is missing and what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.py").write_text(FILES["corpus"], encoding="utf-8")
    assert call("train", "corpus.py", "--train.steps", "1", "--train.evaluate_every", "0")[0] == 0
    (tmp_path / "runs/corpus/code/corpus.py").unlink()
    program = "from s2sjax.cli import main; main.main(['evaluate', 'runs/corpus'])"
    environment = child_environment()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    remedy = "copy it back, or copy the run again from where it was made"
    assert done.stderr == f"error: runs/corpus/code/corpus.py is missing: {remedy}\n"


@pytest.mark.slow
def test_files_beside_an_experiment_are_kept_too(tmp_path, call, monkeypatch):
    """A plain import of a file beside it: both are copied, and the run opens elsewhere."""
    monkeypatch.chdir(tmp_path)
    cell, _, rest = FILES["cell"].partition("experiment = ")
    (tmp_path / "my_cell.py").write_text(cell, encoding="utf-8")
    page = "from my_cell import *\n\nexperiment = " + rest
    (tmp_path / "page.py").write_text(page, encoding="utf-8")
    code, _, err = call("train", "page.py", "--train.steps", "1", "--train.evaluate_every", "0")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "runs/cell/code").iterdir()) == [
        "code.json",
        "my_cell.py",
        "page.py",
    ]
    for name in ("my_cell.py", "page.py"):
        (tmp_path / name).unlink()
    opened = in_another_process("import s2sjax; print(s2sjax.load('runs/cell').experiment.model.cell)", tmp_path)
    assert opened == "independent\n"


@pytest.mark.slow
def test_a_refused_start_leaves_the_code_of_a_run_alone(tmp_path, call, monkeypatch):
    """The class has changed so that the checkpoint does not fit it: the copy that fits it stays."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(FILES["model"], encoding="utf-8")
    few = ("--train.steps", "1", "--train.evaluate_every", "0")
    assert call("train", "model.py", *few)[0] == 0
    dense = "layers.Dense(self.inputs, self.config.width, self.dtype)"
    changed = FILES["model"].replace(dense, dense.replace("dtype)", "dtype, bias=False)"))
    assert changed != FILES["model"]
    (tmp_path / "model.py").write_text(changed, encoding="utf-8")
    code, _, err = call("train", "model.py", *few)
    assert code == 2 and "runs/model was trained with different code: model.py, line 21 was" in err
    code, _, err = call("train", "model.py", *few, "--train.steps", "2", "--accept-code")
    assert code == 2 and "use the model and data it was trained with" in err
    assert (tmp_path / "runs/model/code/model.py").read_text(encoding="utf-8") == FILES["model"]


MISTAKES = {
    "no task": ("task", "def task(self)", "def tusk(self)", "Classification defines no task()"),
    "no metrics": ("task", "def metrics(", "def measures(", "Classification.task(): Can't instantiate abstract class"),
    "no lines": (
        "task",
        "    dev_examples: int = 100\n",
        "",
        "Classification has no evaluate.dev_examples, which every",
    ),
    "tuples": ("corpus", "Example(str(number), (str(number * number),))", "(1, 2)", "Squares.examples yields (1, 2): "),
    "nothing": ("corpus", "range(self.most)", "range(0)", "the corpus has no train examples: check Squares.examples"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_part_that_is_missing_is_named_without_a_traceback(mistake, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, right, wrong, message = MISTAKES[mistake]
    assert right in FILES[file]
    (tmp_path / "page.py").write_text(FILES[file].replace(right, wrong), encoding="utf-8")
    code, out, err = call("train", "page.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {message}")
