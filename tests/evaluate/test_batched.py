"""A function over all rows of a data set: each row once, in order, however long."""

import numpy as np

from s2sjax.data.columns import Aligned, Columns, Ragged, with_longer
from s2sjax.evaluate.batched import Batched


def aligned(*lengths: int) -> Aligned:
    """Row n has the ids n + 1, as often as its length, and their doubles beside them."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)
    ragged = {"ids": Ragged(flat, offsets), "twice": Ragged(2 * flat, offsets)}
    return Aligned(Columns(ragged, {}, np.arange(len(lengths), dtype=np.int32), (len(lengths),)))


def test_aligned_columns_share_the_lengths_of_a_bucket():
    columns = aligned(1, 3)
    assert columns.lengths.tolist() == [[1], [3]] and columns.sizes == (2,)
    batch = columns.batch(np.array([1, -1]), (4,))
    assert batch["ids"].tolist() == [[2, 2, 2, 0], [0, 0, 0, 0]] and batch["twice"].tolist()[0] == [4, 4, 4, 0]


def test_the_last_bucket_is_doubled_until_all_rows_fit():
    assert with_longer([(4,), (8,)], np.array([[3], [20]])) == [(4,), (8,), (16,), (32,)]
    assert with_longer([(4,), (8,)], np.array([[8]])) == [(4,), (8,)]


def test_rows_of_any_length_come_back_in_order():
    seen = []

    def function(params, batch):
        seen.append(batch["ids"].shape)
        return batch["ids"].sum(1) + batch["twice"].max(1)

    lengths = (3, 40, 1, 4, 5, 2)
    found = Batched(function, [(2,), (4,)], 4)(None, aligned(*lengths))
    assert found == [n * length + 2 * n for n, length in enumerate(lengths, start=1)]
    assert sorted(seen) == [(1, 64), (2, 8), (4, 2), (4, 4)]  # the longer, the fewer at once
