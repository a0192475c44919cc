"""The numbers of an experiment, as arguments of its train step."""

import numpy as np

from s2sjax import config, tasks
from s2sjax.config.numbers import COUNTS

EXPERIMENT = tasks.Translation(
    "e", model=config.Pair(config.Transformer(dropout=0.1), config.RNNsearch(dropout=0.2)), train=config.Train(b1=0.8)
)


def test_all_real_numbers_of_train_and_model_are_arguments_and_no_shapes():
    found = config.numbers(EXPERIMENT)
    assert found["model.encoder.dropout"] == 0.1 and found["model.decoder.dropout"] == 0.2
    assert found["train.b1"] == 0.8 and "train.b2" not in found  # None
    assert {"seed", "train.learning_rate", "train.scheduled_sampling.k", "train.warmup_steps"} <= found.keys()
    assert not {"model.encoder.width", "train.steps", "data.batch_tokens"} & found.keys()
    assert all(name in COUNTS or isinstance(value, float) for name, value in found.items())


def test_other_values_replace_them_without_a_check():
    other = config.with_numbers(EXPERIMENT, {"seed": "any", "model.decoder.dropout": 7.0, "train.learning_rate": -1.0})
    assert (other.seed, other.model.decoder.dropout, other.train.learning_rate) == ("any", 7.0, -1.0)
    assert other.model.encoder == EXPERIMENT.model.encoder and other.data is EXPERIMENT.data
    assert EXPERIMENT.seed == 0 and type(other) is type(EXPERIMENT)


def test_of_a_seed_the_lower_bits_are_used():
    for seed in (0, 7, 2**31, 2**32 + 5, -1):
        assert config.argument("seed", seed) == np.array(seed % 2**32, np.uint32).astype(np.int32)
    assert config.argument("train.learning_rate", 1).dtype == np.float32
    assert config.argument("train.warmup_steps", 3).dtype == np.int32
