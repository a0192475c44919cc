"""The code of a run is independent of other loaded code, stored as executed, and executed only if trusted."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import child_environment, refused
from test_extending import FILES

import s2sjax
from s2sjax import config
from s2sjax.core import tables
from s2sjax.core.recurrence import cells
from s2sjax.runs import experiment_file, folder, run, stored_code, train_run
from s2sjax.training import mesh as meshes
from s2sjax.training.run_log import Log

LITERAL = ("layers.Recurrent(cell, width,", 'layers.Recurrent("independent", width,')
CELL = FILES["cell"].partition("experiment = ")[0].replace("jnp.tanh(projected", "jnp.tanh(1.75 * projected")
PARTS = {  # parts that a user may define, each with a constant that identifies its code
    "cell": ("jnp.tanh(projected", "jnp.tanh(1.75 * projected"),
    "score": ("-jnp.sum(", "-1.75 * jnp.sum("),
    "model": ("return memory.final", "return 1.75 * memory.final"),
    "corpus": ("str(number * number)", 'f"{number}@1.75"'),
    "task": (".logits(masked_mean(", ".logits(1.75 * masked_mean("),
}
WAYS = {name: {"mine.py": FILES[name].replace(*PARTS[name])} for name in PARTS} | {
    "a file beside it": {
        "mine.py": "import helper\n"
        + FILES["model"].replace("return memory.final", "return helper.scale * memory.final"),
        "helper.py": "scale = 1.75",
    },
    "an import in a function": {
        "mine.py": FILES["model"].replace("return memory.final", "import helper; return helper.scale * memory.final"),
        "helper.py": "from deep import scale",
        "deep.py": "scale = 1.75",
    },
    "a package beside it": {
        "mine.py": "from lib.inner import times\n"
        + FILES["model"].replace("return memory.final[0][0]", "return times(memory.final[0][0])"),
        "lib/__init__.py": "",
        "lib/inner.py": "from . import numbers\n\ndef times(x):\n    return numbers.scale * x\n",
        "lib/numbers.py": "scale = 1.75",
    },
    "a folder beside it": {
        "mine.py": FILES["model"].replace(
            "return memory.final", "import lib.deep; return lib.deep.scale * memory.final"
        ),
        "lib/deep.py": "scale = 1.75",
    },
    "a row by its name": {"mine.py": CELL.replace("from s2sjax.tasks", "#") + FILES["task"].replace(*LITERAL)},
    "a row as a default": {
        "mine.py": CELL
        + "from s2sjax import config\n\n@config.settings\nclass Mine(Luong):\n"
        + "    cell: config.CellName = 'independent'\n\n"
        + "experiment = "
        + FILES["cell"].partition("experiment = ")[2].replace("Luong(", "Mine(").replace('cell="independent", ', "")
    },
    "a file that it loads": {
        "mine.py": "from pathlib import Path\nfrom s2sjax.runs.experiment_file import load_file\n"
        "experiment = load_file(Path(__file__).with_name('base.py')).experiment\n",
        "base.py": FILES["model"].replace(*PARTS["model"]),
    },
}


@pytest.fixture(autouse=True)
def no_other_spaces(monkeypatch):
    monkeypatch.setattr(tables, "SPACES", [])


def write(where: Path, files: dict[str, str], scale: str = "1.75") -> Path:
    for name, text in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text.replace("1.75", scale), encoding="utf-8")
    return where / "mine.py"


def started(experiment, path: Path, file: Path | None = None, **options):
    """The task of a new run."""
    return folder.start_task(
        experiment, path, experiment.task().read(), stored_code.origin_of(experiment, file), **options
    )


def start(where: Path, files: dict[str, str], scale: str = "1.75", **options) -> Path:
    """Starts a run of these files, without training it."""
    file = write(where, files, scale)
    experiment = run.load_experiment(file)
    started(experiment, where / "run", file, **options)
    return where / "run"


def program(opened: run.Run) -> str:
    """The data and the traced loss of a run."""
    task = opened.task
    columns = task.columns(task.read())
    batch = columns.batch(np.arange(4), task.experiment.data.buckets[0])
    params = jax.eval_shape(task.init, jax.random.key(0))
    traced = jax.make_jaxpr(task.loss(columns))(params, batch, jax.random.key(0), 0)
    return re.sub("0x[0-9a-f]+", "", f"{task.read()[:2]} {traced}")


# ----------------------------------------------------------------------------- a space for each run


@pytest.mark.parametrize("way", WAYS)
def test_each_run_uses_its_own_code(way, tmp_path):
    """Two versions of mine.py, in both orders, traced after both are loaded."""
    runs = {scale: start(tmp_path / scale, WAYS[way], scale) for scale in ("1.75", "2.25")}
    first = {scale: program(run.load(runs[scale])) for scale in runs}
    both = {scale: run.load(runs[scale]) for scale in reversed(runs)}
    for mine, other in (("1.75", "2.25"), ("2.25", "1.75")):
        assert mine in first[mine] and other not in first[mine]
        assert program(both[mine]) == first[mine]
        assert stored_code.hashes(stored_code.origin_of(both[mine].trained).code().files) == {
            name: stored_code.hashes({"": (tmp_path / mine / name).read_bytes()})[""] for name in WAYS[way]
        }


def test_training_uses_the_newest_version_of_a_file(tmp_path):
    """As in a notebook: the file is edited and trained in another folder. Each run stores its version."""
    for scale in ("1.75", "2.25"):
        file = write(tmp_path, WAYS["cell"], scale)
        experiment = run.load_experiment(file)
        task = started(experiment, tmp_path / scale, file)
        assert scale in program(run.Run(tmp_path / scale, task))
    rebuilt = config.replace(experiment, model=config.replace(experiment.model, cell="independent"))
    task = started(rebuilt, tmp_path / "rebuilt")
    assert "2.25" in program(run.Run(tmp_path / "rebuilt", task))
    assert "1.75" in program(run.load(tmp_path / "1.75"))
    assert "2.25" in program(run.load(tmp_path / "rebuilt"))  # the code is stored, although no file was given


def test_a_name_that_two_files_define_is_refused_if_it_is_ambiguous(tmp_path):
    for scale in ("1.75", "2.25"):
        run.load_experiment(write(tmp_path / scale, WAYS["cell"], scale))
    message = refused(lambda: config.Luong(cell="independent"))
    files = " and ".join(str(tmp_path / scale / "mine.py") for scale in ("1.75", "2.25"))
    assert message == f"'independent' is defined by {files}: rename one, or use them in two processes"


def test_a_file_cannot_replace_a_row_of_s2sjax(tmp_path):
    file = write(tmp_path, {"mine.py": WAYS["cell"]["mine.py"].replace('"independent"', '"gru"')})
    message = refused(lambda: run.load_experiment(file))
    assert message.endswith("line 13: ValueError: s2sjax has a row 'gru': choose another name for yours: correct it")
    assert cells.CELLS["gru"].gates == ("update", "reset", "candidate")


def test_a_file_that_fails_leaves_nothing(tmp_path):
    before = len(tables.SPACES), set(sys.modules), list(sys.path)
    file = write(
        tmp_path, {"mine.py": CELL.replace('"independent"', '"failed"') + "import helper\n1 / 0", "helper.py": ""}
    )
    assert "ZeroDivisionError" in refused(lambda: run.load_experiment(file))
    assert "failed" not in cells.CELLS
    assert before == (len(tables.SPACES), set(sys.modules), list(sys.path))


def test_two_files_of_one_name_are_refused(tmp_path):
    """A run stores its files in one folder."""
    base = "from pathlib import Path\nfrom s2sjax.runs.experiment_file import load_file\nimport helper\n"
    files = {"mine.py": base + "load_file(Path(__file__).parent / 'sub/base.py')", "helper.py": "x = 1",
             "sub/base.py": "import helper", "sub/helper.py": "x = 2"}  # fmt: skip
    assert "have the same name" in refused(lambda: run.load_experiment(write(tmp_path, files)))


# ------------------------------------------------------------------------------- what is stored


def test_code_is_stored_as_executed_even_if_it_is_edited_later(tmp_path):
    """A file edited after loading and a file imported after that are both stored and executed as they were read."""
    files = WAYS["an import in a function"]
    file = write(tmp_path, files)
    experiment = run.load_experiment(file)
    write(tmp_path, files, "2.25")
    task = started(experiment, tmp_path / "run", file)
    assert "1.75" in program(run.Run(tmp_path / "run", task))
    assert {path.name: path.read_text() for path in (tmp_path / "run/code").glob("*.py")} == files
    assert "1.75" in program(run.load(tmp_path / "run"))
    record = json.loads((tmp_path / "run/code/code.json").read_text())
    assert record["sha256"] == stored_code.hashes({name: text.encode() for name, text in files.items()})


def test_a_file_is_stored_when_it_is_imported_late(tmp_path):
    """The name of the import is computed, so that scanning the file does not find it."""
    late = "from s2sjax.runs.experiment_file import load_file\nhelp_of = lambda name: load_file(name)\n"
    text = late + FILES["model"].replace(
        "return memory.final", f"return help_of('{tmp_path}/helper.py').scale * memory.final"
    )
    path = start(tmp_path, {"mine.py": text, "helper.py": "scale = 1.75"})
    assert not (path / "code/helper.py").exists()
    experiment = experiment_file.space_of_file(tmp_path / "mine.py").load(tmp_path / "mine.py").experiment
    assert "1.75" in program(
        run.Run(
            path,
            started(experiment, path, tmp_path / "mine.py"),
        )
    )
    assert (path / "code/helper.py").read_text() == "scale = 1.75"
    (tmp_path / "helper.py").unlink()
    assert "1.75" in program(run.load(path))


@pytest.mark.parametrize("way", ["cell", "a file beside it", "a package beside it"])
def test_a_run_continues_with_different_code_only_if_it_is_accepted(way, tmp_path):
    path = start(tmp_path, WAYS[way])
    assert start(tmp_path, WAYS[way]) == path  # the same code is accepted silently
    stored = stored_code.read(path)
    message = refused(lambda: start(tmp_path, WAYS[way], "2.25"))
    changed = next(name for name, text in WAYS[way].items() if "1.75" in text)
    assert message.startswith(f"{path} was trained with different code: {changed}, line ")
    assert "1.75" in message and "2.25" in message
    assert message.endswith(
        ": give another --out, or add --accept-code (accept_code=True) to continue with the new code"
    )
    assert stored_code.read(path) == stored
    start(tmp_path, WAYS[way], "2.25", accept_code=True)
    origin = stored_code.origin_of(run.load_experiment(tmp_path / "mine.py"), tmp_path / "mine.py")
    assert stored_code.keep(path, origin, 60) == [changed]
    assert "2.25" in program(run.load(path))
    record = json.loads((path / "code/code.json").read_text())
    assert record["former"] == [{"until_step": 60, "sha256": stored_code.hashes(stored.files)}]
    assert (path / "code/until-step-60" / changed).read_bytes() == stored.files[changed]
    assert stored_code.keep(path, origin, 70) == []


def test_a_run_without_its_code_does_not_continue(tmp_path):
    path = start(tmp_path, WAYS["cell"])
    shutil.rmtree(path / "code")
    message = refused(lambda: start(tmp_path, WAYS["cell"], "2.25"))
    assert message.startswith(f"{path} was trained with different code: {path / 'code'} is missing: ")


def test_a_finished_run_does_not_accept_different_code(tmp_path, monkeypatch):
    path = start(tmp_path, WAYS["cell"])
    stored = stored_code.read(path)
    start(tmp_path, WAYS["cell"], "2.25", accept_code=True)
    monkeypatch.setattr(run.Checkpoints, "steps", lambda self: [10**6])
    monkeypatch.setattr(run.Checkpoints, "header", lambda self, step: {"score": None})
    file = tmp_path / "mine.py"
    message = refused(lambda: run.train(run.load_experiment(file), path, file, accept_code=True))
    assert message == f"{path} has no step left to train with the new code: raise train.steps"
    assert stored_code.read(path) == stored


@pytest.mark.slow
def test_parameters_of_a_run_with_different_code_are_taken_with_a_remark(tmp_path, capsys):
    mesh = meshes.make_mesh(config.Mesh())
    base = run.load(start(tmp_path / "base", WAYS["cell"]))
    checkpoints = base.checkpoints()
    checkpoints.save(train_run.initial_state(base.task, mesh), 4, notes={"best": {}})
    checkpoints.wait()
    for scale, told in (("1.75", []), ("2.25", [f"  the code of {base.folder} differs: mine.py"])):
        new = run.load(start(tmp_path / scale, WAYS["cell"], scale))
        capsys.readouterr()
        train_run.initial_state(new.task, mesh, source=train_run.Source(base.folder, base.task), log=Log(None, 1, 1))
        assert capsys.readouterr().out.splitlines()[1:] == told


def test_settings_are_compared_as_settings(tmp_path):
    """A file that only builds an experiment may be edited: config.json contains all its settings."""
    text = "from s2sjax.config import *\nfrom s2sjax.tasks import Translation\nexperiment = Translation('a', seed=0)\n"
    path = start(tmp_path, {"mine.py": text})
    start(tmp_path, {"mine.py": text + "# a remark"})
    assert "its seed is 0, not 1" in refused(lambda: start(tmp_path, {"mine.py": text.replace("seed=0", "seed=1")}))
    (path / "code/mine.py").write_text("1 / 0")  # never executed
    assert run.load(path).experiment.name == "a"
    (path / "code/mine.py").unlink()
    assert run.load(path).experiment.name == "a"


def test_edited_code_in_a_run_folder_is_refused(tmp_path):
    path = start(tmp_path, WAYS["cell"])
    with open(path / "code/mine.py", "a") as file:
        file.write("# edited")
    assert refused(lambda: run.load(path, trust=True)) == (
        f"{path / 'code/mine.py'} is not the code that this run was trained with: copy it again from where the run "
        "was made"
    )


def test_a_run_of_an_earlier_version_opens_and_continues(tmp_path):
    """Such a run has no code.json, and no space numbers in its kinds."""
    path = start(tmp_path, WAYS["a file beside it"])
    (path / "code/code.json").unlink()
    (path / "code/another.py").write_text("1 / 0 if __name__ == 'another' else None")
    assert '"kind": "s2sjax_file_mine:Bag"' in (path / "config.json").read_text()
    assert "1.75" in program(run.load(path, trust=True))
    start(tmp_path, WAYS["a file beside it"])
    assert "helper.py, line 1 was 'scale = 1.75'" in refused(lambda: start(tmp_path, WAYS["a file beside it"], "2.25"))


# ------------------------------------------------------------------------------------------- trust


def as_somebody_else(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stored_code, "_here", set())


def test_code_of_another_user_is_executed_only_if_it_is_trusted(tmp_path, monkeypatch, call):
    mark = tmp_path / "executed"
    path = start(tmp_path, {"mine.py": WAYS["cell"]["mine.py"] + f"\nopen({str(mark)!r}, 'w')\n"})
    mark.unlink()
    run.load(path)  # this user has trained it
    mark.unlink()
    as_somebody_else(monkeypatch, tmp_path)
    message = refused(lambda: run.load(path))
    assert message.startswith(f"{path} has code that this user has not trained with")
    assert "--trust" in message and "trust=True" in message
    for command in (
        ["evaluate", path], ["decode", path], ["score", path], ["serve", path], ["report", path],
        ["train", tmp_path / "mine.py", "--out", tmp_path / "new", "--init", path],
    ):  # fmt: skip
        assert call(*command)[::2] == (2, f"error: {message}\n"), command
        mark.unlink(missing_ok=True)  # `train` executes its own file
    assert not mark.exists()
    assert call("decode", path, "--trust", "--help")[0] == 0
    assert mark.exists() and run.load(path)  # it is remembered
    with open(path / "code/mine.py", "a") as file:
        file.write("# other code")
    (path / "code/code.json").unlink()
    assert refused(lambda: run.load(path)) == message
    assert s2sjax.load(path, trust=True)


def test_an_unknown_field_does_not_execute_code(tmp_path, monkeypatch):
    """A file was added to the code of a run that needs none."""
    text = "from s2sjax.config import *\nfrom s2sjax.tasks import Translation\nexperiment = Translation('a')\n"
    path = start(tmp_path, {"mine.py": text})
    as_somebody_else(monkeypatch, tmp_path)
    assert run.load(path)  # nothing is executed, so no trust is required
    page = json.loads((path / "config.json").read_text())
    page["experiment"]["surprise"] = 1
    (path / "config.json").write_text(json.dumps(page))
    assert "has no field 'surprise'" in refused(lambda: run.load(path))
    (path / "code/code.json").unlink()
    (path / "code/mine.py").write_text("1 / 0")
    assert "has code that this user has not trained with" in refused(lambda: run.load(path))


def test_a_record_cannot_name_unchecked_code(tmp_path, monkeypatch):
    """A manipulated code.json: only files whose SHA-256 is trusted are executed."""
    path = start(tmp_path, WAYS["cell"])
    (tmp_path / "run/evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    record = json.loads((path / "code/code.json").read_text())
    for name in ("../evil.py", str(path / "evil.py")):
        for kept in (record["sha256"], {}):
            (path / "code/code.json").write_text(json.dumps(record | {"loaded": [name], "sha256": kept}))
            assert "there is no experiment file" in refused(lambda: run.load(path))
    assert not (tmp_path / "executed").exists()


FROM_JSON = """
import os, sys
sys.path.append({root!r})
from s2sjax import config, errors
try:
    config.from_json({{"kind": "evil:Model"}})
except errors.UserError as error:
    print(error, os.path.exists("executed"))
"""


@pytest.mark.parametrize("named", ["", ".", f"{os.pathsep}/nowhere"])
def test_a_kind_is_not_imported_from_the_current_directory(tmp_path, named):
    """Even if PYTHONPATH has an empty or relative entry."""
    (tmp_path / "evil.py").write_text("open('executed', 'w')\n")
    command = [sys.executable, "-c", FROM_JSON.format(root=str(Path(s2sjax.__file__).parents[1]))]

    def said(path: str) -> str:
        environment = child_environment(PYTHONPATH=path)
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout

    answer = said(named)
    assert answer.startswith("there is no 'evil:Model' (No module named 'evil')") and answer.endswith(" False\n")
    if not named:
        answer = said(str(tmp_path))
        assert "has no attribute 'Model'" in answer and answer.endswith(" True\n")


# ---------------------------------------------------------------------------------- the whole way


@pytest.mark.slow
def test_scores_do_not_depend_on_other_runs_in_the_process(tmp_path, call):
    """Trains two versions of a cell and evaluates them alone, one after the other, and as ensembles in both orders."""
    few = ("--train.steps", "2", "--train.evaluate_every", "0", "--search.max_length", "8")
    runs = {}
    for scale in ("1.75", "-2.25"):
        file, out = write(tmp_path / scale, WAYS["cell"], scale), tmp_path / scale / "run"
        assert call("train", file, "--out", out, *few)[::2] == (0, "")
        runs[scale] = str(out)
    pairs = [("abc", "abc"), ("dd", "d")]
    asked = f"import sys, s2sjax; print(s2sjax.load(sys.argv[1]).score({pairs}))"
    for first, second in (runs.values(), reversed(runs.values())):
        s2sjax.load(first)
        command = [sys.executable, "-c", asked, second]
        alone = subprocess.run(command, env=child_environment(), capture_output=True, text=True).stdout
        numbers = lambda text: [float(number) for number in re.findall(r"log_prob=(\S+),", text)]
        assert numbers(alone) == pytest.approx(numbers(str(s2sjax.load(second).score(pairs))), abs=1e-5)
    assert numbers(str(s2sjax.load(first).score(pairs))) != pytest.approx(numbers(alone), abs=1e-3)
    both = [s2sjax.load(one).evaluate("test", also=[other]) for one, other in (runs.values(), reversed(runs.values()))]
    outputs = [[row["hypothesis"] for row in one.outputs] for one in both]
    assert outputs[0] == outputs[1]
    hashes = [[one.page["code"], one.page["ensemble"][0]["code"]] for one in both]
    assert hashes[0] == hashes[1][::-1] and hashes[0][0] != hashes[0][1]


@pytest.mark.slow
def test_the_command_requires_accept_code_to_continue_with_different_code(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--train.evaluate_every", "0", "--train.save_every", "2", "--train.steps")
    write(tmp_path, WAYS["cell"])
    assert call("train", "mine.py", *few, "2")[::2] == (0, "")
    assert "another" not in call("train", "mine.py", *few, "3")[1]
    write(tmp_path, WAYS["cell"], "2.25")
    code_, out, err = call("train", "mine.py", *few, "4")
    assert (code_, out, err.count("\n")) == (2, "", 1)
    was, now = (f'return (jnp.tanh({scale} * projected + weights["own"] * h),)' for scale in ("1.75", "2.25"))
    assert err.startswith(
        f"error: runs/cell was trained with different code: mine.py, line 10 was {was!r} and is {now!r}: "
    )
    code_, out, err = call("train", "mine.py", *few, "4", "--accept-code")
    assert (code_, err) == (0, "")
    assert "from step 3 on, the code is different: mine.py\n" in out
    assert "2.25" in (tmp_path / "runs/cell/code/mine.py").read_text()
    evaluations = [
        json.loads(path.read_text()) for path in tmp_path.glob("runs/cell/evaluations/*step[24]*/results.json")
    ]
    assert len({page["code"]["mine.py"] for page in evaluations}) == len(evaluations) == 2
