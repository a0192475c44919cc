"""Parts of a training set: each planned pair is in one part, which has all its words; batches do not mix parts."""

import numpy as np
import pytest

from s2sjax.core.special_tokens import EOS
from s2sjax.data.batching.batch_plan import Plan, make_batch
from s2sjax.data.batching.columns import Ragged
from s2sjax.data.batching.target_subsets import split
from s2sjax.data.examples import Example
from s2sjax.data.pairs import encode
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError

A, B, C, D = 4, 5, 6, 7


def test_the_worked_example_of_the_docstring():
    parts = split(Ragged.of_ids([[A, B], [B, C], [D]]), np.ones(3, bool), 4 + 3)
    assert parts.of.tolist() == [0, 0, 1]
    assert parts.words.tolist() == [[0, 1, 2, 3, A, B, C], [0, 1, 2, 3, A, B, D]]


def test_pairs_that_are_not_planned_have_no_part():
    parts = split(Ragged.of_ids([[A], [A, B, C, D], [B]]), np.array([True, False, True]), 6)
    assert parts.of.tolist() == [0, -1, 0] and parts.words.tolist() == [[0, 1, 2, 3, A, B]]


def test_a_target_with_more_words_than_a_part_is_refused():
    with pytest.raises(UserError) as caught:
        split(Ragged.of_ids([[A], [A, B, C, D]]), np.ones(2, bool), 6)
    assert str(caught.value) == (
        "train.softmax.subset is 6, but a target has 8 distinct words including the specials: set it to 8 or more"
    )


def test_a_batch_has_pairs_of_one_part_whose_words_hold_all_of_its_targets():
    letters = Vocabulary("characters", "abcdefghijklmnop")
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefghijklmnop"), rng.integers(1, 7))) for _ in range(60)]
    pairs = encode([Example(text, (text,)) for text in texts], letters, letters)
    parts = split(pairs.ragged["target"], np.ones(60, bool), 12)
    assert len(parts.words) > 3 and parts.words.shape[1] == 12 and np.all(np.diff(parts.words) > 0)

    plan = Plan(pairs.lengths, ((4, 4), (8, 8)), 64, seed=1, multiple=2, part=parts.of)
    assert plan.used_buckets == [0, 1]
    seen = []
    for step in range(2 * plan.steps_per_epoch):
        batch = make_batch(pairs, plan, step)
        (part,) = set(batch["part"].tolist())
        assert batch["part"].shape == batch["example"].shape and batch["part"].dtype == np.int32
        rows = batch["example"][batch["example"] >= 0]
        assert set(parts.of[rows]) == {part}
        assert set(batch["target"].ravel()) <= set(parts.words[part]) and EOS in parts.words[part]
        halves = [make_batch(pairs, plan, step, [index], 2) for index in range(2)]
        assert np.array_equal(np.concatenate([half["part"] for half in halves]), batch["part"])
        seen += rows.tolist()
    assert sorted(seen) == sorted([*range(60)] * 2)
