"""Each model learns to reverse or to sort, as the seed says, by the command that a user would give."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import child_environment, seed_of

EXPERIMENT = """
from s2sjax.config import *
from s2sjax.tasks import *

experiment = Translation(
    name="learn",
    data=Data(
        Synthetic("{task}", train=20_000, length={length}, alphabet=8, seed={seed}), buckets=((9, 9),),
        batch_tokens=1152,
    ),
    model={model},
    train=Train(steps={steps}, learning_rate={rate}, warmup_steps=100, evaluate_every={steps}, save_every={steps}),
    search=Search(beam_size=2),
    evaluate=Evaluate(metrics=("exact",), dev_examples=200),
    seed={seed},
)
"""
MODELS = {
    "rnnsearch": ("RNNsearch(width=64, embedding_size=32, dropout=0.0)", 4e-3),
    "luong": ("Luong(width=96, embedding_size=32, layers=1, bidirectional=True, dropout=0.0)", 4e-3),
    "transformer": (
        'Transformer(width=64, heads=4, feedforward=128, encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.0)',
        3e-3,
    ),
}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
def test_learns(name, tmp_path):
    assert score(name, seed_of(1), tmp_path, length=8, steps=1500) > 98


@pytest.mark.slow
def test_learns_shorter_words_in_fewer_steps(tmp_path):
    assert score("rnnsearch", 1, tmp_path, length=3, steps=150) > 98


def score(name: str, seed: int, folder: Path, length: int, steps: int) -> float:
    """The share of the test set that is right. On one device: the eight fake ones of other tests share two cores."""
    model, rate = MODELS[name]
    task = ("reverse", "sort")[seed % 2]
    page = EXPERIMENT.format(task=task, seed=seed, model=model, rate=rate, length=length, steps=steps)
    (folder / "learn.py").write_text(page)
    command = [sys.executable, "-m", "s2sjax.cli.main", "train", "learn.py", "--out", "run"]
    environment = child_environment()
    del environment["PJRT_NPROC"]
    if steps > 1000:  # it computes longer than it compiles
        del environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    result = json.loads(next(folder.glob("run/evaluations/*/results.json")).read_text())
    assert (result["split"], result["metrics"]["exact"]["examples"]) == ("test", 500)
    return result["metrics"]["exact"]["value"]
