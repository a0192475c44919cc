"""The Fibonacci experiment: weights counted by hand, and user errors."""

from itertools import pairwise

import jax
import numpy as np
import optax
import pytest

from s2sjax import config
from s2sjax.config import settings
from s2sjax.core.nn.pooling import attention_pool
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.tasks import Regression
from s2sjax.tasks.regression.settings import CsvSeries, Fibonacci, Series, SeriesEvaluate, SeriesModel, Windows
from s2sjax.tasks.regression.task import Estimate, Scale

SMALL = Regression("small", data=Windows(Fibonacci(40), steps=4, split="spread"))


def weights(experiment) -> int:
    shapes = jax.eval_shape(experiment.task().init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_many_to_one_fibonacci_has_11_weights_and_33_with_attention():
    """An RNN of two units on one input has 8 weights, dense 3, attention over 20 states of width 2 has 22."""
    assert weights(Regression("plain", data=Windows(steps=20), model=SeriesModel(2, "rnn"))) == 8 + 3
    assert (
        weights(Regression("attention", data=Windows(steps=20), model=SeriesModel(2, "rnn", attention=True)))
        == 8 + 22 + 3
    )


def test_the_series_and_its_windows():
    assert Fibonacci(8).values().tolist() == [1, 1, 2, 3, 5, 8, 13, 21]
    assert np.isfinite(Fibonacci(1476).values()).all()
    task = SMALL.task()
    parts = {split: task.examples(split) for split in ("train", "dev", "test")}
    found = sorted(window.target for part in parts.values() for window in part)
    assert found == Fibonacci(40).values()[4:].tolist()  # each window in one split
    for window in parts["test"]:
        assert window.target == window.values[-1] + window.values[-2]
    assert len(parts["train"]) > 20 and len(parts["test"]) > len(parts["dev"]) > 0


def test_attention_pooling_is_its_equation():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, 3, 4)).astype(np.float32)
    weights = {"kernel": rng.normal(size=4).astype(np.float32), "bias": rng.normal(size=3).astype(np.float32)}
    mask = np.array([[True, True, False], [False, False, False]])
    pooled, alpha = jax.jit(attention_pool)(weights, states, mask)
    scores = np.exp(np.tanh(states[0, :2] @ weights["kernel"] + weights["bias"][:2]))
    np.testing.assert_allclose(alpha[0], [*scores / scores.sum(), 0], atol=1e-6)
    np.testing.assert_allclose(pooled[0], (alpha[0][:, None] * states[0]).sum(0), atol=1e-6)
    assert not np.any(alpha[1]) and not np.any(pooled[1])
    gradient = jax.grad(lambda states: attention_pool(weights, states, mask)[0].sum())(states)
    assert np.isfinite(gradient).all()


def test_a_scale_is_undone():
    scale = Scale(2.0, 10.0)
    assert scale.apply([2.0, 6.0, 10.0]).tolist() == [0, 0.5, 1]
    assert scale.invert(0.5) == 6.0


def hours(folder, count=20):
    """A CSV file of the series 0, 1, 4, 9, ..."""
    rows = [f"2016-07-01 {n:02}:00,{-n},{n * n}" for n in range(count)]
    (folder / "series.csv").write_text("\n".join(["date,load,OT", *rows]))
    return CsvSeries(str(folder / "series.csv"), "OT")


def test_a_split_by_time_has_the_latest_targets_in_dev(tmp_path):
    data = Windows(hours(tmp_path), steps=4, dev_percent=25.0, test_percent=0.0, split="time", scale="deviation")
    task = Regression("series", data=data).task()
    train, dev = task.examples("train"), task.examples("dev")
    assert [window.target for window in train] == [n * n for n in range(4, 15)]
    assert [window.target for window in dev] == [n * n for n in range(15, 20)]
    assert dev[0].values.tolist() == [121, 144, 169, 196]  # the hours before, which training has seen
    scale = task.learn_assets(train)["scale"]
    values = np.arange(15.0) ** 2  # each training hour once
    assert abs(scale.low - values.mean()) < 1e-9 and abs(scale.high - values.mean() - values.std()) < 1e-9
    ahead = config.replace(data, horizon=3)
    later = Regression("series", data=ahead).task().examples("dev")
    assert later[0].values[-1] == 12 * 12 and later[0].target == 15 * 15


@settings
class Numbers(Series):
    """0, 1, 2, ...: each value is its index."""

    length: int = 100

    def values(self):
        return np.arange(float(self.length))


@pytest.mark.parametrize("steps, horizon", [(1, 1), (4, 1), (7, 3), (20, 5)])
@pytest.mark.parametrize("dev_percent, test_percent", [(10.0, 20.0), (25.0, 0.0), (0.0, 30.0), (7.5, 12.5), (0.0, 0.0)])
def test_by_default_no_value_is_in_two_parts(steps, horizon, dev_percent, test_percent):
    """Splits are in order of time, so training reads no target of dev and test; their sizes are those of `time`."""
    data = Windows(Numbers(200), steps, horizon, dev_percent, test_percent)
    assert data.split == "gap"
    parts = {}
    for split in ("train", "dev", "test"):
        task, by_time = (Regression("x", data=each).task() for each in (data, config.replace(data, split="time")))
        if not task.has(split):
            continue
        windows = task.examples(split)
        parts[split] = {value for window in windows for value in (*window.values, window.target)}
        assert split == "train" or len(windows) == len(by_time.examples(split))
        assert split != "test" or [w.target for w in windows] == [w.target for w in by_time.examples(split)]
    in_order = list(parts.values())
    assert all(max(one) < min(other) for one, other in pairwise(in_order))


def test_a_split_that_leaks_says_so():
    spread, by_time, gap = (Windows(Numbers(100), steps=4, split=split) for split in ("spread", "time", "gap"))
    task = Regression("x", data=spread).task()
    train = {value for window in task.read() for value in window.values}
    targets = [window.target for split in ("dev", "test") for window in task.examples(split)]
    read = len(train.intersection(targets))
    assert read > 0 and task.remarks(task.read()) == [
        f"training reads {read} of the {len(targets)} values that dev and test predict: "
        "set data.split gap to measure forecasts"
    ]
    assert all(Regression("x", data=data).task().remarks([]) == [] for data in (by_time, gap))


def test_the_scale_is_that_of_the_training_values(tmp_path):
    task = Regression("x", data=Windows(Numbers(100), steps=4, scale="range")).task()
    train = task.read()
    assert task.learn_assets(train)["scale"] == (0.0, train[-1].target)


@pytest.mark.slow
def test_the_default_model_beats_persistence():
    """It does so on two waves, after 100 updates; persistence is scored by default."""
    task = Regression("x").task()
    task = task.replace(assets=task.learn_assets(task.read()))
    columns = task.columns(task.read())
    train = columns.batch(np.arange(len(columns.lengths)), (20,))
    optimizer = optax.adam(1e-2)
    loss = lambda params, batch: (lambda total, weight: total / weight)(*task.evaluation_loss()(params, batch)["loss"])

    def step(state, key):
        params, moments = state
        rows = jax.random.randint(key, (32,), 0, len(train["target"]))
        gradient = jax.grad(loss)(params, {name: jax.numpy.asarray(array)[rows] for name, array in train.items()})
        update, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, update), moments), None

    params = task.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 100)
    (params, _), _ = jax.jit(lambda state: jax.lax.scan(step, state, keys))((params, optimizer.init(params)))
    examples = task.examples("test")
    found = task.metrics(examples, task.predictor()(params, examples))
    assert list(found) == ["mse", "persistence"]
    assert found["mse"].value < 0.1 * found["persistence"].value


class NotANumber(Series):
    def values(self):
        return np.where(np.arange(60) == 2, np.nan, 1.0)


@settings
class Huge(Series):
    largest: float = 1.7e308
    place: int = 3

    def values(self):
        return np.where(np.arange(60) == self.place, self.largest, np.arange(60) % 7)


@pytest.mark.parametrize(
    "series, options, message",
    [
        (
            Huge(),
            {},
            "value 4 of Huge is 1.7e+308: sums or squares of such numbers overflow: divide",
        ),
        (Huge(-1.7e308), {"split": "spread"}, "value 4 of Huge is -1.7e+308: sums or squares"),
        (Huge(1e30, 59), {}, "value 60 of Huge is 1e+30, too far from the training values (scaled by 2."),
        (Huge(1e30, 59), {"scale": "range"}, "value 60 of Huge is 1e+30, too far from the training values"),
        (Fibonacci(300), {}, "value 2"),
        (NotANumber(), {}, "value 3 of NotANumber is nan: give finite numbers, or leave it out"),
    ],
)
def test_numbers_that_overflow_are_refused_before_training(tmp_path, series, options, message):
    experiment = Regression(
        "huge", data=Windows(series, steps=4, **options), train=config.Train(steps=2, evaluate_every=0)
    )
    with pytest.raises(UserError) as caught:
        run.train(experiment, tmp_path / "run")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_column_that_overflows_is_named(tmp_path):
    series = hours(tmp_path)
    (tmp_path / "series.csv").write_text("OT\n" + "1e308\n-1e308\n" * 10)
    task = Regression("huge", data=Windows(series, steps=2)).task()
    with pytest.raises(UserError, match=r"value 1 of column 'OT' of .*series\.csv is 1e\+308: sums or squares"):
        task.learn_assets(task.read())
    with pytest.raises(UserError, match=r"line 1, number 2 is 1e\+300, too far from the training values"):
        SMALL.task().replace(assets={"scale": Scale(0.0, 1.0)}).example_of("1 1e300 2 3", "line 1")


def test_persistence_is_the_value_of_now(tmp_path):
    data = Windows(hours(tmp_path), steps=4, dev_percent=25.0, test_percent=0.0, split="time", scale="deviation")
    task = Regression("series", data=data, evaluate=SeriesEvaluate(("mse", "persistence"))).task()
    task = task.replace(assets={"scale": Scale(0.0, 10.0)})
    dev = task.examples("dev")
    found = task.metrics(dev, [Estimate(window.target, window.target / 10) for window in dev])
    assert found["mse"].value == 0
    expected = np.mean([((2 * n - 1) / 10) ** 2 for n in range(15, 20)])
    assert abs(found["persistence"].value - expected) < 1e-9


def test_a_residual_model_that_says_zero_is_persistence():
    task = Regression("series", data=Windows(steps=3), model=SeriesModel(output="linear", residual=True)).task()
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    values = np.array([[[1.0], [2.0], [5.0]]], np.float32)
    assert jax.jit(task.module.apply)({"params": zeros}, values, np.array([3])).tolist() == [[5.0]]


@pytest.mark.parametrize(
    "content, message",
    [
        ("date,load\nx,1\n", " has no column 'OT': its first line names date, load"),
        ("date,OT\nx,1\nx,one\n", ", line 3 has no number in column 'OT' ('x,one'): correct it"),
        ("date,OT\nx,nan\n", ", line 2 has no number in column 'OT' ('x,nan'): correct it"),
        ("date,OT\n1\n", ", line 2 has no number in column 'OT' ('1'): correct it"),
    ],
)
def test_a_file_that_is_no_series_is_refused(tmp_path, content, message):
    series = hours(tmp_path)
    (tmp_path / "series.csv").write_text(content)
    with pytest.raises(UserError) as caught:
        series.values()
    assert str(caught.value) == f"{tmp_path}/series.csv{message}"


def test_a_missing_series_names_its_origin(tmp_path):
    series = CsvSeries(str(tmp_path / "no.csv"), "OT", origin="ETTh1 (Zhou et al. 2021)")
    with pytest.raises(
        UserError, match=r"no\.csv \(CSV, column OT\) of ETTh1 \(Zhou et al. 2021\): correct data\.series"
    ):
        series.values()


@pytest.mark.parametrize(
    "line, message",
    [
        ("1 2 3", "line 1 has 3 numbers: write 4, separated by blanks"),
        ("1 2 3 x", "line 1: could not convert string to float: 'x': write 4 numbers, separated by blanks"),
    ],
)
def test_a_line_that_is_no_window_is_refused(line, message):
    with pytest.raises(UserError) as caught:
        SMALL.task().example_of(line, "line 1")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Fibonacci(2), "data.series.length is 2: it must be from 3 to 1476"),
        (lambda: Windows(dev_percent=60.0, test_percent=40.0), "data: dev_percent + test_percent is 100.0: nothing is"),
        (
            lambda: Regression("x", train=config.Train(label_smoothing=0.1)),
            "train.label_smoothing applies to translation, and a regression",
        ),
        (
            lambda: Regression("x", data=Windows(Fibonacci(10), steps=20)).task().read(),
            "the series has 10 values: data.steps 20 and data.horizon 1 need 21",
        ),
        (lambda: Regression("a/b"), "name is 'a/b': it must be the name of a folder"),
        (lambda: Regression("x", model="rnn"), "Regression.model is 'rnn': it must be a config.SeriesModel"),
    ],
)
def test_what_cannot_work_is_refused(build, message):
    with pytest.raises(UserError) as caught:
        build()
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_commands_for_text_say_that_they_are(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(
        "from s2sjax.config import Train\nfrom s2sjax.tasks.regression import *\n"
        "experiment = Regression('fib', data=Windows(Fibonacci(40), steps=4), train=Train(steps=2, evaluate_every=0))\n"
    )
    code, out, err = call("train", "page.py")
    assert (code, err) == (0, "")
    assert "fib: SeriesModel with 3,297 weights" in out
    assert "\nMSE " in out and "\nMSE of persistence " in out
    code, out, err = call("decode", "runs/fib", stdin=b"1 1 2 3\n5 8 13 21\n")
    assert (code, err, len(out.splitlines())) == (0, "", 2)
    assert all(np.isfinite(float(line)) for line in out.splitlines())
    first, second = out.splitlines()
    code, out, err = call("decode", "runs/fib", stdin=b"1 1 2 3\n1 2\n5 8 13 21\nx\n")
    assert (code, out.split("\n")) == (2, [first, "", second, "", ""])  # the others are answered
    assert err.splitlines() == [
        "error: standard input, line 2 has 2 numbers: write 4, separated by blanks",
        "error: standard input, line 4: could not convert string to float: 'x': write 4 numbers, separated by blanks",
        "error: 2 of 4 lines could not be read and got empty answers: see the errors above",
    ]
    for arguments, message in (
        (
            ("decode", "runs/fib", "--tag", "<2de>"),
            "error: --tag applies only to runs that translate text: leave it out\n",
        ),
        (
            ("decode", "runs/fib", "--search.beam_size", 4),
            "error: runs/fib has no field --search.beam_size that can be changed",
        ),
        (("score", "runs/fib"), "error: runs/fib does not translate text, which score requires"),
        (("prepare", "page.py"), "error: page.py has no text to prepare: use s2sjax train\n"),
        (("plan", "page.py", "--source-size", 9, "--target-size", 9), "error: --source-size and --target-size do not"),
    ):
        code, out, err = call(*arguments, stdin=b"1 1 2 3\n")
        assert (code, out) == (2, "")
        assert err.startswith(message)
    code, out, _ = call("plan", "page.py", "--devices", 2)
    assert code == 0 and "fib: SeriesModel with 3,297 weights" in out


@pytest.mark.exhaustive
def test_many_to_one_fibonacci_has_a_lower_test_error_with_attention_than_without():
    """The mean over eight seeds, which train at once as in experiments/fibonacci.py, and most of the seeds."""
    without, with_attention = (errors_of(attention, seeds=8, steps=3000) for attention in (False, True))
    assert with_attention.mean() < without.mean()
    assert (with_attention < without).sum() > 4


def errors_of(attention: bool, seeds: int, steps: int) -> np.ndarray:
    """[seeds]: the mean squared error of the test windows after training on batches of 8."""
    data = Windows(Fibonacci(1200), steps=20, split="spread", scale="range")
    task = Regression("fibonacci", data=data, model=SeriesModel(2, "rnn", attention, "tanh", residual=False)).task()
    task = task.replace(assets=task.learn_assets(task.read()))
    train, test = (task.columns(task.examples(split)) for split in ("train", "test"))
    train, test = (columns.batch(np.arange(len(columns.lengths)), (20,)) for columns in (train, test))
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0, 3e-2, 100, steps), b2=0.999, eps=1e-9)
    loss = lambda params, batch: (lambda total, weight: total / weight)(*task.evaluation_loss()(params, batch)["loss"])

    def learn(key):
        def step(state, number):
            params, moments = state
            rows = jax.random.randint(jax.random.fold_in(key, number), (8,), 0, len(train["target"]))
            gradient = jax.grad(loss)(params, {name: jax.numpy.asarray(array)[rows] for name, array in train.items()})
            update, moments = optimizer.update(gradient, moments, params)
            return (optax.apply_updates(params, update), moments), None

        params = task.init(key)
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), np.arange(steps))
        return loss(params, test)

    return np.asarray(jax.jit(jax.vmap(learn))(jax.vmap(jax.random.key)(np.arange(seeds))))
