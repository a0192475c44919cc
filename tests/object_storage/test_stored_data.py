"""Runs in object storage on data that they store: frames and examples in memory, and what else a run keeps there."""

import jax
import numpy as np
import pyarrow as pa
import pytest
from conftest import refused

import s2sjax
from s2sjax import config, tasks
from s2sjax.models.families.ngram_cnn import NGrams
from s2sjax.tasks.classification.settings import LabelData, LabelModel

ONE = pytest.mark.parametrize("bucket", ["gs", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
WORDS = ["good", "bad", "film", "so", "a", "one", "not"]
LINES = [" ".join(WORDS[(i * k + i) % 7] for k in range(1 + i % 6)) for i in range(40)]
TABLE = pa.table({"text": LINES, "label": [str(line.count("o") % 2) for line in LINES]})
TEST = TABLE.slice(3, 5)
CORPORA = {
    "frame": config.Frame(TABLE, test=TEST, source="text", target="label", dev_percent=20.0),
    "memory": config.InMemory(train=TABLE.to_pylist(), test=TEST.to_pylist(), source="text", target="label"),
}


def experiment(kind: str, steps: int):
    return tasks.Classification(
        "tiny",
        data=LabelData(CORPORA[kind], buckets=((4,), (8,)), batch_tokens=32),
        model=LabelModel(NGrams(embedding_size=4, kernels=(1, 2), filters=4)),
        train=config.Train(steps=steps, schedule_steps=8, warmup_steps=2, evaluate_every=0, save_every=4),
    )  # fmt: skip


def leaves(trained) -> list:
    return jax.tree.leaves(trained.params()[0])


@ONE
@pytest.mark.parametrize("kind", ["frame", pytest.param("memory", marks=pytest.mark.slow)])
def test_a_run_keeps_its_data_in_the_bucket(bucket, kind, tmp_path):
    """It is resumed bit for bit, evaluated and opened from what it has stored, as in a local folder."""
    local = s2sjax.train(experiment(kind, 8), tmp_path / "local")
    s2sjax.train(experiment(kind, 4), bucket)
    trained = s2sjax.train(experiment(kind, 8), bucket)
    for mine, wanted in zip(leaves(trained), leaves(local), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert sorted(path.name for path in (trained.folder / "data").iterdir()) == sorted(
        path.name for path in (local.folder / "data").iterdir()
    )
    opened = s2sjax.load(bucket)
    assert opened.experiment.data == local.experiment.data
    for split in ("train", "test"):
        assert opened.task.examples(split) == local.task.examples(split) != []
    assert opened.evaluate("test").outputs == local.evaluate("test").outputs
    stored = next(path for path in (trained.folder / "data").iterdir() if path.name.startswith("test"))
    stored.write_bytes(stored.read_bytes()[:-9])
    message = refused(lambda: s2sjax.load(bucket).evaluate("test"))
    assert message.startswith(f"{stored} cannot be read (") and "copy it again from where the run was made" in message
