"""The contents of reports of stored evaluations, without a model."""

import json
from pathlib import Path

import numpy as np
import pytest

from s2sjax.errors import UserError
from s2sjax.evaluate import metrics
from s2sjax.evaluate.figures import logged_metrics
from s2sjax.report import contents, scored_outputs, subjects, write
from s2sjax.runs import evaluations


def evaluation(tmp_path: Path, rows, names=("cer",), line="sentence", name="run"):
    """An evaluation. rows: (source, output, references)."""
    outputs, references = [row[1] for row in rows], [tuple(row[2]) for row in rows]
    results = metrics.score(names, outputs, references, line)
    made = evaluations.make(tmp_path / name, "test", 3, results)
    records = [{"source": source, "hypothesis": output, "references": list(refs)} for source, output, refs in rows]
    return evaluations.write(made, records, results)


def test_edits_turn_the_closest_reference_into_the_output(tmp_path):
    rows = [("x", "a b c", ["a b", "a x c"]), ("y", "k", ["k"]), ("z", "", ["one two"])]
    found = scored_outputs.alignments(evaluation(tmp_path, rows).outputs)
    assert found == [(0, "mmi"), (0, "m"), (0, "dd")]


def test_texts_without_spaces_are_aligned_by_characters_but_labels_and_numbers_are_not(tmp_path):
    outputs = lambda pairs: [{"hypothesis": a, "references": [b]} for a, b in pairs]
    assert scored_outputs.alignments(outputs([("abd", "abc"), ("x", "xy")])) == [(0, "mms"), (0, "md")]
    assert scored_outputs.alignments(outputs([("yes", "no")] * 40)) is None
    assert scored_outputs.alignments(outputs([("1.5", "2.5e3"), ("-3", "nan")])) is None
    assert scored_outputs.alignments([{"hypothesis": "a", "references": []}]) is None


def test_composed_and_decomposed_accents_are_equal_and_long_pairs_are_left_out(monkeypatch):
    rows = [{"hypothesis": "cafe\u0301 x", "references": ["caf\u00e9 x"]}]
    assert scored_outputs.alignments(rows) == [(0, "mm")]
    monkeypatch.setattr(scored_outputs, "LONGEST", 3)
    assert scored_outputs.alignments(rows) == [None]


def test_quality_by_length_counts_every_example_once(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("ab"), size=rng.integers(1, 20))) for _ in range(200)]
    rows = [(word, word if len(word) < 10 else word[:-1], [word]) for word in words]
    one = evaluation(tmp_path, rows, ("cer", "chrf"))
    unit, buckets = scored_outputs.by_length([one, one], "cer")
    assert unit == "characters" and 2 <= len(buckets) <= scored_outputs.BUCKETS
    assert sum(bucket.examples for bucket in buckets) == 200
    assert [bucket.low for bucket in buckets[1:]] == [bucket.high + 1 for bucket in buckets[:-1]]
    assert buckets[0].values == [0.0, 0.0] and buckets[-1].values[0] > 0
    total = sum(
        bucket.values[0] * sum(bucket.low <= len(w) <= bucket.high and len(w) for w in words) for bucket in buckets
    )
    assert total / sum(map(len, words)) == pytest.approx(one["cer"].value, rel=1e-4)
    by_chrf = scored_outputs.by_length([one], "chrf")[1]  # not a ratio of sums
    assert [bucket.examples for bucket in by_chrf] == [bucket.examples for bucket in buckets]
    assert by_chrf[0].values == [100.0] and by_chrf[-1].values[0] < 100


def test_examples_of_one_source_length_are_one_bucket(tmp_path):
    one = evaluation(tmp_path, [("ab", "x", ["x"]), ("cd", "y", ["x"])])
    assert scored_outputs.by_length([one], "cer") == ("characters", [scored_outputs.Bucket(2, 2, 2, [50.0])])


def test_the_chosen_examples_are_the_worst_the_best_and_others():
    scores = [float(n % 100) for n in range(1000)]
    found = contents.chosen(scores, True, 40)
    assert len(found) == len(set(found)) == 40 and found == sorted(found)
    assert sum(scores[n] == 0 for n in found) >= 10 and sum(scores[n] == 99 for n in found) >= 10
    assert contents.chosen(scores, True, 0) == [] and contents.chosen([None, 1.0], False, 9) == [0, 1]
    assert contents.chosen([5.0, None, 1.0], False, 1) == [0]  # the worst, if lower is better


def test_speed_and_memory_are_read_from_the_log(tmp_path):
    lines = [
        {"step": 1, "loss": 2.0, "tokens_per_second": 100.0, "seconds": 30, "compile_seconds": 4,
         "device_memory_bytes": 2_500_000},
        {"step": 2, "loss": 1.0, "tokens_per_second": 300.0, "seconds": 3600},
        {"step": 2, "score": "cer", "cer": 5.0},
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert contents.speed(logged_metrics.read(tmp_path / "metrics.jsonl")) == [
        ["training speed (median)", "200 tokens/s"],
        ["memory of a device in training", "2.5 MB"],
        ["time of training steps", "1 h 0 min"],
        ["time of compilation", "4.0 s"],
    ]
    assert contents.speed({}, {"steps": 90.0, "compile": 7.5, "restart": 2.5}) == [
        ["time of training steps", "1 min 30 s (90%)"],
        ["time of compilation", "7.5 s (8%)"],
        ["time of restarts, with steps computed again", "2.5 s (2%)"],
    ]
    assert contents.speed({}) == []
    assert [contents.duration(s) for s in (5.25, 200, 7500)] == ["5.2 s", "3 min 20 s", "2 h 5 min"]
    assert [contents.size(n) for n in (12, 5_000, 3.2e10)] == ["12 B", "5 kB", "32 GB"]


def test_labels_are_the_shortest_unique_suffixes():
    assert subjects.labels(["/a/runs/x", "/a/runs/y"]) == ["x", "y"]
    assert subjects.labels(["/a/runs/x", "/b/runs/x"]) == ["a/runs/x", "b/runs/x"]
    assert subjects.labels(["/r/x/evaluations/test-1", "/r/x/evaluations/test-2"]) == ["test-1", "test-2"]
    assert len(set(subjects.labels(["/r/x", "/r/x"]))) == 2


def test_errors_are_raised_before_any_work(tmp_path):
    with pytest.raises(UserError, match=r"ends in \.html"):
        write.check_out("report.png")
    with pytest.raises(UserError, match="name a run"):
        write.write([])
    with pytest.raises(UserError, match="9 resamples are too few"):
        write.write([tmp_path], limits=contents.Limits(resamples=9))
    with pytest.raises(UserError, match="not a run folder"):
        write.write([tmp_path])
    one = evaluation(tmp_path, [("a", "b", ["c"])])
    with pytest.raises(UserError, match="one split"):
        write.write([one.path], split="dev")
