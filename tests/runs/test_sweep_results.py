"""The result of a sweep: its rows, their significance, what is left out, and the formats of the table."""

import csv
import io
import json
import statistics
import sys

import pytest
import sweeps
from conftest import refused

from s2sjax import config, tasks
from s2sjax.evaluate.figures import logged_metrics, training_curves
from s2sjax.evaluate.metrics import significance
from s2sjax.runs import comparison, evaluations, run
from s2sjax.runs.sweeps import sweep_results

RATE = "train.learning_rate"


def grid(scores):
    """Members from {learning rate: {seed: score}}."""
    return [({"seed": seed, RATE: rate}, score) for rate, each in scores.items() for seed, score in each.items()]


THREE = {0.001: {0: 40.0, 1: 44.0, 2: 42.0}, 0.002: {0: 30.0, 1: 34.0, 2: 29.0}}


# ----------------------------------------------------------------------------------------- rows


def test_a_row_has_mean_deviation_and_p_over_its_seeds(tmp_path):
    best, other = sweep_results.table(sweeps.make(tmp_path / "s", grid(THREE)))
    assert best == {
        RATE: 0.002, "wer": pytest.approx(31), "wer_std": pytest.approx(statistics.stdev([30, 34, 29])),
        "exact": pytest.approx(69), "exact_std": pytest.approx(7**0.5), "n": 3, "p": None, "best": True,
    }  # fmt: skip
    assert (other[RATE], other["wer"], other["wer_std"], other["n"]) == (0.001, pytest.approx(42), pytest.approx(2), 3)
    assert other["p"] == significance.paired_permutation([30, 34, 29], [40, 44, 42]) == 0.25 and not other["best"]


def test_only_settings_that_differ_are_columns_and_a_list_may_be_a_value(tmp_path):
    members = [
        ({"seed": seed, "train.betas": betas, "model.width": 8}, 10.0 + seed + len(betas))
        for seed in (0, 1) for betas in ([0.9, 0.98], [0.9])
    ]  # fmt: skip
    rows = sweep_results.table(sweeps.make(tmp_path / "s", members))
    assert [row["train.betas"] for row in rows] == [[0.9], [0.9, 0.98]]
    assert "model.width" not in rows[0] and "seed" not in rows[0]


def test_seeds_alone_make_one_row_without_p(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", [({"seed": seed}, 30.0 + seed) for seed in range(4)])
    assert [(row["wer"], row["n"], row["p"]) for row in sweep_results.table(folder)] == [(pytest.approx(31.5), 4, None)]
    assert call("results", folder)[1].splitlines()[0].split() == ["WER", "(%)", "exact", "(%)", "n"]


def test_the_metric_that_is_named_first_decides(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: 50.0}, 2: {0: 20.0}, 3: {0: 30.0}}))
    assert [row[RATE] for row in sweep_results.table(folder)] == [2, 3, 1]  # WER: low is good
    rows = sweep_results.table(folder, metric="exact")  # high is good
    assert [row["exact"] for row in rows] == pytest.approx([80, 70, 50]) and "wer" not in rows[0]
    assert list(sweep_results.table(folder, metric=["exact", "wer"])[0])[:4] == [RATE, "exact", "exact_std", "wer"]
    assert refused(lambda: sweep_results.table(folder, metric="bleu")) == (
        f"the evaluations of {folder} have no bleu: choose from wer, exact"
    )


def test_all_rows_show_the_newest_evaluations_of_one_split(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid(THREE))
    for member in sweep_results.read(folder).members:
        sweeps.evaluate(member.folder, 10.0, "dev")
    first = sweep_results.read(folder).members[0].folder
    assert [row["wer"] for row in sweep_results.table(folder)] == pytest.approx([31, 42])  # test before dev
    assert [row["wer"] for row in sweep_results.table(folder, "dev")] == pytest.approx([10, 10])
    sweeps.evaluate(first, 22.0, settings="beam 9")
    assert sweep_results.table(folder)[1]["wer"] == pytest.approx((22 + 44 + 42) / 3)
    for path in first.glob("evaluations/test*/results.json"):
        path.unlink()
    found = sweep_results.summarize(folder)  # most members have dev
    assert found.split == "dev" and found.rows[0].mean("wer") == pytest.approx(10)
    assert f"left out, not evaluated on test: 1 run, {first.name}" in sweep_results.summarize(folder, "test").remarks()
    assert refused(lambda: sweep_results.table(folder, "train")) == (
        f"the runs of {folder} that are done have evaluations of test, dev, not train: evaluate them with "
        "s2sjax evaluate RUN --split train"
    )


# ---------------------------------------------------------------------------------- significance


def test_seeds_that_one_row_lacks_are_left_out_of_its_pairs(tmp_path):
    """Two of three seeds are paired; with one common seed, all scores are compared unpaired."""
    scores = THREE | {0.003: {0: 50.0, 1: 51.0, 2: "diverged"}, 0.004: {2: 60.0, 5: 61.0}, 0.005: {7: 90.0}}
    found = sweep_results.summarize(sweeps.make(tmp_path / "s", grid(scores)))
    p = {row[RATE]: row["p"] for row in found.records()}
    assert p[0.003] == 0.5 and p[0.004] == significance.permutation([30, 34, 29], [60, 61]) == 0.1
    assert p[0.005] == significance.permutation([30, 34, 29], [90]) == 0.25
    assert found.remarks()[1:6] == [
        "p of learning_rate 0.001: exact permutation test against the best, paired by seed; 3 seeds allow no p below "
        "0.25",
        "p of learning_rate 0.003: exact permutation test against the best, paired by seed; 2 seeds allow no p below "
        "0.5",
        "p of learning_rate 0.004: exact permutation test against the best, over different seeds; 2 and 3 seeds allow "
        "no p below 0.1",
        "p of learning_rate 0.005: exact permutation test against the best, over different seeds; 1 and 3 seeds allow "
        "no p below 0.25",
        "p is not corrected for 4 comparisons",
    ]


@pytest.mark.parametrize("first, second", [(3, 3), (2, 4), (1, 3), (5, 2)])
def test_the_smallest_p_that_a_remark_names_is_reached(tmp_path, first, second):
    """By scores that are as far apart as can be."""
    low, high = ({start + seed: 10.0 * rate for seed in range(n)} for start, n, rate in ((0, first, 1), (9, second, 5)))
    found = sweep_results.summarize(sweeps.make(tmp_path / "s", grid({1: low, 2: high})))
    p = found.records()[1]["p"]
    assert found.remarks()[1].endswith(f"allow no p below {p:.3g}")


def test_a_single_seed_is_tested_over_examples_as_compare_does(tmp_path):
    a, b = [1, 2, 3, 4] * 10, [1, 2, 4, 5] * 10
    folder = sweeps.make(tmp_path / "s", grid({1: {0: a}, 2: {0: b}}))
    found = sweep_results.summarize(folder)
    runs = [member.folder for member in found.sweep.members]
    assert found.records()[1]["p"] == comparison.compare(*runs)["wer"].p < 0.05
    assert found.records()[1]["wer_std"] is None
    assert found.remarks() == [
        "test, one seed each, 2 of 2 runs; best first",
        "p: paired bootstrap over examples, 1,000 resamples; one seed cannot tell how seeds differ",
    ]
    sweeps.evaluate(runs[1], [5] * 3)  # other examples
    assert sweep_results.table(folder)[1]["p"] is None
    assert "have 40 and 3 examples: evaluate both on the same data" in sweep_results.summarize(folder).remarks()[1]
    assert sweep_results.summarize(folder).remarks()[2] == "the evaluations have different numbers of examples: 3, 40"


def test_many_seeds_are_tested_by_drawing(tmp_path):
    scores = {rate: {seed: 10.0 * rate + seed % 5 for seed in range(18)} for rate in (1, 2)}
    found = sweep_results.summarize(sweeps.make(tmp_path / "s", grid(scores)))
    assert found.remarks()[1] == (
        "p: permutation test, 100,000 draws against the best, paired by seed; 18 seeds allow no p below 1e-05"
    )
    assert found.records()[1]["p"] < 1e-3 and found.table().rows[1][-1] == "<0.001"


# ------------------------------------------------------------------------- members that do not count


def test_members_without_a_result_are_counted_and_named(tmp_path, call):
    scores = {0.001: {0: 40.0, 1: "unfinished", 2: "missing"}, 0.002: {0: 30.0, 1: "diverged", 2: 34.0},
              0.003: {0: "dropped", 1: "missing", 2: "done"}}  # fmt: skip
    folder = sweeps.make(tmp_path / "s", grid(scores))
    statuses = [member.status for member in sweep_results.read(folder).members]
    assert statuses == ["done", "unfinished", "missing", "done", "diverged", "done", "dropped", "missing", "done"]
    rows = sweep_results.table(folder)
    assert [(row[RATE], row["n"], row["best"]) for row in rows] == [
        (0.002, 2, True), (0.001, 1, False), (0.003, 0, False)]  # fmt: skip
    assert rows[2]["wer"] is rows[2]["p"] is None
    code, out, err = call("results", folder)
    assert code == 0 and len(out.splitlines()) == 4
    assert err.splitlines()[0] == "test, mean ± standard deviation over seeds, 3 of 9 runs; best first"
    assert err.splitlines()[2:] == [
        f"left out, unfinished: 1 run, seed=1,{RATE}=0.001",
        f"left out, diverged: 1 run, seed=1,{RATE}=0.002",
        f"left out, dropped: 1 run, seed=0,{RATE}=0.003",
        f"left out, missing: 2 runs, seed=2,{RATE}=0.001 seed=1,{RATE}=0.003",
        f"left out, not evaluated on test: 1 run, seed=2,{RATE}=0.003",
    ]


def test_an_evaluation_before_the_end_of_training_does_not_count(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: "unfinished", 1: 20.0}}))
    member = sweep_results.read(folder).members[0]
    sweeps.evaluate(member.folder, 90.0)
    assert sweep_results.table(folder)[0]["wer"] == pytest.approx(20)
    page = json.loads((member.folder / "config.json").read_text())
    page["experiment"]["train"]["patience"] = 2  # then training may end early, and is evaluated when it has ended
    (member.folder / "config.json").write_text(json.dumps(page))
    assert sweep_results.read(folder).members[0].status == "done"


def test_a_dropped_member_that_was_trained_to_its_end_after_all_counts(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: 20.0, 1: "dropped"}}))
    log = folder / f"seed=1,{RATE}=1" / "metrics.jsonl"
    log.write_text(log.read_text() + json.dumps({"step": sweeps.STEPS, "loss": 1.0}) + "\n")
    sweeps.evaluate(log.parent, 30.0)
    assert [row["wer"] for row in sweep_results.table(folder)] == pytest.approx([25])


def test_members_of_an_earlier_sweep_have_the_settings_of_their_experiment(tmp_path):
    """The first sweep varied neither the seed nor the width."""
    members = [({"model.dropout": 0.1}, 10.0), ({"model.dropout": 0.1, "seed": 1, "model.width": 8}, 20.0),
               ({"model.dropout": 0.1, "seed": 1, "model.width": 16}, 30.0)]  # fmt: skip
    rows = sweep_results.table(sweeps.make(tmp_path / "s", members))
    assert [(row["model.width"], row["wer"], row["n"]) for row in rows] == [
        (8, pytest.approx(15), 2),
        (16, pytest.approx(30), 1),
    ]


def test_a_run_that_went_on_after_steps_that_were_not_finite_has_not_diverged(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: "diverged", 1: 20.0}}))
    member = sweep_results.read(folder).members[0]
    assert member.status == "diverged"
    (member.folder / "metrics.jsonl").write_text('{"step": 15, "loss": 1.0}\n{"step": 16, "lo')  # killed meanwhile
    assert sweep_results.read(folder).members[0].status == "unfinished"
    (member.folder / "metrics.jsonl").unlink()
    (member.folder / "nonfinite.jsonl").write_text('{"step": 2}\n{"step": 3}\n{"step": 5}\n')  # not in a row
    assert sweep_results.read(folder).members[0].status == "unfinished"


@pytest.mark.slow
def test_the_status_of_runs_as_training_leaves_them(tmp_path):
    """One is done, and one has diverged."""
    pairs = [("ab", "ba"), ("abc", "cba")]
    experiment = tasks.Translation(
        name="tiny",
        data=config.Data(
            config.InMemory(train=pairs * 4, dev=pairs), buckets=((8, 8),), batch_tokens=64, prefetch=0
        ),
        model=config.Luong(width=4, embedding_size=4, layers=1, dropout=0.0),
        train=config.Train(steps=4, learning_rate=1e-2, warmup_steps=0, evaluate_every=0, log_every=2, max_skipped=2),
        evaluate=config.Evaluate(metrics=("cer",), batch_size=4),
    )  # fmt: skip
    changes = {"done": {}, "diverged": {"learning_rate": 1e38, "clip_norm": 0.0}}
    folder = sweeps.make(tmp_path / "s", [({"case": name}, "missing") for name in changes])
    done, diverged = (
        config.replace(experiment, train=config.replace(experiment.train, **each)) for each in changes.values()
    )
    trained, _ = run.train(done, folder / "case=done")
    assert "2 non-finite steps in a row" in refused(lambda: run.train(diverged, folder / "case=diverged"))
    assert [member.status for member in sweep_results.read(folder).members] == ["done", "diverged"]
    assert sweep_results.table(folder)[0]["n"] == 0
    trained.evaluate()
    (row, *_), found = sweep_results.table(folder), sweep_results.summarize(folder)
    assert (row["case"], row["n"], found.split, list(found.metrics)) == ("done", 1, "dev", ["cer"])


def test_many_names_are_cut_but_counted(tmp_path):
    members = [({"seed": seed}, "missing") for seed in range(30)]
    found = sweep_results.summarize(sweeps.make(tmp_path / "s", members))
    assert found.remarks() == [
        "no run has been evaluated yet",
        f"left out, missing: 30 runs, {' '.join(f'seed={n}' for n in range(10))} and 20 more",
    ]
    assert found.records() == [{"n": 0, "p": None, "best": False}]


def test_a_score_that_is_not_a_number_is_last_and_named(tmp_path):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: 10.0, 1: [float("nan")]}, 2: {0: 50.0, 1: 51.0}}))
    rows = sweep_results.table(folder)
    assert [(row[RATE], row["wer"], row["n"], row["p"]) for row in rows] == [
        (2, pytest.approx(50.5), 2, None), (1, None, 2, None)]  # fmt: skip
    assert f"WER is not a number: 1 run, seed=1,{RATE}=1" in sweep_results.summarize(folder).remarks()
    json.dumps(rows, allow_nan=False)


def test_evaluations_with_other_settings_are_named_unless_the_sweep_varies_them(tmp_path):
    def told(name):
        folder = sweeps.make(tmp_path / name, [({"seed": 0, name: beam}, "done") for beam in (1, 4)])
        for member in sweep_results.read(folder).members:
            search = {"kind": "none", "beam_size": member.settings[name]}
            sweeps.evaluate(member.folder, 10.0, search=search)
        return [line for line in sweep_results.summarize(folder).remarks() if "settings" in line]

    assert told("search.beam_size") == []
    assert told(RATE) == ["the settings of the evaluations differ: search.beam_size 1 and 4"]


# ----------------------------------------------------------------------------------------- formats


def test_the_table_as_text_csv_json_markdown_and_latex(tmp_path, call, monkeypatch):
    members = [({**settings, "model.size_50%": "a_b|c"}, score) for settings, score in grid(THREE)]
    members += [({**settings, "model.size_50%": "<d>"}, 60.0 + n) for n, (settings, _) in enumerate(grid(THREE))]
    folder = sweeps.make(tmp_path / "s", members)
    rows = sweep_results.table(folder)
    lines = call("results", folder)[1].splitlines()
    assert lines[0].split("  ")[0] == RATE and lines[0].split()[-2:] == ["n", "p"]
    assert "31.00 ± 2.65 *  69.00 ± 2.65" in lines[1] and "*" not in "".join(lines[2:])
    assert len({line.index("±") for line in lines[1:]}) == 1  # aligned
    assert json.loads(call("results", folder, "--json")[1]) == rows
    read = list(csv.DictReader(io.StringIO(call("results", folder, "--csv")[1])))
    assert [float(row["wer_std"]) for row in read] == [row["wer_std"] for row in rows]
    assert read[0]["p"] == "" and read[0]["best"] == "true" and read[0]["model.size_50%"] == "a_b|c"
    head, rule, first, second, *_ = call("results", folder, "--markdown")[1].splitlines()
    assert head == f"| {RATE} | model.size_50% | WER (%) | exact (%) | n | p |" and rule == "|---|---|---|---|---|---|"
    assert first == r"| 0.002 | a_b\|c | **31.00 ± 2.65** | 69.00 ± 2.65 | 3 |  |" and "**" not in second
    latex = call("results", folder, "--latex")[1].splitlines()
    assert latex[:2] == [r"\begin{tabular}{llllll}", r"\toprule"] and latex[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert latex[2] == r"train.learning\_rate & model.size\_50\% & WER (\%) & exact (\%) & n & p \\"
    assert latex[4] == r"0.002 & a\_b$|$c & \textbf{31.00 $\pm$ 2.65} & 69.00 $\pm$ 2.65 & 3 &  \\"
    assert any(r"$<$d$>$ & 61.00 $\pm$ 1.00" in line for line in latex)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    bold = sweep_results.summarize(folder).table().to("text", terminal=True).splitlines()
    assert bold[1].startswith("\033[1m0.002") and bold[1].endswith("\033[0m") and "\033" not in "".join(bold[2:])
    assert not any("*" in line for line in bold)


def test_evaluations_of_runs_have_the_same_formats(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: 10.0}, 2: {0: 20.0}}))
    runs = [member.folder for member in sweep_results.read(folder).members]
    sweeps.evaluate(runs[0], 30.0, "dev")
    read = list(csv.DictReader(io.StringIO(call("results", *runs, "--csv")[1])))
    assert [float(row["metrics.wer"]) for row in read] == pytest.approx([10, 30, 20])
    assert [row["split"] for row in json.loads(call("results", *runs, "--json", "--split", "dev")[1])] == ["dev"]
    assert call("results", *runs, "--markdown", "--metric", "exact")[1].count("exact") == 3
    assert call("results", *runs, "--latex")[1].count(r"\\") == 4
    assert "has no bleu: it has wer, exact" in call("results", *runs, "--metric", "bleu")[2]


def test_a_table_is_a_list_of_dictionaries_for_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(sweep_results.table(sweeps.make(tmp_path / "s", grid(THREE))))
    assert frame[frame.best][RATE].tolist() == [0.002] and frame.wer.dtype == float


# ------------------------------------------------------------------------------------------- curves


def test_the_curve_of_several_runs_is_their_mean_from_lowest_to_highest():
    several = [{"loss": [(1, 4.0), (2, 2.0)]}, {"loss": [(1, 2.0)], "dev/wer": [(2, 9.0)]}]
    loss, wer = logged_metrics.mean_curves(several)
    assert loss == ("loss", False, [(1, 3.0, 2.0, 4.0, 2), (2, 2.0, 2.0, 2.0, 1)])
    assert wer == ("WER (%)", True, [(2, 9.0, 9.0, 9.0, 1)])


def test_the_curves_of_a_sweep_are_drawn_with_bands(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", grid({**THREE, 0.003: {0: "diverged", 1: 50.0}, 0.004: {0: "unfinished"}}))
    logs = sweep_results.summarize(folder).logs()
    assert [len(each) for each in logs.values()] == [3, 3, 1, 1]  # of those that are done, or of all if none is
    file = tmp_path / "curves.svg"
    assert call("results", folder, "--curves", file) == (0, f"wrote {file}\n", "")
    drawn = file.read_text()
    assert drawn.count('id="FillBetweenPolyCollection_') == 4  # two combinations, loss and WER
    assert all(label in drawn for label in ("learning_rate 0.001", "learning_rate 0.004"))


def test_a_curve_that_explodes_leaves_the_panel_to_the_others():
    curve = lambda *values: training_curves.Curve(
        "", 0, False, [logged_metrics.Point(n, v, v, v, 1) for n, v in enumerate(values)]
    )
    usual = [curve(6.0, 2.0), curve(5.0, 1.0), curve(7.0, 1.5)]
    assert training_curves._limits(usual) == (1.0, 7.0)
    assert training_curves._limits([*usual, curve(6.0, 9e9)]) == (1.0, 13.0)  # twice the range of the others
    assert training_curves._limits([*usual, curve(99.0, 2.0)]) == (1.0, 99.0)  # it only begins high
    assert training_curves._limits([curve(1.0, 9e9)]) == (1.0, 9e9)


# ------------------------------------------------------------------------------------------- errors


def test_what_is_not_a_sweep_is_refused(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", grid(THREE))
    assert call("results", folder, tmp_path)[2] == (
        f"error: {folder} is a sweep: name it alone, or name its runs, {folder}/*/, beside others\n"
    )
    assert call("report", folder, folder)[2].startswith(f"error: {folder} is a sweep: name it alone")
    for command in (("compare", folder, folder), ("evaluate", folder), ("decode", folder)):
        assert call(*command)[2] == f"error: {folder} is a sweep: name one of its runs, {folder}/NAME\n"
    assert "is not a run folder (it has no config.json)" in call("results", tmp_path)[2]
    assert "is not a sweep (it has no sweep.json)" in refused(lambda: sweep_results.read(tmp_path))
    damaged = {"{": "Expecting property name", "{}": "it has no 'members'", '{"members": {}}': "it has no members",
               '{"members": [1]}': "list", '{"members": {"a": 5}}': "int"}  # fmt: skip
    for text, why in damaged.items():
        (folder / "sweep.json").write_text(text)
        code, _, err = call("results", folder)
        assert code == 2 and err.startswith(f"error: {folder}/sweep.json cannot be read (") and why in err


def test_an_empty_sweep_draws_no_curves(tmp_path, call):
    folder = sweeps.make(tmp_path / "s", grid({1: {0: "missing"}}))
    assert "no run has logged a step yet" in call("results", folder, "--curves", tmp_path / "x.png")[2]
    assert evaluations.read_all(sweeps.make(tmp_path / "t", grid({1: {0: 10.0}})) / f"seed=0,{RATE}=1")
