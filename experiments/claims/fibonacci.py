"""Does attention lower the test error of a tiny RNN that predicts Fibonacci numbers?

Claim     Attention lowers the Fibonacci test error.
Source    a widely read tutorial on attention from scratch: a plain RNN of two units reads 20 numbers, with and without
          attention over its states (experiments/fibonacci.py has the same experiment through the runner)
Command   python experiments/claims/fibonacci.py

Many seeds train at once, on batches drawn with replacement. Which model is better depends on the training settings, so
the claim is tested with several learning rates, numbers of updates and batch sizes, and all of them count.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import jax
import numpy as np
import optax
import panels
from jax import Array

from s2sjax.config import Train
from s2sjax.tasks import Regression
from s2sjax.tasks.regression import Fibonacci, SeriesModel, Windows
from s2sjax.training.optimizers import optimizer

CLAIM = common.Claim(
    "fibonacci",
    "Fibonacci",
    "Attention lowers the Fibonacci test error",
    "a plain RNN with two units (11 weights), and the same with attention over its states (33 weights)",
    "log10 of (test error with attention / test error without), averaged over the settings",
)
STEPS = 20
"""number of values that the model reads"""


class Setting(NamedTuple):
    learning_rate: float
    b2: float
    updates: int
    batch: int

    def __str__(self) -> str:
        return f"rate {self.learning_rate:g}, b2 {self.b2:g}, {self.updates:,} updates of {self.batch}"


class Size(NamedTuple):
    seeds: int
    settings: tuple[Setting, ...]
    length: int = 1200
    """length of the series"""


SETTINGS = (
    Setting(3e-2, 0.999, 3000, 8),
    Setting(1e-2, 0.999, 3000, 8),
    Setting(3e-3, 0.999, 3000, 8),
    Setting(1e-2, 0.999, 8000, 8),
    Setting(2e-2, 0.98, 2000, 64),
)
SIZES = {
    "small": Size(8, SETTINGS),
    "full": Size(64, SETTINGS),
    "toy": Size(2, (Setting(3e-2, 0.999, 5, 4),), length=60),
}


def errors(setting: Setting, attention: bool, seeds: int, length: int) -> list[float]:
    """The mean squared error of the test windows, scaled to [0, 1], for each seed."""
    data = Windows(Fibonacci(length), STEPS, split="spread", scale="range")
    task = Regression("fibonacci", data=data, model=SeriesModel(2, "rnn", attention, "tanh", residual=False)).task()
    task = task.replace(assets=task.learn_assets(task.read()))
    columns = [task.columns(task.examples(split)) for split in ("train", "test")]
    train, test = (each.batch(np.arange(len(each.lengths)), (STEPS,)) for each in columns)
    update_rule = optimizer(
        Train(
            steps=setting.updates, learning_rate=setting.learning_rate, warmup_steps=100, b2=setting.b2, clip_norm=0.0
        )
    )

    def loss(params: Any, batch: Any) -> Array:
        total, weight = task.evaluation_loss()(params, batch)["loss"]
        return total / weight

    def learn(key: Array) -> Array:
        def update(state: Any, number: Array) -> tuple[Any, None]:
            params, moments = state
            rows = jax.random.randint(jax.random.fold_in(key, number), (setting.batch,), 0, len(train["target"]))
            batch = {name: jax.numpy.asarray(array)[rows] for name, array in train.items()}
            changes, moments = update_rule.update(jax.grad(loss)(params, batch), moments, params)
            return (optax.apply_updates(params, changes), moments), None

        params = task.init(key)
        (params, _), _ = jax.lax.scan(update, (params, update_rule.init(params)), np.arange(setting.updates))
        return loss(params, test)

    return jax.jit(jax.vmap(learn))(jax.vmap(jax.random.key)(np.arange(seeds))).tolist()


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    found = []
    for number, setting in enumerate(size.settings):
        both = [
            study.once(
                f"setting{number}-{'attention' if attention else 'last'}",
                [setting, size.seeds, size.length],
                partial(errors, setting, attention, size.seeds, size.length),
            )
            for attention in (False, True)
        ]
        found.append({"setting": str(setting), "without": both[0], "with": both[1]})
    return {"settings": found}


def judge(data: dict[str, Any]) -> common.Finding:
    rows, ratios, better, means = [], [], [], []
    for each in data["settings"]:
        without, with_attention = np.array(each["without"]), np.array(each["with"])
        ratios.append(np.log10(with_attention / without))
        better.append((with_attention < without).mean())
        means.append(with_attention.mean() < without.mean())
        cells = [f"{x.mean():.1e} ± {x.std(ddof=1):.1e}" for x in (without, with_attention)]
        rows.append([each["setting"], *cells, f"{(with_attention < without).sum()} of {len(without)}"])
    seeds, count = len(ratios[0]), len(rows)
    per_seed = np.mean(ratios, 0)  # [seeds]
    mostly = sum(share > 0.5 for share in better)
    verdict = common.verdict(mostly == count and all(means), mostly > count / 3)
    pairs = sum(int(share * seeds + 0.5) for share in better)
    paragraph = (
        f"With attention, the test error is lower for most seeds in {mostly} of {count} settings, lower on average in "
        f"{sum(means)}, and lower in {pairs} of {count * seeds} individual comparisons. Over all settings, the error "
        f"with attention is {10 ** per_seed.mean():.2f} times the error without (geometric mean). Which model is "
        "better depends on the learning rate and the number of updates"
        + (", so a single setting can make the claim look true or false." if 0 < sum(means) < count else ".")
    )
    columns = ("setting", "MSE, last state", "MSE, attention", "lower with attention")
    return common.Finding(per_seed.tolist(), verdict, paragraph, columns, rows)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("test error of each seed", "", "mean squared error", width=1.7 * len(data["settings"]))
    for number, each in enumerate(data["settings"]):
        for side, (name, label) in enumerate((("without", "last state"), ("with", "attention"))):
            place = number + (side - 0.5) * 0.35
            colour = panels.colour(side)
            panel.scatter([place] * len(each[name]), each[name], s=16, color=colour, alpha=0.6, linewidth=0)
            mean = float(np.exp(np.mean(np.log(each[name]))))
            panel.plot(
                [place - 0.13, place + 0.13], [mean, mean], color=colour, linewidth=2.5, label=None if number else label
            )
    labels = [each["setting"].replace(", ", "\n") for each in data["settings"]]
    panel.set_xticks(range(len(labels)), labels)
    panel.set_yscale("log")
    panels.key(panel)
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
