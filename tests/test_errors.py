"""The name that was probably meant."""

import dataclasses

import pytest

from s2sjax import config
from s2sjax.errors import nearest

FIELDS = [
    f"{group}.{field.name}"
    for group, kind in {"search": config.Search, "train": config.Train, "model": config.Luong}.items()
    for field in dataclasses.fields(kind)
]


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("search.beem", "search.beam_size"),
        ("search.bean_size", "search.beam_size"),
        ("beam_size", "search.beam_size"),
        ("search.ngram", "search.no_repeat_ngram_size"),
        ("train.stepz", "train.steps"),
        ("steps", "train.steps"),
        ("train.warmup_step", "train.warmup_steps"),
        ("train.accum", "train.grad_accum_steps"),
        ("model.embed", "model.embedding_size"),
        ("xyz", ""),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(typed, meant):
    assert nearest(typed, FIELDS, cutoff=0.6) == meant
