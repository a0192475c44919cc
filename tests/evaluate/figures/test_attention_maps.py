"""Checks the pixels of figures and, in SVG files, their words."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

import s2sjax
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import logged_metrics
from s2sjax.evaluate.figures.attention_maps import AttentionMap, attention_grid, attention_map
from s2sjax.evaluate.figures.training_curves import learning_curves

DARKEST = (12, 42, 77)


def pixels(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    return (imread(path)[..., :3] * 255).round().astype(int)


def dark_cell(path):
    """(top, bottom, left, right) of the one cell in the darkest colour, ignoring the narrow colour bar."""
    dark = (pixels(path) == DARKEST).all(-1)
    rows, columns = (np.flatnonzero(dark.sum(axis) >= 40) for axis in (1, 0))
    return rows[0], rows[-1], columns[0], columns[-1]


def words_in(path):
    """The texts of an SVG file, which are comments next to their glyphs."""
    svg = path.read_text(encoding="utf-8")
    return [part.split(" -->")[0] for part in svg.split("<!-- ")[1:]]


# ------------------------------------------------------------------------------------- attention


def test_source_runs_along_the_top_target_down_the_side_in_square_cells(tmp_path):
    def look(t, s):
        weights = np.zeros((2, 3))
        weights[t, s] = 1
        attention_map(tmp_path / "map.png", ["a", "b", "c"], ["x", "y"], weights)
        return dark_cell(tmp_path / "map.png")

    top, bottom, left, right = look(0, 0)
    assert abs((bottom - top) - (right - left)) <= 2  # square
    side = 0.40 * 200  # inches x dots
    assert np.subtract(look(0, 2), look(0, 0)) == pytest.approx([0, 0, 2 * side, 2 * side], abs=1)
    assert np.subtract(look(1, 0), look(0, 0)) == pytest.approx([side, side, 0, 0], abs=1)


def test_every_piece_and_the_title_are_written_out_and_a_dollar_is_a_dollar(tmp_path):
    path = tmp_path / "map.svg"
    bad = r"$\frac$"  # which matplotlib would refuse as mathematics
    attention_map(path, ["for", bad, " ", ""], ["für", "a\nb"], np.full((2, 4), 0.25), title=f"title {bad}")
    assert {
        "for",
        bad,
        "␣",
        "''",
        "für",
        r"a\nb",
        f"title {bad}",
        "0.25",
        "source",
        "output",
        "attention weight",
    } <= set(words_in(path))


@pytest.mark.parametrize(
    "source, target",
    [
        (["a"], ["b"]),
        ([f"source{i}" for i in range(60)], [f"target{i}" for i in range(60)]),
        ([], []),
        ([], ["b", "c"]),
        (["日本語", "नमस्ते", "\x00"], ["שלום", "مرحبا", "🙂", "ไทย"]),
    ],
)
def test_odd_sizes_and_scripts_are_drawn_at_a_sensible_size_without_warnings(tmp_path, source, target):
    path = tmp_path / "figures" / "map.png"
    attention_map(path, source, target, np.full((len(target), len(source)), 0.5), title="odd")
    height, width, _ = pixels(path).shape
    assert 100 <= height <= 2600 and 100 <= width <= 2600
    assert height >= 25 * len(target) and width >= 25 * len(source)  # a label can be read


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_weights_that_are_all_zero_or_not_numbers_are_drawn_pale(tmp_path, value):
    attention_map(tmp_path / "map.png", ["a", "b"], ["x"], [[value, value]])
    with pytest.raises(IndexError):
        dark_cell(tmp_path / "map.png")


def test_a_grid_has_one_scale_and_one_size_of_cells(tmp_path):
    path = tmp_path / "grid.png"
    faint = AttentionMap(["a", "b"], ["x"], [[0.3, 0.3]], "faint")
    sharp = AttentionMap(["a", "b"], ["x", "y", "z"], [[0, 0], [0, 0], [0, 0.9]], "sharp")
    attention_grid(path, [faint, sharp, faint], columns=2)
    top, bottom, left, right = dark_cell(path)  # one only: 0.3 is dark nowhere, for the scale reaches 0.9
    width = pixels(path).shape[1]
    assert left > width / 2
    assert max(bottom - top, right - left) < 80
    attention_grid(path, [sharp, faint, faint], columns=2)
    assert dark_cell(path)[3] < width / 2
    early = AttentionMap(["a", "b"], ["x", "y", "z"], [[0.9, 0], [0, 0], [0, 0]], "early")
    attention_grid(path, [faint, faint, early], columns=2)
    assert dark_cell(path)[0] > pixels(path).shape[0] / 2  # in the second row
    attention_grid(path, [sharp] * 3, columns=8)  # more columns than maps
    assert pixels(path).shape[1] > width


def test_weights_of_another_shape_are_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"shape \(2, 3\), but there are 3 target and 2 source"):
        attention_map(tmp_path / "map.png", ["a", "b"], ["x", "y", "z"], np.zeros((2, 3)))
    with pytest.raises(UserError, match="no attention maps"):
        attention_grid(tmp_path / "map.png", [])
    with pytest.raises(UserError, match="columns is 0"):
        attention_grid(tmp_path / "map.png", [AttentionMap(["a"], ["b"], [[1.0]])], columns=0)


# ---------------------------------------------------------------------------------------- curves


def write_log(path, *records, tail=""):
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return path


LOG = (
    {"step": 1, "loss": 3.0, "learning_rate": 0.1, "wordy": 1.0},
    {"step": 2, "loss": float("nan"), "dev": {"loss": 2.0}, "note": "first", "best": True},
    {"step": 2, "score": "per", "per": 50.0, "dev_accuracy": 0.5, "per corpus 1": 40.0},
    {"step": 3, "loss": 1.0, "dev": {"loss": 1.5}},
    {"step": 3, "score": "per", "per": 40.0, "dev_accuracy": 0.6, "per corpus 1": 30.0},
)


def test_learning_curves_have_one_panel_for_each_metric_and_nothing_else(tmp_path):
    log = write_log(tmp_path / "metrics.jsonl", *LOG)
    learning_curves(tmp_path / "curves.svg", {"mine": log})
    words = words_in(tmp_path / "curves.svg")
    titles = ["loss", "accuracy", "PER (%)", "per corpus 1"]
    assert sorted(word for word in words if word in titles) == sorted(titles)  # each once, the losses together
    assert words.index("loss") < min(words.index(title) for title in titles[1:])
    assert words.count("training") == words.count("dev") == 1
    assert not {"learning_rate", "wordy", "best", "mine"} & set(words)
    learning_curves(tmp_path / "curves.png", {"mine": log})
    assert pixels(tmp_path / "curves.png").shape[:2] == pytest.approx((2110, 1600), abs=120)


def test_learning_curves_of_two_runs_are_named(tmp_path):
    logs = {name: write_log(tmp_path / f"{name}.jsonl", *LOG[:3]) for name in ("one", "two")}
    learning_curves(tmp_path / "curves.svg", logs)
    words = words_in(tmp_path / "curves.svg")
    assert [words.count(word) for word in ("one", "two", "training", "dev")] == [1, 1, 1, 1]


def test_a_run_without_evaluations_has_a_curve_of_its_loss_alone(tmp_path):
    learning_curves(tmp_path / "curve.svg", {"": write_log(tmp_path / "metrics.jsonl", {"step": 1, "loss": 3.0})})
    words = words_in(tmp_path / "curve.svg")
    assert "loss" in words and "dev" not in words


def test_steps_done_again_count_once_and_a_half_written_last_line_is_no_harm(tmp_path):
    records = [{"step": step, "loss": loss} for step, loss in [(1, 3.0), (2, 9.0), (2, 2.0), (3, 1.0)]]
    log = write_log(tmp_path / "metrics.jsonl", *records, tail='{"step": 4, "lo')
    assert logged_metrics.read(log) == {"loss": [(1, 3.0), (2, 2.0), (3, 1.0)]}


def test_logs_that_cannot_be_drawn_are_refused_with_their_place(tmp_path):
    log = tmp_path / "metrics.jsonl"
    with pytest.raises(UserError, match=r"metrics\.jsonl does not exist"):
        learning_curves(tmp_path / "curve.png", {"": log})
    with pytest.raises(UserError, match="neither a loss nor a score"):
        learning_curves(tmp_path / "curve.png", {"": write_log(log, {"step": 1, "seconds": 2.0})})
    with pytest.raises(UserError, match="line 2: not a JSON object with a step"):
        learning_curves(tmp_path / "curve.png", {"": write_log(log, {"step": 1}, {"loss": 2.0}, {"step": 3})})


# ------------------------------------------------------------------------------------ good manners


def test_no_global_state_is_touched(tmp_path):
    before = matplotlib.rcParams.copy()
    attention_map(tmp_path / "map.png", ["a"], ["b"], [[1.0]])
    assert matplotlib.rcParams.copy() == before
    program = (
        "import sys; from s2sjax.evaluate.figures.attention_maps import attention_map;"
        f"attention_map({str(tmp_path / 'again.png')!r}, ['a'], ['b'], [[1.0]]);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    root = Path(s2sjax.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
