"""The evaluations of a run folder: names, files, the table of results, and comparisons."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from s2sjax import config
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, score
from s2sjax.runs import comparison, evaluations


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    return tmp_path / "run"


REFERENCES = [("K AE T",), ("D AA G", "D AO G Z"), ("B ER D",)]


def store(run, hypotheses, references=REFERENCES, metrics=("per", "exact"), split="test", step=30, **options):
    """Writes an evaluation of hypotheses, as `evaluate` does."""
    results = score(metrics, hypotheses, references)
    made = evaluations.make(run, split, step, results, settings="beam 4", noun="word", **options)
    records = [
        {"source": f"word {n % 3}", "hypothesis": one, "references": list(known)}
        for n, (one, known) in enumerate(zip(hypotheses, references))
    ]
    return evaluations.write(made, records, results)


A, B = ["K AE T", "D AO G", "B"], ["K AE T", "D AA G", "B ER D"]


# ------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "options, name",
    [
        (dict(settings="beam 4"), "test-step3-beam4"),
        (dict(average=5), "test-step3-average5"),
        (dict(ensemble=[("large", 9), ("odd name", 2)], settings="beam 1"),
         "test-step3-with-large-step9-with-odd_name-step2-beam1"),
        (dict(settings="5 samples", changed={"search.sampling.top_p": 0.9}), "test-step3-5samples-top_p0.9"),
        (dict(settings="beam 4", changed={"search.length_penalty": "gnmt", "search.alpha": 0.8}),
         "test-step3-beam4-alpha0.8-length_penalty-gnmt"),
        (dict(changed={"evaluate.metrics": ["chrf", "wer"]}), "test-step3-metrics-chrf+wer"),
        (dict(changed={"search.prefix": "ja, also"}), "test-step3-prefix-02574c"),
    ],
)  # fmt: skip
def test_a_name_says_what_was_evaluated_and_how(options, name):
    assert name_of("test", 3, **options) == name


def name_of(split, step, **options):
    return evaluations.make(Path("run"), split, step, score(("per",), ["K"], [("K",)]), **options).name


def test_long_names_are_cut_and_differ():
    assert name_of("dev", 30) == "dev-step30"
    names = [name_of("test", 3, ensemble=[(f"{'x' * 90}{end}", 1)], settings="beam 4") for end in "ab"]
    assert names[0] != names[1] and all(len(name) == 100 for name in names)


def test_no_evaluation_overwrites_another(run):
    first = store(run, A)
    assert first.name == "test-step30-beam4" and first["per"].value == pytest.approx(100 * 3 / 9)
    assert store(run, A).path == first.path  # repeated
    other = store(run, B)
    assert other.name == "test-step30-beam4-2"
    assert store(run, A).path == first.path and store(run, B).path == other.path
    assert [one.name for one in evaluations.read_all(run)] == [first.name, other.name]  # the newest last
    opened = evaluations.read(first.path)
    assert (opened.results, str(opened)) == (first.results, str(first))
    assert opened.outputs[1] == {
        "source": "word 1", "hypothesis": "D AO G", "references": ["D AA G", "D AO G Z"],
        "terms": {"per": [100.0, 3], "exact": [0.0, 1.0]},
    }  # fmt: skip
    assert str(first).splitlines() == [
        "test, checkpoint of step 30, beam 4:", "PER 33.33%  exact 33.33%  on 3 words",
    ]  # fmt: skip


def test_an_interrupted_evaluation_leaves_its_name_free(run):
    first = store(run, A)
    (first.path / "results.json").unlink()
    assert evaluations.read_all(run) == []
    assert store(run, B).path == first.path


def test_nan_and_infinity_are_stored_as_null(run):
    results = {"mse": MetricResult("mse", float("nan"), False, None, 1, "MSE", "{:.4g}", [(float("nan"), 1.0)])}
    made = evaluations.make(run, "dev", 1, results)
    path = evaluations.write(made, [{"source": "", "hypothesis": "nan", "references": []}], results).path
    assert "NaN" not in (path / "results.json").read_text() + (path / "outputs.jsonl").read_text()
    assert np.isnan(evaluations.read(path)["mse"].value)


def test_results_lists_the_evaluations_of_every_run(run, call):
    found = store(run, A)
    store(run, B, step=60, average=3, ensemble=[("large", 9)], changed={"search.alpha": 0.9})
    code, out, err = call("results", run, run)
    header, one, two, *again = out.splitlines()
    assert (code, err, again) == (0, "", [one, two])
    assert header.split() == ["evaluation", "split", "checkpoint", "search", "metrics", "date", "(UTC)"]
    assert one.startswith(f"{found.path} ") and "step 30 " in one and "PER 33.33%  exact 33.33%" in one
    assert "mean of 3 to step 60" in two and "beam 4, with large" in two
    rows = json.loads(call("results", run, "--json")[1])
    assert [row["metrics"]["per"] for row in rows] == [pytest.approx(100 / 3), 0.0]
    assert rows[1]["ensemble"] == [{"run": "large", "step": 9}]
    code, out, err = call("results", "--help")
    assert (code, err) == (0, "") and out.startswith("usage: s2sjax results ")


def test_missing_results(run, call):
    code, _, err = call("results", run)
    assert code == 0 and err == f"{run} has no evaluations yet: s2sjax evaluate {run}\n"
    assert call("results", run / "nowhere")[2] == (
        f"error: {run / 'nowhere'} is not a run folder (it has no config.json): name another folder\n"
    )
    assert call("results")[0] == 2
    assert call("results", run, "--curves", "x.gif")[2] == (
        "error: --curves x.gif is not a supported image format: use .png, .svg or .pdf\n"
    )
    assert "metrics.jsonl does not exist" in call("results", run, "--curves", "x.png")[2]
    path = store(run, A).path
    (path / "results.json").write_text("{")
    assert call("results", run)[2].startswith(f"error: {path}/results.json cannot be read (")


# ----------------------------------------------------------------------------------- comparisons


def test_two_evaluations_are_compared_metric_by_metric(run, call):
    a, b = store(run, A * 20, REFERENCES * 20), store(run, B * 20, REFERENCES * 20, step=60)
    code, out, err = call("compare", a.path, b.path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [f"A  {a.path}", f"B  {b.path}", "test, 60 words, 1,000 resamples"]
    assert lines[4].split() == ["metric", "A", "B", "B", "-", "A", "p"]
    assert lines[5].startswith("PER     33.33% ± ") and lines[5].endswith("-33.33  0.001  B is better")
    assert lines[6].startswith("exact   33.33% ± ") and lines[6].endswith("+66.67  0.001  B is better")
    assert "by PER, B is better on 40, worse on 0, equal on 20" in lines
    at = lines.index("better:      word 2")  # the most improved first, without duplicates
    assert lines[at + 1 : at + 4] == [
        "  reference  B ER D", "  A          B  (PER 66.67%)", "  B          B ER D  (PER 0.00%)",
    ]  # fmt: skip
    assert sum(line.startswith("better:") for line in lines) == 2
    assert call("compare", a.path, b.path)[1] == out  # the seed is fixed
    swapped = comparison.compare(b, a)
    assert "A is better" in str(swapped) and swapped["per"].p == comparison.compare(a, b)["per"].p


def test_the_newest_evaluations_of_two_runs_are_compared(run):
    store(run, A)
    newest = store(run, B)
    store(run, A, split="dev")
    found = comparison.compare(run, str(run))
    assert found.first.path == found.second.path == newest.path  # test comes before dev
    assert comparison.compare(run, run, "dev").first.split == "dev"
    assert found["per"].p == 1.0 and found.changes() == ([], [])
    assert "p is not reliable on 3 words: evaluate more" in str(found)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"split": "dev"}, "name two evaluations of the same split"),
        ({"hypotheses": A[:2], "references": REFERENCES[:2]}, "have 3 and 2 examples: evaluate both on the same data"),
        ({"references": [*REFERENCES[:2], ("B IH D",)]},
         "the references of example 3 are ['B ER D'] and ['B IH D']: evaluate both on the same data"),
        ({"metrics": ("cer",)}, "evaluate both with the same metrics (--evaluate.metrics)"),
    ],
)  # fmt: skip
def test_evaluations_that_cannot_be_compared(run, other, message):
    first, second = store(run, A), store(run, **{"hypotheses": A, "step": 60, **other})
    assert message in refused(lambda: comparison.Comparison(first, second))


SEARCH, JUDGE = config.Search(beam_size=4), config.Evaluate(("per", "exact"))


@pytest.mark.parametrize(
    "other, told",
    [
        ({"search": config.replace(SEARCH, beam_size=1)}, "search.beam_size 4 and 1"),
        (
            {"search": config.replace(SEARCH, beam_size=1, length_penalty="none")},
            "search.beam_size 4 and 1; search.length_penalty mean and none",
        ),
        ({"search": config.replace(SEARCH, sampling=config.Sampling(count=2))}, "search.sampling.count 0 and 2"),
        ({"evaluate": config.replace(JUDGE, target_unit="word")}, "evaluate.target_unit sentence and word"),
        ({"average": 5}, "average 0 and 5"),
        ({"ensemble": [("large", 9)]}, "ensemble none and large at step 9"),
        ({"evaluate": config.Evaluate(("exact", "per"), batch_size=3, dev_examples=7, test=False)}, ""),
        ({"step": 60}, ""),
    ],
)
def test_runs_with_different_search_settings_are_compared_only_if_both_evaluations_are_named(
    run, tmp_path, call, other, told
):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("{}")
    a, b = (
        store(path, A, **{name: config.to_json(value) if name in ("search", "evaluate") else value
                          for name, value in {"search": SEARCH, "evaluate": JUDGE, **options}.items()})
        for path, options in ((run, {}), (tmp_path / "other", other))
    )  # fmt: skip
    pairs = (run, tmp_path / "other"), (a.path, tmp_path / "other"), (run, b.path)
    if told:
        for pair in pairs:
            assert f"were made with different settings, {told}: evaluate both with the same settings" in refused(
                lambda pair=pair: comparison.compare(*pair)
            )
        assert f"\n{comparison.DIFFERENT}: {told}\n" in call("compare", a.path, b.path)[1]
        assert call("results", run, tmp_path / "other")[2] == (
            f"the settings of the newest evaluations of test differ: {told}\n"
        )
    else:
        for pair in (*pairs, (a, b)):
            assert comparison.compare(*pair).differing == ""
        assert call("results", run, tmp_path / "other")[2] == ""
    if other == {"step": 60}:
        assert "\nA is the checkpoint of step 30, B that of step 60\n" in call("compare", a.path, b.path)[1]


def test_a_comparison_names_the_files_of_code_that_differ(run):
    def told(first, second):
        a, b = (store(run, A, **({"code": code} if code else {})) for code in (first, second))
        return [line for line in str(comparison.compare(a, b)).splitlines() if line.startswith("the code of")]

    assert told({"mine.py": "1", "cells.py": "2"}, {"mine.py": "3", "cells.py": "2"}) == [
        "the code of the two runs differs: mine.py"
    ]
    assert told({"mine.py": "1"}, None) == ["the code of the two runs differs: mine.py"]
    assert told({"mine.py": "1"}, {"mine.py": "1"}) == told(None, None) == []


def test_neutral_settings_do_not_make_another_evaluation(run):
    """Nor do defaults of fields that an older version did not have."""
    old = config.to_json(JUDGE)
    del old["test"]
    first = store(run, A, evaluate=old)
    assert store(run, A, evaluate=config.to_json(config.replace(JUDGE, batch_size=9))).path == first.path
    assert store(run, A, evaluate=config.to_json(config.replace(JUDGE, target_unit="word"))).path != first.path


ROW = {"source": "a", "hypothesis": "b", "references": ["c"], "terms": {"per": [1.0, 2]}}


@pytest.mark.parametrize(
    "row, message",
    [
        *((json.dumps({key: value for key, value in ROW.items() if key != name}), f"line 2: it has no '{name}'")
          for name in ROW),
        *((json.dumps(ROW | {name: 5}), "line 2: ") for name in ROW),
        (json.dumps(ROW | {"references": "c"}), "line 2: source, hypothesis or references are not text"),
        (json.dumps(ROW | {"terms": {"per": [1.0]}}), "line 2: not enough values"),
        (json.dumps(ROW | {"terms": {"per": ["1", 2]}}), "line 2: terms are not numbers"),
        ("[]", "line 2: list indices"), ("7", "line 2: 'int' object"), ('{"source": "a', "line 2: Unterminated string"),
        (None, "it has no lines"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_reported(run, row, message):
    path = store(run, A).path
    (path / "outputs.jsonl").write_text("" if row is None else f"{json.dumps(ROW)}\n{row}\n")
    said = refused(lambda: comparison.compare(run, run))
    assert f"{path}/outputs.jsonl cannot be read ({message}" in said
    assert said.endswith(f": delete {path}, and evaluate again")


@pytest.mark.parametrize("name", ["split", "step", "average", "ensemble", "settings", "noun", "metrics"])
def test_an_incomplete_page_is_reported(run, call, name):
    path = store(run, A).path
    page = json.loads((path / "results.json").read_text())
    del page[name]
    (path / "results.json").write_text(json.dumps(page))
    for command in (("results", run), ("compare", run, run), ("results", run, "--json")):
        assert call(*command)[2] == (
            f"error: {path}/results.json cannot be read (it has no '{name}'): delete {path}, and evaluate again\n"
        )


def test_a_record_of_a_users_task_must_have_the_fields_that_a_report_shows(run):
    results = score(("per",), A, REFERENCES)
    made = evaluations.make(run, "test", 1, results)
    records = [{"source": "", "references": []}] * 3
    assert refused(lambda: evaluations.write(made, records, results)).startswith("Task.record returns no hypothesis: ")
    assert not made.path.exists()


def test_other_errors_of_a_comparison(run, tmp_path, call):
    found = store(run, A)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    code, _, err = call("compare", run, empty)
    assert (code, err) == (2, f"error: {run} has evaluations of test and {empty} has evaluations of nothing: "
                              "evaluate both on the same split with s2sjax evaluate\n")  # fmt: skip
    assert "is not a run folder" in call("compare", run, tmp_path / "nowhere")[2]
    assert "evaluate both on dev" in call("compare", run, run, "--split", "dev")[2]
    assert "but the split is dev" in call("compare", found.path, run, "--split", "dev")[2]
    assert call("compare", run)[2].startswith("error: the following arguments are required: RUN")
    assert "10 resamples are too few" in call("compare", run, run, "--resamples", 10)[2]
    assert call("compare", run, run, "--beam", 3)[2].startswith("error: compare has no option --beam")
    (found.path / "outputs.jsonl").unlink()
    assert "cannot be read" in call("compare", run, run)[2]


def test_a_users_metric_without_terms_cannot_be_tested(run):
    results = {"taste": MetricResult("taste", 1.0, True, None, 1, "taste")}
    record = {"source": "", "hypothesis": "", "references": []}
    found = evaluations.write(evaluations.make(run, "test", 1, results), [record], results)
    assert "give MetricResult.terms in Task.metrics" in refused(lambda: comparison.compare(found, found))


def test_sacrebleu_metrics_are_tested_by_sacrebleu(run):
    references = [(f"the cat sat on the mat number {n}",) for n in range(40)]
    a = [f"a cat sat on the mat number {n}" for n in range(40)]
    b = [known for (known,) in references]
    metrics = ("bleu", "chrf", "ter", "bleu_tokenized")
    first, second = store(run, a, references, metrics), store(run, b, references, metrics, step=60)
    found = comparison.compare(first, second, resamples=200)
    for name in metrics:
        assert found[name].first == pytest.approx(first[name].value) and found[name].p == pytest.approx(1 / 201)
        assert found[name].second == pytest.approx(second[name].value)
    assert all(difference.p == 1 for difference in comparison.compare(first, first).differences.values())
    assert "BLEU: nrefs:1|" in str(found) and "B is better" in str(found)
