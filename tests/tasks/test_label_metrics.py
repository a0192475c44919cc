"""Metrics of labels by hand, and that the figures can be drawn."""

import numpy as np

from s2sjax.evaluate.figures import share_curves
from s2sjax.tasks.classification import label_figures, label_metrics

FOUND, CORRECT = list("aabbbc"), list("aababb")


def test_accuracy_and_its_terms():
    result = label_metrics.accuracy(FOUND, CORRECT)
    assert result.value == 100 * 4 / 6 and str(result) == "accuracy 66.67%"
    assert sum(term for term, _ in result.terms) / sum(weight for _, weight in result.terms) == result.value


def test_macro_f1_counts_every_label_the_same():
    # a: TP 2, FP 0, FN 1; b: TP 2, FP 1, FN 1; c: TP 0, FP 1, FN 0
    expected = 100 * (4 / 5 + 4 / 6 + 0) / 3
    assert abs(label_metrics.macro_f1(FOUND, CORRECT).value - expected) < 1e-9


def test_the_confusion_table_has_correct_labels_as_rows():
    table = label_metrics.confusion(FOUND, CORRECT, "abc")
    assert table.tolist() == [[2, 1, 0], [0, 2, 1], [0, 0, 0]]
    assert table.sum() == len(FOUND)


def test_figures_are_drawn(tmp_path):
    label_figures.confusion_matrix(tmp_path / "confusion.svg", np.array([[3, 1], [0, 2]]), ["no", "$yes_"], "dev")
    text = label_figures.ShadedText(["good", "<film>", "漢字"] * 12, np.arange(36.0), "1 0.9", correct=False)
    blank = label_figures.ShadedText(["nothing"], np.zeros(1), "0 0.5")
    label_figures.shaded_texts(tmp_path / "words.svg", [text, blank])
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("confusion.svg", "words.svg"))


def test_scores_by_share_of_labels_are_drawn(tmp_path):
    lines = {"from BERT": [70.0, 80.0, 85.0], "from scratch": [50.0, 60.0, 80.0]}
    share_curves.curves(tmp_path / "shares.svg", (1.0, 10.0, 100.0), {"one": lines, "two": lines})
    drawn = (tmp_path / "shares.svg").read_text()
    assert drawn.count("<svg") == 1 and drawn.count("clip-path") > 4
