"""Each model learns to reverse or to sort, as a fresh random seed says, by the command that a user would give."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import s2sjax

EXPERIMENT = """
from s2sjax.config import *
from s2sjax.tasks import *

experiment = Translation(
    name="learn",
    data=Data(
        corpus=Synthetic("{task}", train=20_000, length=8, alphabet=8, seed={seed}), buckets=((9, 9),), tokens=1152
    ),
    model={model},
    train=Train(steps=1500, learning_rate={rate}, warmup=100, evaluate_every=500, save_every=500),
    search=Search(beam=2),
    evaluate=Evaluate(metrics=("exact",), lines=200),
    seed={seed},
)
"""
MODELS = {
    "rnnsearch": ("RNNsearch(width=64, embedding=32, dropout=0.0)", 4e-3),
    "luong": ("Luong(width=96, embedding=32, layers=1, bidirectional=True, dropout=0.0)", 4e-3),
    "transformer": (
        'Transformer(width=64, heads=4, feedforward=128, encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.0)',
        3e-3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_learns(name, tmp_path):
    """On one device: the eight fake ones of the other tests share two cores, and would take turns."""
    model, rate = MODELS[name]
    seed = secrets.randbelow(2**31)
    task = ("reverse", "sort")[seed % 2]
    print(f"seed {seed}")  # shown by pytest when the test fails
    (tmp_path / "learn.py").write_text(EXPERIMENT.format(task=task, seed=seed, model=model, rate=rate))
    command = [sys.executable, "-m", "s2sjax.cli", "train", "learn.py", "--out", "run"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(s2sjax.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (result["split"], result["exact"]["examples"]) == ("test", 500)
    assert result["exact"]["value"] > 98
