"""Runs and experiment files of version 0.1 open, and mean the same.

tests/runs/version_0_1.tar.xz has a small run of every task, runs with a cell, a score, a model and a task of their own,
each with an evaluation, and the settings of all experiments, as that version wrote them.
"""

import dataclasses
import importlib
import inspect
import json
import re
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import s2sjax
from s2sjax import config, former_names, models, tasks
from s2sjax.models.families.luong import LuongDecoder
from s2sjax.runs.experiment_file import load_experiment

ROOT = Path(s2sjax.__file__).parents[1]
ARCHIVE = ROOT / "tests/runs/version_0_1.tar.xz"
OWN_CODE = ("cell", "score", "model", "task")


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for file in folder.rglob("*.json"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("REPOSITORY", str(ROOT)), encoding="utf-8")
    return folder / "version_0_1"


def outputs(evaluation: Path) -> list[dict]:
    lines = (evaluation / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def same(found, expected) -> bool:
    """Equal but for the rounding of numbers, which may differ between machines."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str) and re.fullmatch(r"-?\d+\.\d+", expected):  # a number that regression writes
        found, expected = float(found), float(expected)
    return found == pytest.approx(expected, rel=1e-3, abs=1e-4) if isinstance(expected, float) else found == expected


@pytest.mark.filterwarnings("ignore:.* is now:FutureWarning")
@pytest.mark.parametrize("name", [*tasks.TASKS, *OWN_CODE])
def test_a_run_of_version_0_1_opens_and_predicts_the_same(name, stored, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = s2sjax.load(stored / "runs" / name, trust=True)
    (before,) = (stored / "runs" / name / "evaluations").iterdir()
    expected = outputs(before)
    found = run.evaluate(before.name.partition("-")[0])
    assert expected and same(outputs(run.folder / "evaluations" / found.name), expected)


@pytest.mark.slow
def test_a_run_of_version_0_1_continues(stored):
    experiment = s2sjax.load(stored / "runs/translation").experiment
    longer = config.replace(experiment, train=config.replace(experiment.train, steps=8))
    run = s2sjax.train(longer, stored / "runs/translation")
    assert max(run.checkpoints(read_only=True).steps()) == 8


def test_the_settings_of_version_0_1_are_those_of_today(stored):
    """Those of every experiment that has not been changed since."""
    former = json.loads((stored / "experiments.json").read_text(encoding="utf-8"))
    assert len(former) == 59
    for name, value in former.items():
        found = config.from_json(value)
        assert config.from_json(config.to_json(found)) == found
        if (ROOT / "experiments" / name).exists():
            assert type(found) is type(load_experiment(ROOT / "experiments" / name)), name


def test_every_module_that_has_moved_is_there():
    for former, new in former_names.MODULES.items():
        assert importlib.util.find_spec(new), new
        assert not (ROOT / (former.replace(".", "/") + ".py")).exists(), former


def test_a_module_is_found_by_its_former_name_with_a_warning():
    with pytest.warns(FutureWarning, match=r"s2sjax.core.norms is now s2sjax.core.nn.normalization"):
        from s2sjax.core import norms
    from s2sjax.core.nn import normalization

    assert norms is normalization


def test_a_setting_is_found_by_its_former_name_with_a_warning():
    with pytest.warns(FutureWarning, match=r"config.TagData is now s2sjax.tasks.tagging.TagData"):
        found = config.TagData
    assert found is tasks.tagging.TagData
    with pytest.raises(AttributeError, match="TagDate"):
        config.TagDate  # noqa: B018


def test_an_experiment_file_that_imports_all_settings_opens(tmp_path):
    """With a warning for each that it uses: TagData, but not LabelData."""
    file = tmp_path / "old.py"
    file.write_text(
        "from s2sjax.config import *\n"
        "from s2sjax.tasks import Tagging\n"
        "def corpus():\n"
        "    return TaggedFiles(train='train.tsv')\n"
        "experiment = Tagging('old', data=TagData(corpus()), train=Train(steps=3))\n"
    )
    with pytest.warns(FutureWarning) as found:
        experiment = load_experiment(file)
    assert type(experiment.data) is tasks.tagging.TagData and experiment.train == config.Train(steps=3)
    assert {str(one.message).partition(" ")[0] for one in found} == {"config.TagData", "config.TaggedFiles"}
    assert {(one.filename, one.lineno) for one in found} == {(str(file), 1)}


@pytest.mark.parametrize("module", ["s2sjax.evaluate.metrics", "s2sjax.evaluate.metrics.corpus_metrics"])
def test_a_class_is_found_by_its_former_name_with_a_warning(module):
    metrics = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=rf"{module}.Result is now {module}.MetricResult") as found:
        assert metrics.Result is metrics.MetricResult
    assert found[0].filename == __file__
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Results'"):
        metrics.Results  # noqa: B018


def test_a_field_is_set_and_read_by_its_former_name_with_a_warning():
    with pytest.warns(FutureWarning, match=r"Search.beam is now Search.beam_size") as found:
        search = config.Search(beam=7)
    assert found[0].filename == __file__, "the line that has the former name"
    assert search == config.Search(beam_size=7)
    with pytest.warns(FutureWarning, match=r"Search.beam is now Search.beam_size"):
        assert config.replace(search, beam=3).beam_size == 3
    with pytest.warns(FutureWarning, match=r"Search.beam is now Search.beam_size"):
        assert search.beam == 7
    with pytest.raises(AttributeError, match="'Search' object has no attribute 'beem'"):
        search.beem  # noqa: B018


def test_a_class_of_a_user_may_have_former_names():
    @config.settings
    class Words:
        tokens: int = 160

    assert Words(tokens=3).batch_tokens == Words(3).tokens == 3


def test_a_decoder_of_a_user_may_define_start():
    class Mine(LuongDecoder):
        def start(self, memory, steps):
            return super().start(memory, steps)._replace(fed=jnp.ones((2, 8)))

    @config.settings
    class MyLuong(config.Luong):
        decoder_type = Mine

    ids = np.ones((2, 3), np.int32)
    module = models.build(MyLuong(width=8, embedding_size=4), 7, 7)
    with pytest.warns(FutureWarning, match=r"^Mine.start is now Mine.init_state$") as found:
        params = module.init(jax.random.key(0), ids, ids)
    assert found[0].filename == __file__, "the line that has the former name"
    memory = module.apply(params, ids, method="encode")
    assert module.apply(params, memory, 3, method="init_state").fed.all()
    with pytest.warns(FutureWarning, match="^EncoderDecoder.start is now EncoderDecoder.init_state$"):
        assert module.apply(params, memory, 3, method="start").fed.all()
    ours = models.build(config.Luong(width=8, embedding_size=4), 7, 7)
    assert not ours.apply(params, memory, 3, method="init_state").fed.any()


def test_every_former_field_is_a_field_now():
    kinds = [
        *vars(config).values(),
        *(value for task in tasks.TASKS.values() for value in vars(inspect.getmodule(task)).values()),
    ]
    fields = {field.name for kind in kinds if dataclasses.is_dataclass(kind) for field in dataclasses.fields(kind)}
    assert set(former_names.FIELDS.values()) <= fields
