"""Runs the code of docs/python.md, and tests its statements about errors, caching, and corpora in memory."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import child_environment, refused

import s2sjax
from s2sjax import config, tasks
from s2sjax.evaluate.prediction.translator import Translator
from s2sjax.tasks.regression.settings import Fibonacci, Windows

PAGE = (Path(s2sjax.__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
PYPROJECT = Path(s2sjax.__file__).parents[1] / "pyproject.toml"
PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


pytestmark = pytest.mark.slow  # all need the run that the page trains


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> tuple[Path, dict]:
    """The folder in which the code of the page was executed, and the names that it defined."""
    folder, names = tmp_path_factory.mktemp("page"), {}
    everything = jax.devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(jax, "devices", lambda *_: everything[:1])
        patch.setattr(jax, "device_count", lambda *_: 1)
        for block in PROGRAM:
            exec(compile(block, "python.md", "exec"), names)
    return folder, names


@pytest.fixture
def one_device(monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)


def test_the_page_runs_and_its_files_are_there(typed):
    folder, names = typed
    kinds = {"attention.png": b"\x89PNG", "tree.svg": b"<?xml", "curves.pdf": b"%PDF"}
    assert all((folder / name).read_bytes().startswith(magic) for name, magic in kinds.items())
    assert names["attention"].weights.shape == (len(names["attention"].target), len(names["attention"].source))
    assert names["attention"]._repr_png_().startswith(b"\x89PNG")
    narrow, wide = names["narrow"], names["wide"]
    assert re.fullmatch(r"test-step\d+-beam4", narrow.name) and re.fullmatch(r"test-step\d+-beam8", wide.name)
    assert names["comparison"]["cer"].first == pytest.approx(narrow["cer"].value)
    assert len(narrow.outputs) == 15 and len(names["outputs"]) == 3


def test_parameters_and_programs_are_cached(typed, one_device, monkeypatch, capsys):
    folder, _ = typed
    made, restored = [], []
    build, restore = Translator.__init__, s2sjax.runs.run.Run._restore
    monkeypatch.setattr(Translator, "__init__", lambda *a, **k: made.append(1) or build(*a, **k))
    monkeypatch.setattr(s2sjax.runs.run.Run, "_restore", lambda *a: restored.append(1) or restore(*a))
    run = s2sjax.load(folder / "runs/backwards")
    one = run.decode("abc")
    assert isinstance(one, str) and run.decode(["abc", ""]) == [one, ""]
    assert run.decode(["abc"], beam_size=4) == [one]  # the beam of the experiment
    run.score([("abc", "cba")])
    run.evaluate("dev")
    assert (len(made), len(restored)) == (1, 1)
    run.decode("abc", beam_size=2)
    run.nbest(["abc"], 2, beam_size=2)
    run.decode(["abd"], beam_size=2)
    assert (len(made), len(restored)) == (3, 1)
    assert capsys.readouterr() == ("", "")


def test_lines_may_come_from_a_generator_and_unknown_characters_are_reported(typed, one_device):
    run = typed[1]["run"]
    assert run.decode(line for line in ("abc", "cba")) == run.decode(["abc", "cba"])
    assert run.score(pair for pair in [("abc", "cba")]) == run.score([("abc", "cba")])
    unknown = "1 of 1 line contains characters the model has never seen, such as 'x': line 1"
    with pytest.warns(UserWarning, match=unknown):
        run.decode("axc")
    with pytest.warns(UserWarning, match=unknown):
        run.score([("abc", "xba")])


def test_score_agrees_with_the_search(typed, one_device):
    run = s2sjax.load(typed[0] / "runs/backwards")
    best, second = run.nbest(["abc"], 2)[0]
    assert best.score >= second.score and best.text != second.text
    found = run.score([("abc", best.text)])[0]
    assert found.log_prob == pytest.approx(best.log_prob, abs=1e-4) and found.tokens == len(best.ids)


@pytest.mark.parametrize(
    "action, message",
    [
        (lambda run: run.decode(["a"], beams=3), "Search has no field 'beams': did you mean 'beam_size'?"),
        (lambda run: run.decode(["a"], beam_size="3"), "Search.beam_size is '3': it must be a whole number"),
        (lambda run: run.decode(["a", 5]), "line 2 is 5: give strings"),
        (lambda run: run.decode(5), "5 is not a list: give a list"),
        (lambda run: run.nbest("abc", 2), "'abc' is not a list: give a list"),
        (lambda run: run.evaluate("dev", average=-1), "average is -1: it must be a whole number"),
        (lambda run: run.nbest(["a"], 9), "search.nbest 9 is not from 1 to search.beam_size 4"),
        (lambda run: run.score(["a\tb"]), "pair 1 is 'a\\tb': give (source, target) pairs of strings"),
        (lambda run: run.score([("a", "b"), ("a", 3)]), "pair 2 is ('a', 3): give (source, target) pairs of strings"),
        (lambda run: run.align([("a",)]), "pair 1 is ('a',): give (source, target) pairs of strings"),
        (lambda run: run.evaluate("tset"), "there is no split 'tset': choose from train, dev, test"),
        (lambda run: run.attention("a").save("a.gif"), "a.gif is not a supported image format: use .png, .svg or .pdf"),
        (lambda run: run.attention("a", "self"), "of is 'self': choose cross, encoder or decoder"),
        (lambda run: run.attention("a", "encoder", 1), "this model has no self-attention in its encoder"),
        (lambda run: run.attention("a", layer=2), "layer is 2: this attention has the layers 1, choose one of them"),
        (lambda run: run.attention_heads(" "), "the line is blank, so nothing attends to it: write some text"),
        (lambda run: run.tree("a", beam_size=1), "only beam search has a tree"),
        (lambda run: run.evaluate("test", also=["nowhere"]), "nowhere is not a run folder"),
        (lambda run: s2sjax.compare(run, "nowhere"), "nowhere is not a run folder"),
        (lambda run: s2sjax.compare(run, run, "train"), "has evaluations of"),
        (lambda run: s2sjax.train("nowhere.py"), "there is no experiment file nowhere.py"),
        (lambda run: run.evaluations()[0]["bleu"], "has no bleu: it has exact, cer"),
    ],
)
def test_error_messages_are_one_line(typed, one_device, action, message):
    run = s2sjax.load(typed[0] / "runs/backwards")
    assert message in refused(lambda: action(run))


def test_a_run_that_does_not_generate_text_predicts(tmp_path, one_device, capsys):
    experiment = tasks.Regression(
        "fib", data=Windows(Fibonacci(60), steps=4), train=config.Train(steps=2, evaluate_every=0)
    )
    run = s2sjax.train(experiment, tmp_path / "fib")
    (one, two) = run.decode(["1 1 2 3", "5 8 13 21"])
    assert run.decode("1 1 2 3") == one and np.isfinite(two.value) and run.decode([]) == []
    assert refused(lambda: run.decode("1 1 nan 3")) == "line 1 has a number that is not finite: correct it"
    examples = run.task.examples("test")
    outputs = run.evaluate().outputs
    assert [float(row["hypothesis"]) for row in outputs] == pytest.approx([o.value for o in run.decode(examples)])
    assert [float(row["references"][0]) for row in outputs] == [window.target for window in examples]
    assert "has no search settings: leave out beam" in refused(lambda: run.decode(["1 1 2 3"], beam_size=3))
    assert "does not translate text" in refused(lambda: run.attention("1 1 2 3"))
    assert "has no self-attention to show" in refused(lambda: run.attention("1 1 2 3", "encoder"))
    assert refused(lambda: run.decode(["1 1 2"])).startswith("line 1 has 3 numbers")


# ------------------------------------------------------------------------------ corpora in memory


def test_a_run_stores_examples_in_memory_and_does_not_print_them(typed, one_device, tmp_path):
    folder, names = typed
    run = names["run"]
    assert "abc" not in repr(names["corpus"]) + repr(names["experiment"]) + repr(run) + repr(run.task)
    page = json.loads((folder / "runs/backwards/config.json").read_text())["experiment"]["data"]["corpus"]
    assert re.fullmatch(r"100 examples, sha256 [0-9a-f]{64}", page["train"]) and page["kind"] == "InMemory"
    recorded = config.replace(names["experiment"].train, schedule_steps=names["experiment"].train.steps)
    assert run.experiment == config.replace(names["experiment"], train=recorded)
    assert [(e.source, *e.targets) for e in run.task.examples("test")] == names["pairs"][110:]
    copy = shutil.copytree(folder / "runs/backwards", tmp_path / "copy")
    shutil.rmtree(copy / "data")
    alone = s2sjax.load(copy)
    assert alone.decode("abc") == run.decode("abc")
    assert refused(lambda: alone.evaluate("test")) == (
        "the test examples of InMemory are not stored here, only their fingerprint: give the examples again"
    )
    other = config.replace(names["experiment"], data=config.replace(
        names["experiment"].data, corpus=config.InMemory(train=names["pairs"][:99], dev=names["pairs"][100:110])
    ))  # fmt: skip
    message = refused(lambda: s2sjax.train(other, folder / "runs/backwards"))
    assert "contains another experiment: its data.corpus." in message and len(message) < 400


def test_a_damaged_copy_is_reported(typed, tmp_path):
    copy = shutil.copytree(typed[0] / "runs/backwards", tmp_path / "copy")
    (file,) = (copy / "data").glob("test-*.jsonl")
    whole = file.read_text()
    file.write_text(whole.replace("a", "e", 1))
    assert "has other examples than this run: copy it again" in refused(lambda: s2sjax.load(copy))
    file.write_text(whole[:-5])
    assert "cannot be read" in refused(lambda: s2sjax.load(copy))


@pytest.mark.exhaustive
def test_a_type_checker_knows_the_return_types_of_the_public_functions(tmp_path):
    (tmp_path / "user.py").write_text(
        "import s2sjax\n"
        "reveal_type(s2sjax.load('x'))\n"
        "reveal_type(s2sjax.train('x.py'))\n"
        "reveal_type(s2sjax.compare('a', 'b'))\n"
        "s2sjax.load(3)\n"
    )
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir", os.devnull, "user.py"]
    found = subprocess.run(command, cwd=tmp_path, env=child_environment(), text=True, capture_output=True).stdout
    assert re.findall(r'type is "(.*)"', found) == [
        "s2sjax.runs.run.Run",
        "s2sjax.runs.run.Run",
        "s2sjax.runs.comparison.Comparison",
    ], found
    assert 'user.py:5: error: Argument 1 to "load" has incompatible type "int"' in found
    assert (
        "py.typed"
        in tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]["s2sjax"]
    )
