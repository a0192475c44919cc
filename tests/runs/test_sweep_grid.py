"""The members of a sweep, and its values on the command line."""

import pytest
from conftest import refused

from s2sjax import config, tasks
from s2sjax.cli.sweep_command import _values
from s2sjax.runs.sweeps import sweep_grid
from s2sjax.runs.sweeps.sweep_grid import Range

EXPERIMENT = tasks.Translation("e", model=config.Luong(width=8, embedding_size=4))


def test_all_combinations_have_the_names_of_their_settings():
    found = sweep_grid.members({"seed": range(2), "train.learning_rate": [1e-3, 2e-4]})
    assert list(found) == [
        "seed=0,train.learning_rate=0.001", "seed=0,train.learning_rate=0.0002",
        "seed=1,train.learning_rate=0.001", "seed=1,train.learning_rate=0.0002",
    ]  # fmt: skip
    assert found["seed=1,train.learning_rate=0.0002"] == {"seed": 1, "train.learning_rate": 2e-4}


def test_pairs():
    found = sweep_grid.members({"seed": [0, 1], "model.width": [8, 16]}, pairs=True)
    assert list(found) == ["seed=0,model.width=8", "seed=1,model.width=16"]


def test_random_members_are_drawn_on_a_logarithmic_scale_the_same_ones_each_time_and_with_all_seeds():
    grid = {
        "seed": [3, 4],
        "train.learning_rate": Range(1e-4, 1e-2),
        "model.width": Range(8, 64),
        "model.tie": ["a", "b"],
    }
    found = sweep_grid.members(grid, random=30)
    assert len(found) == 60 and found == sweep_grid.members(grid, random=30)
    few = list(sweep_grid.members(grid, random=5))
    assert few == list(found)[:10]
    rates = [settings["train.learning_rate"] for settings in found.values()]
    assert min(rates) >= 1e-4 and max(rates) <= 1e-2 and 10 < sum(rate < 1e-3 for rate in rates) < 50
    assert all(isinstance(settings["model.width"], int) for settings in found.values())
    assert {settings["model.tie"] for settings in found.values()} == {"a", "b"}


def test_a_dict_names_values_and_settings_are_applied_together():
    models = {"small": config.Luong(width=4, embedding_size=4), "large": config.Luong(width=16, embedding_size=4)}
    found = sweep_grid.members({"model": models, "model.dropout": [0.1]})
    assert list(found) == ["model=small,model.dropout=0.1", "model=large,model.dropout=0.1"]
    large = sweep_grid.apply(EXPERIMENT, found["model=large,model.dropout=0.1"])
    assert (large.model.width, large.model.dropout) == (16, 0.1)
    # Each of these alone would be refused.
    both = {"train.optimizer": "adamw", "train.weight_decay": 0.1}
    adam = config.replace(EXPERIMENT, train=config.Train(optimizer="adam"))
    assert sweep_grid.apply(adam, both).train.weight_decay == 0.1


@pytest.mark.parametrize(
    "text, values",
    [
        ("0,1,2", [0, 1, 2]),
        ("1e-3, 2e-3", [1e-3, 2e-3]),
        ("gru,lstm", ["gru", "lstm"]),
        ("((4,4),(8,8)),((8,8),)", [((4, 4), (8, 8)), ((8, 8),)]),
        ("1e-4..1e-2", Range(1e-4, 1e-2)),
        ("5", None),
        ("None,0.9", [None, 0.9]),
    ],
)
def test_values_on_the_command_line(text, values):
    assert sweep_grid.parse(text) == values


def test_fields_with_one_value_are_set():
    buckets = ["--data.buckets", "4", "4", "8", "8"]
    grid, fixed = _values(["--seed", "0,1", "--train.steps", "5", "--train.clip=0.5,1", *buckets])
    assert grid == {"seed": [0, 1], "train.clip_norm": [0.5, 1]}
    assert fixed == ["--train.steps", "5", *buckets]


@pytest.mark.parametrize(
    "action, message",
    [
        (lambda: sweep_grid.parse("3..1"), "3..1 is not a range: write two numbers above 0, the lower first"),
        (lambda: sweep_grid.parse("a..b"), "a..b is not a range"),
        (lambda: sweep_grid.members({"train.learning_rate": Range(1, 2)}), "is a range, 1..2: add --random N"),
        (lambda: sweep_grid.members({"seed": Range(1, 2)}, random=2), "seed is a range: list the seeds"),
        (lambda: _values(["--seed", "0,1", "--seed", "2,3"]), "--seed is given twice"),
        (lambda: sweep_grid.apply(EXPERIMENT, {"modell.width": 3}), "there is no field modell"),
        (lambda: sweep_grid.apply(EXPERIMENT, {"seed.x": 3}), "seed is 0, which has no fields: sweep it as a whole"),
    ],
)
def test_mistakes_are_named(action, message):
    assert message in refused(action)
