"""Each model learns: reverse and sort, with a fresh random seed each time."""

import secrets

import numpy as np
import pytest

from s2sjax import config, run

MODELS = {
    "rnnsearch": (config.RNNsearch(width=64, embedding=32, dropout=0.0), 4e-3),
    "luong": (config.Luong(width=96, embedding=32, layers=1, bidirectional=True, dropout=0.0), 4e-3),
    "transformer": (
        config.Transformer(
            width=64, heads=4, feedforward=128, encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.0
        ),
        3e-3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reverse", "sort"])
@pytest.mark.parametrize("name", MODELS)
def test_learns(name, task, tmp_path, capsys):
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")  # shown by pytest when the test fails
    model, rate = MODELS[name]
    experiment = config.Experiment(
        name=f"{task}-{name}",
        data=config.Data(
            corpus=config.Synthetic(task, train=20_000, length=8, alphabet=8, seed=seed), buckets=((9, 9),), tokens=1152
        ),
        model=model,
        train=config.Train(steps=1500, learning_rate=rate, warmup=100, evaluate_every=500, save_every=500),
        search=config.Search(beam=2),
        evaluate=config.Evaluate(metrics=("exact",), lines=200),
        seed=seed,
    )
    trained, _ = run.train(experiment, tmp_path / "run")
    result = run.evaluate(trained, "test")["exact"]
    assert result.examples == 500
    assert np.isfinite(result.value)
    assert result.value > 98
