"""Rows of a benchmark on the terminal and in files."""

import csv
import json

import pytest

from s2sjax.bench import result_files

COLUMNS = [
    result_files.Column("name", "layer", 8),
    result_files.Column("seconds", "ms", 9, result_files.milliseconds),
    result_files.Column("rate", "FLOP/s", 9, result_files.si),
    result_files.Column("ratio", "PyTorch", 10, result_files.ratio),
]
ROWS = [
    {"name": "scan", "seconds": 0.0123456, "rate": 62.18e9, "ratio": 1.5},
    {"name": "dense", "seconds": 1.5, "rate": 999.6, "ratio": None},
]


def test_a_line_is_aligned_with_its_heading():
    lines = [result_files.heading(COLUMNS), *(result_files.line(COLUMNS, row) for row in ROWS)]
    assert lines == [
        "layer          ms   FLOP/s   PyTorch",
        "scan         12.3    62.2G     1.50x",
        "dense       1,500    1.00k         -",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.000"), (12, "12.0"), (999.6, "1.00k"), (8.4e14, "840T"), (3e15, "3.00P"), (4e18, "4,000P")],
)
def test_numbers_have_three_digits(value, shown):
    assert result_files.si(value) == shown


def test_a_number_with_its_unit():
    assert result_files.si(62.18e9, "FLOP/s") == "62.2 GFLOP/s"


def test_files_hold_all_rows_and_where_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["s2sjax", "bench", "layers", "--out", "my runs"])
    found = result_files.environment()
    assert found["command"] == "s2sjax bench layers --out 'my runs'"
    assert {"s2sjax", "python", "jax", "jaxlib"} <= found["versions"].keys()
    assert f"jax {found['versions']['jax']}" in result_files.describe(found)
    table, whole = result_files.write(tmp_path, "layers", ROWS, environment=found, note=3)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"name": "scan", "seconds": "0.0123456", "rate": "62180000000.0", "ratio": "1.5"}
    assert rows[1]["ratio"] == ""
    assert json.loads(whole.read_text()) == {"environment": found, "note": 3, "rows": ROWS}


def test_a_folder_that_cannot_be_written_fails_at_once(tmp_path):
    result_files.open_folder(tmp_path / "new" / "folder")
    assert not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        result_files.open_folder(tmp_path / "file" / "below")
