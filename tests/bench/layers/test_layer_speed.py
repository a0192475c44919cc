"""The command `s2sjax bench layers`: a small real run, PyTorch, layers that do not fit, and wrong settings."""

import csv
import itertools
import json
import re

import jax
import pytest

from s2sjax.bench import timing
from s2sjax.bench.layers import layer_figures, layer_speed
from s2sjax.bench.layers.layer_types import TYPES, Point

ARGUMENTS = ("bench", "layers", "--lengths", "4,2", "--widths", "4", "--batch", "2", "--heads", "2", "--radius", "1")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(timing, "measure_ceilings", lambda dtype: timing.Ceilings(1e12, 1e11))
    monkeypatch.setattr(timing, "SHORTEST", 1e-5)
    monkeypatch.setattr(layer_speed.importlib.util, "find_spec", lambda name: None)


@pytest.mark.slow
def test_a_small_run_writes_its_table_and_figures(call, tmp_path):
    out = tmp_path / "made" / "here"
    some = "recurrent,convolution,attention,ssd"
    code, printed, errors = call(*ARGUMENTS, "--layers", some, "--rounds", 1, "--out", out, "--chunk", "2")
    assert (code, errors) == (0, ""), errors
    lines = printed.splitlines()
    assert max(map(len, lines[:-1])) <= 120
    assert lines[1] == "ceilings: 1.00 TFLOP/s (matrix product), 100 GB/s (copy); %: fraction of the ceiling"
    assert lines[3] == "PyTorch is left out: it is not installed"
    assert lines[5] == "batch 2, width 4, 2 heads, float32"
    assert sorted(path.name for path in out.iterdir()) == ["layers.csv", "layers.json", "roofline.png", "time.png"]
    with (out / "layers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["recurrent", "convolution k=3", "attention", "ssd chunk=2"]
    assert list(dict.fromkeys(row["name"] for row in rows)) == names
    each = [("2", "forward"), ("2", "+backward"), ("4", "forward"), ("4", "+backward")]
    assert [(row["length"], row["pass"]) for row in rows] == each * len(names)
    for row in rows:
        assert float(row["fastest"]) <= float(row["seconds"]) <= float(row["slowest"])
        assert float(row["tokens_per_second"]) == pytest.approx(2 * int(row["length"]) / float(row["seconds"]))
        assert float(row["of_product"]) == pytest.approx(float(row["flops"]) / float(row["seconds"]) / 1e12)
        assert float(row["of_copy"]) == pytest.approx(float(row["bytes"]) / float(row["seconds"]) / 1e11)
        assert float(row["compile_seconds"]) > 0 and int(row["memory_bytes"]) > 0 and not row["peer"]
    assert rows[0]["sequential"] == "2" and rows[0]["unroll"] == "1" and rows[-1]["unroll"] == ""
    assert [(row["form"], row["chunk"]) for row in (rows[0], rows[-1])] == [("", ""), ("chunked", "2")]
    assert rows[-1]["sequential"] == "2"
    assert "lengths n at which a recurrence is faster than attention, causal attention and the LSTM" in lines
    whole = json.loads((out / "layers.json").read_text())
    assert whole.keys() == {"environment", "settings", "ceilings", "exponents", "rows"}
    assert whole["settings"]["lengths"] == [2, 4] and len(whole["rows"]) == len(rows)
    assert {"date", "command", "device", "versions"} <= whole["environment"].keys()
    assert f"wrote {out / 'layers.csv'}, " in lines[-1]


def test_variants_of_one_layer():
    """Remat does not change the forward pass, so that only its backward pass is measured."""
    s = layer_speed.ON_CPU._replace(lengths=(2,), kernel=(3, 5), unroll=(1, 4), remat=("none", "layers"))
    found = [(layer_speed.label(point), backward) for point, backward in layer_speed._points(s, 1, 64)]
    assert found[:6] == [
        ("recurrent unroll=1", False), ("recurrent unroll=1", True), ("recurrent unroll=1 remat=layers", True),
        ("recurrent unroll=4", False), ("recurrent unroll=4", True), ("recurrent unroll=4 remat=layers", True),
    ]  # fmt: skip
    assert [name for name, backward in found[6:] if backward] == [
        "parallel", "convolution k=3", "convolution k=5", "attention", "causal", "restricted r=16", "ssd"
    ]  # fmt: skip


def test_variants_of_a_recurrence():
    """Chunks belong to one form, unrolling to another; a layer with one form is measured in it."""
    layers, forms = ("ssd", "rg_lru", "slstm"), ("chunked", "scan", "associative")
    s = layer_speed.ON_CPU._replace(lengths=(8,), layers=layers, form=forms, chunk=(16, 32), unroll=(None, 4))
    found = list(dict.fromkeys(layer_speed.label(point) for point, _ in layer_speed._points(s, 1, 64)))
    assert found == [
        "ssd chunk=16", "ssd chunk=32", "ssd form=scan", "ssd form=scan unroll=4",
        "rg_lru chunk=16", "rg_lru chunk=32", "rg_lru form=scan", "rg_lru form=scan unroll=4",
        "rg_lru form=associative", "slstm", "slstm unroll=4",
    ]  # fmt: skip


def test_all_layers_and_forms_can_be_named(call, monkeypatch, tmp_path):
    monkeypatch.setattr(layer_speed, "bench", lambda settings: found.append(settings))
    found: list[layer_speed.Settings] = []
    assert call(*ARGUMENTS, "--layers", "all", "--form", "chunked,scan", "--chunk", "32,64", "--out", tmp_path)[0] == 0
    assert found[0].layers == tuple(TYPES)
    assert (found[0].form, found[0].chunk) == (("chunked", "scan"), (32, 64))


def row(name, length, seconds, way="forward"):
    layer = name.split()[0]
    rates = {"flops": 1e6 * length, "bytes": 1e5 * length, "flops_per_second": 1e6 * length / seconds}
    own = {"name": name, "layer": layer, "pass": way, "batch": 1, "width": 64, "length": length, "seconds": seconds}
    return own | rates | {"peer_seconds": 2 * seconds if layer == "attention" else None}


def rows_of_all_layers():
    """Attention grows as n^2, the rest as n: they are even at n = 64."""
    for way, name, length in itertools.product(layer_speed.PASSES, TYPES, (16, 64, 256)):
        slope = 2 if name in ("attention", "causal") else 1
        yield row(name, length, 1e-3 * (length / 64) ** slope, way)


def test_the_table_of_races_fits_the_terminal():
    lines = list(layer_speed.summary(list(rows_of_all_layers())))
    assert max(map(len, lines)) <= 120
    start = lines.index("lengths n at which a recurrence is faster than attention, causal attention and the LSTM")
    assert lines[start + 1].split() == ["layer", "pass", "batch", "width", "attention", "causal", "attention", "LSTM"]
    assert len(lines[start + 2 :]) == 2 * 11  # recurrences, forward and with gradients
    assert re.split(r"  +", lines[start + 2]) == ["recurrent", "forward", "1", "64", "n > 64", "n > 64", "-"]
    few = [each for each in rows_of_all_layers() if each["name"] in ("attention", "recurrent")]
    assert list(layer_speed.summary(few))[-2:] == [
        f"batch 1, width 64, {way}: attention is faster than recurrent up to n = 64, slower beyond"
        for way in layer_speed.PASSES
    ]


def test_columns_of_the_longest_usual_label_fit_the_terminal():
    columns = layer_speed._widened(layer_speed.COLUMNS, ["linear_attention form=scan"])
    assert sum(column.width for column in columns) <= 120


def test_figures_name_every_line_once(tmp_path):
    rows = [*rows_of_all_layers(), *(row("ssd chunk=16", n, 2e-3) for n in (16, 64, 256))]
    styles = layer_figures._styles(rows)
    assert len(styles) == len(set(styles.values())) == len(TYPES) + 1
    paths = layer_figures.draw(tmp_path, rows, timing.Ceilings(1e12, 1e11), "here")
    assert [path.name for path in paths] == ["time.png", "roofline.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_labels_do_not_overlap():
    near = layer_figures.spread_out([0.5, 0.5, 0.51, 0.98, 0.99], 0.1)
    assert near == pytest.approx([0.403, 0.503, 0.603, 0.9, 1.0], abs=1e-3)
    assert layer_figures.spread_out([0.2, 0.4], 0.1) == pytest.approx([0.2, 0.4])
    assert layer_figures.spread_out([0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1])


def test_remat_saves_memory_of_the_recurrent_backward_pass():
    sizes = [
        layer_speed.build(Point("recurrent", 2, 64, 8, 1, remat=policy), backward=True)[2]
        for policy in ("none", "layers")
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.slow
def test_pytorch_beside_ours(call, tmp_path, monkeypatch):
    """The layer is compared with the faster of two peers; a failing peer is named once."""

    def broken():
        raise RuntimeError("no kernel\nfor this shape")

    peer = lambda calls=1: sum(range(1000 * calls))
    builders = {"PyTorch": lambda: peer, "PyTorch compiled": broken}
    monkeypatch.setattr(layer_speed, "_peers", lambda s: (lambda point, backward: builders, ""))
    code, printed, _ = call(*ARGUMENTS, "--layers", "convolution", "--rounds", 1, "--out", tmp_path)
    assert code == 0
    assert printed.count("PyTorch compiled is left out: no kernel") == 1
    rows = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert all(row["peer"] == "PyTorch" and row["peer_ratio"] > 0 and row["peer_seconds"] > 0 for row in rows)


def test_what_does_not_fit_is_left_out(call, tmp_path, monkeypatch):
    free = iter([10**9] * 2 + [10] * 2)
    monkeypatch.setattr(layer_speed, "_free_memory", lambda: next(free))
    code, printed, _ = call(*ARGUMENTS, "--layers", "convolution", "--rounds", 1, "--out", tmp_path)
    assert code == 0
    assert "convolution k=3, n 4, forward: left out: it needs " in printed
    assert {row["length"] for row in json.loads((tmp_path / "layers.json").read_text())["rows"]} == {2}

    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes\nat ...")

    monkeypatch.setattr(layer_speed, "build", full)
    code, printed, errors = call(*ARGUMENTS, "--layers", "attention", "--out", tmp_path)
    assert "attention, n 2, +backward: left out: RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes\n" in printed
    assert (code, errors) == (2, "error: nothing was measured: choose smaller --lengths, --widths or --batch\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "0,4"], "argument --lengths: '0' is not a whole number that is at least 1"),
        (["--lengths", ""], "argument --lengths: '' is not a whole number"),
        (["--kernel", "-3"], "argument --kernel"),
        (["--widths", "x"], "argument --widths: 'x' is not a whole number"),
        (["--widths", "12", "--heads", "5"], "5 heads do not divide the width 12: change --heads or --widths"),
        (["--heads", "5"], "5 heads do not divide the width 64"),
        (
            ["--layers", "recurrent,conv"],
            "--layers has 'conv': choose from recurrent, parallel, convolution, attention",
        ),
        (["--form", "associative", "--layers", "rg_lru,ssd"], "--form has no form of ssd: choose from chunked, scan"),
        (["--form", "chunks"], "--form has 'chunks': choose from chunked, associative, scan"),
        (["--chunk", "0"], "argument --chunk: '0' is not a whole number that is at least 1"),
        (["--remat", "full"], "--remat has 'full': choose from none, products, layers"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--rounds", "0"], "--rounds is 0: it must be at least 1"),
        (["--out", "FILE/below"], "FILE"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(layer_speed, "bench", lambda settings: pytest.fail("work was begun"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    code, printed, errors = call("bench", "layers", *arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1) and message in errors


def test_settings_of_layers_are_only_for_layers(call):
    code, _, errors = call("bench", "train", "--compile-torch")
    assert (code, errors) == (2, "error: --compile-torch is an option of bench layers: leave it out\n")


def test_ceilings_of_a_device_that_is_shared(capsys):
    ceilings = timing.Ceilings(1e12, 1e11)
    assert layer_speed._higher(ceilings, timing.Ceilings(0.95e12, 1.05e11)) == (1e12, 1.05e11)
    assert capsys.readouterr().out == ""
    assert layer_speed._higher(ceilings, timing.Ceilings(2e12, 1e11)) == (2e12, 1e11)
    assert (
        "at the end: 2.00 TFLOP/s (matrix product), 100 GB/s (copy): the device was not idle" in capsys.readouterr().out
    )


def test_heads_divide_the_width():
    chosen = {width: layer_speed._heads(layer_speed.ON_CPU, width) for width in (1, 63, 64, 200, 512, 1021)}
    assert chosen == {1: 1, 63: 1, 64: 1, 200: 2, 512: 8, 1021: 1}
