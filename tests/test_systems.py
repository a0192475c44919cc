"""docs/systems/comparison.md is made from sweeps of the files of experiments/systems and of multi30k_systems.py."""

import importlib
import json
import runpy
import shutil
from pathlib import Path

import pytest

import s2sjax
from s2sjax import config
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.runs.sweeps import sweep_grid
from s2sjax.tasks import Translation

ROOT = Path(__file__).parents[1]
SYSTEMS = ROOT / "experiments" / "systems"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("systems_table")


def test_the_tables_of_the_page_are_those_of_the_stored_scores(page):
    """The lines of code are counted when the page is made."""
    store, text = json.loads(page.STORE.read_text("utf-8")), page.PAGE.read_text("utf-8")
    rows = lambda text: [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line[:1] == "|"]
    for data in page.SYSTEMS:
        written = rows(text.split(f"<!-- {data} -->")[1])
        assert [row[:3] + row[4:] for row in written] == [row[:3] + row[4:] for row in rows(page.table(data, store))]
        assert len(written) == 2 + len(page.SYSTEMS[data])


def test_a_table_has_the_seeds_that_are_there_and_says_how_many(page):
    run = lambda score: {"weights": 1000, "attention": "no", "scores": {"bleu_tokenized": score}}
    store = {"translation": {name: {"0": run(1.0), "4": run(3.0)} for name in page.SYSTEMS["translation"]}}
    del store["translation"]["cho"]["4"]
    lines = page.table("translation", store).splitlines()
    assert lines[2].endswith("| 1,000 | no | 2 | 2.00 ± 1.41 |")
    assert lines[3].endswith("| 1,000 | no | 1 | 1.00 |")
    del store["translation"]["cho"]
    assert page.table("translation", store) is None and page.table("pronunciation", store) is None


def test_the_files_that_the_command_names_are_the_systems_of_the_table(page):
    assert "s2sjax sweep experiments/systems/*.py --seed 0,1,2,3,4 --name systems-pronunciation\n" in page.__doc__
    assert {file.stem for file in SYSTEMS.glob("*.py")} == {*page.SYSTEMS["pronunciation"]}


def test_the_script_trains_every_model_with_five_seeds(page, monkeypatch):
    calls = []
    monkeypatch.setattr(s2sjax, "sweep", lambda *given: calls.append(given))
    runpy.run_path(str(ROOT / "experiments" / "multi30k_systems.py"), run_name="__main__")
    ((file, grid, folder),) = calls
    members = sweep_grid.members(grid)
    assert len(members) == 5 * len(page.SYSTEMS["translation"]) and folder == "runs/systems-translation"
    found = sweep_grid.apply(load_experiment(file), members["model=gnmt,seed=4"])
    assert (found.model, found.seed) == (page.MODELS["gnmt"], 4)


@pytest.mark.slow
def test_the_scores_of_finished_members_are_collected(page, tmp_path):
    """One member is not finished. The systems of a sweep are experiments, or models of one experiment."""
    one = Translation(
        "one",
        data=config.Data(
            config.Synthetic("copy", train=60, dev=6, test=6, length=6), buckets=((8, 8),), batch_tokens=128, prefetch=0
        ),
        model=config.RNNsearch(width=8, embedding_size=4),
        train=config.Train(steps=2, learning_rate=1e-3, warmup_steps=1, evaluate_every=0, save_every=2),
        search=config.Search(beam_size=2),
        evaluate=config.Evaluate(metrics=("per", "wer", "bleu_tokenized"), target_unit="word", samples=0),
    )
    s2sjax.sweep({"rnnsearch": one}, {"seed": [0, 3]}, tmp_path / "systems-pronunciation")
    for file in (tmp_path / "systems-pronunciation/experiment=rnnsearch,seed=3").glob("evaluations/*/results.json"):
        file.unlink()
    shutil.copytree(tmp_path / "systems-pronunciation", tmp_path / "systems-translation")
    members = tmp_path / "systems-translation/sweep.json"
    members.write_text(members.read_text().replace('"experiment"', '"model"'))
    store = {"pronunciation": {"rnnsearch": {"0": "replaced", "1": "kept"}}}
    page.collect(tmp_path, store)
    found, other = store["pronunciation"]["rnnsearch"], store["translation"]["rnnsearch"]
    assert {*found} == {"0", "1"} and found["1"] == "kept" and {*other} == {"0"}
    assert {*found["0"]["scores"]} == {"per", "wer"} and {*other["0"]["scores"]} == {"bleu_tokenized"}
    assert other["0"]["attention"] == "yes" and other["0"]["weights"] > 100
