"""The benchmark of training steps: its runs, output, files and ratios."""

import csv
import json
import re
import sys
from types import SimpleNamespace

import jax
import pytest

from s2sjax import config
from s2sjax.bench import peers, pretrained_models, timing, train_speed
from s2sjax.bench.decode import decode_speed
from s2sjax.cli.arguments import COMMANDS
from s2sjax.core.backend import device

TINY = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1)
LUONG = config.Luong(width=8, embedding_size=4, layers=1, input_feeding=False)
CASES = {"Transformer 8": train_speed.Case(TINY, 12, 3, 6), "Luong 8": train_speed.Case(LUONG, 12, 2, 4)}


@pytest.fixture
def tiny(monkeypatch):
    size = train_speed.Size(config.Train(optimizer="adam", label_smoothing=0.1), CASES)
    monkeypatch.setattr(train_speed, "SIZES", {"small": size})
    monkeypatch.setattr(timing, "measure_ceilings", lambda dtype: timing.Ceilings(1e9, 1e9))
    monkeypatch.setattr(train_speed, "_missing", lambda: "No module named 'torch'")
    monkeypatch.setattr(peers, "remarks", lambda size: [])


def test_ours_alone(tiny, call, tmp_path):
    code, out, err = call("bench", "train", "--only", "luong", "--rounds", 2, "--out", tmp_path / "new")
    assert (code, err) == (0, "")
    first, ceiling, missing, heading, case, row, wrote = out.splitlines()
    assert first.startswith("small: training steps in float32, on ") and "jax " in first
    assert ceiling == "a large matrix product reaches 1.00 GFLOP/s: MFU is relative to that"
    assert missing == "PyTorch is left out: No module named 'torch'"
    assert re.split(" {2,}", heading.strip()) == [
        "ms/step", "spread", "tokens/s", "MFU", "memory", "compile s", "s2sjax is faster by",
    ]  # fmt: skip
    assert case == "Luong 8"
    assert row.split()[0] == "s2sjax" and row.endswith(" -")
    assert wrote == f"wrote {tmp_path / 'new' / 'train.csv'}, {tmp_path / 'new' / 'train.json'}"
    found = json.loads((tmp_path / "new" / "train.json").read_text())
    assert {"date", "command", "device", "versions"} <= found["environment"].keys()
    assert {"jax", "jaxlib", "python"} <= found["environment"]["versions"].keys()
    (written,) = found["rows"]
    assert (written["size"], written["model"], written["library"]) == ("small", "Luong 8", "s2sjax")
    assert written["flops"] > 0 and written["memory"] > 0 and written["compile_seconds"] > 0
    assert written["utilisation"] == pytest.approx(written["flops"] / written["seconds"] / 1e9)
    with open(tmp_path / "new" / "train.csv", encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert line.keys() == written.keys() and line["ratio"] == ""


def test_what_cannot_be_measured_is_refused_before_any_work(tiny, call, tmp_path, monkeypatch):
    monkeypatch.setattr(train_speed, "_measure", None)
    choices = "choose from Transformer 8; Luong 8"
    assert call("bench", "train", "--only", "x")[2] == f"error: --only 'x' matches no model: {choices}\n"
    (tmp_path / "file").write_text("")
    code, _, err = call("bench", "train", "--out", tmp_path / "file" / "below")
    assert code == 2 and err.startswith(f"error: {tmp_path / 'file' / 'below'}: ")
    assert "invalid choice: 'huge'" in call("bench", "train", "--size", "huge")[2]
    error = "error: --size and --model both choose what is measured: leave one of them out\n"
    assert call("bench", "train", "--size", "small", "--model", "marian") == (2, "", error)
    for option, owners in (("--only", "train, decode and sweep"), ("--out", "layers, train, decode and sweep")):
        error = f"error: {option} is an option of bench {owners}: leave it out\n"
        assert call("bench", "data", option, "x") == (2, "", error)
    assert "--rounds is 0: it must be at least 1" in call("bench", "train", "--rounds", 0)[2]


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_left_out(tiny, monkeypatch, capsys):
    def full(case, *_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes")

    monkeypatch.setattr(train_speed, "_measure", full)
    train_speed.bench("small")
    left_out = "  s2sjax is left out: it does not fit in the memory of this device"
    assert capsys.readouterr().out.splitlines()[4:] == ["Transformer 8", left_out, "Luong 8", left_out]


class Clock:
    """Time passes only in the calls of `Fake`."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Fake:
    memory, compile_seconds = 2**30, 7.0

    def __init__(self, clock, *spans):
        self.clock, self.spans, self.steps = clock, list(spans), []

    def __call__(self, steps=1):
        self.steps.append(steps)
        self.clock.now += steps * (self.spans.pop(0) if len(self.spans) > 1 else self.spans[0])


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (peers, timing):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.slow
def test_ratios_to_each_mode_of_pytorch_and_the_best_of_them(tiny, clock, monkeypatch, capsys):
    ours = Fake(clock, 0.1)
    # The first call of a peer is not measured.
    slow, fast = Fake(clock, 9.0, 0.4, 0.2, 0.3), Fake(clock, 9.0, 0.15, 0.15, 0.12)
    others = {"PyTorch eager": slow, "PyTorch compiled": fast}
    monkeypatch.setattr(train_speed, "_missing", lambda: "")
    monkeypatch.setattr(train_speed, "Trainer", lambda *_: ours)
    monkeypatch.setattr(train_speed, "_pytorch", lambda: {
        "PyTorch graph": lambda *_: 1 / 0, **{name: lambda *_, one=one: one for name, one in others.items()}
    })  # fmt: skip
    train_speed.bench("small", 3, ["transformer"])
    assert ours.steps[2:] == slow.steps[1:] == fast.steps[1:] == [3, 3, 3]  # rounds of 0.3 s, ours being calibrated
    lines = capsys.readouterr().out.splitlines()[4:]
    assert [re.split(" {2,}", line.strip()) for line in lines[:3]] == [
        ["s2sjax", "100", "0%", *lines[0].split()[3:5], "1.1 GB", "7.0", "-"],
        ["PyTorch eager", "300", "67%", *lines[1].split()[4:6], "1.1 GB", "7.0", "3.00x"],
        ["PyTorch compiled", "150", "20%", *lines[2].split()[4:6], "1.1 GB", "7.0", "1.50x"],
    ]
    assert lines[3] == "  PyTorch graph is left out: division by zero"
    assert lines[4] == "  1.50 times as fast as the best of them, PyTorch compiled"


def test_each_mode_of_pytorch_gets_the_same_work(monkeypatch):
    """A CUDA graph uses the trainer before it."""
    mode = lambda compiled, graph: SimpleNamespace(compiled=compiled, graph=graph)
    modes = {"eager": mode(0, 0), "graph": mode(0, 1), "compiled graph": mode(1, 1), "compiled": mode(1, 0)}
    fake = SimpleNamespace(MODES={"cpu": modes}, Trainer=lambda *given: given, Graph=lambda trainer: ("graph", trainer))
    monkeypatch.setitem(sys.modules, "s2sjax.bench.torch_peers", fake)
    monkeypatch.setattr("s2sjax.bench.torch_peers", fake, raising=False)
    monkeypatch.setattr(peers, "torch_device", lambda: "cpu")
    assert train_speed._missing() == ""
    settings = config.Train()
    work = CASES["Luong 8"], settings, "source", "target"
    builders = train_speed._pytorch()
    same = CASES["Luong 8"], "source", "target", settings, "cpu"
    assert builders["eager"](*work) == (*same, modes["eager"])
    assert builders["graph"](*work) == ("graph", (*same, modes["eager"]))
    with pytest.raises(RuntimeError, match="the same mode without a CUDA graph does not run"):
        builders["compiled graph"](*work)
    assert builders["compiled"](*work) == (*same, modes["compiled"])


@pytest.mark.slow
def test_our_step_is_compiled_as_in_training(monkeypatch):
    given, compile_with = [], device.compile_with
    monkeypatch.setattr(
        device, "compile_with", lambda lowered, options, note: (given.append(options), compile_with(lowered, None))[1]
    )
    case = CASES["Luong 8"]
    ours = train_speed.Trainer(case.model, case.vocabulary, *train_speed.make_batch(case), config.Train())
    assert given == [device.compiler_options()]
    ours(2)
    assert int(ours._state.step) == 3 and len(given) == 1


def test_pretrained_models_are_measured_alike():
    """The same models by the same names, in both benchmarks and on the command line."""
    command = next(each for each in COMMANDS if each.name == "bench")
    [choices] = [each.settings["choices"] for each in command.options if each.names == ["--model"]]
    assert choices == [*pretrained_models.MODELS]
    assert train_speed.PRETRAINED.keys() == decode_speed.PRETRAINED.keys() == pretrained_models.MODELS.keys()
    for name, (model, vocabulary) in pretrained_models.MODELS.items():
        [case] = train_speed.PRETRAINED[name].cases.values()
        assert case.pretrained and (case.model, case.vocabulary) == (model, vocabulary)
        assert decode_speed.PRETRAINED[name].model == config.replace(model, dropout=0.0)


def test_rows_end_in_their_second_half():
    source, target = train_speed.make_batch(train_speed.Case(LUONG, 50, 200, 10))
    for ids in (source, target):
        lengths = (ids > 0).sum(1)
        assert set(lengths) == set(range(5, 11)) and (ids[:, 0] >= 4).all()


def test_flops_of_the_products():
    """A Transformer with little attention has 6 FLOPs per weight and token, the usual rule."""
    c = config.Transformer(width=32, heads=2, feedforward=64, encoder_layers=1, decoder_layers=1)
    rows, length, vocabulary = 2, 3, 40
    attention, feedforward = 4 * 32 * 32, 2 * 32 * 64
    weights = 3 * attention + 2 * feedforward + 32 * vocabulary
    scores = 3 * 2 * length * 32  # of each attention: queries times keys, weights times values
    expected = 6 * rows * length * (weights + scores)
    for dtype in ("float32", "bfloat16"):
        found = train_speed.count_flops(train_speed.Case(c, vocabulary, rows, length), config.Train(dtype=dtype))
        assert found == expected
