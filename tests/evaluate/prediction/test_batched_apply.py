"""A compiled function over all rows of a data set."""

import numpy as np
import pytest

from s2sjax.data.batching.columns import Aligned, Columns, Ragged
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.batched_apply import Batched


def test_every_row_once_in_order_and_longer_than_any_bucket_too():
    words = [[7] * length for length in (1, 9, 2, 30, 3, 0)]
    columns = Columns({"ids": Ragged.of_ids(words)}, {}, np.arange(6, dtype=np.int32), (6,))
    widths = set()

    def sums(params, batch):
        widths.add(batch["ids"].shape)
        return params * batch["ids"].sum(1)

    found = Batched(sums, ((2,), (4,)), rows=2)(3, columns)
    assert [int(one) for one in found] == [3 * (7 * len(word) + 2) for word in words]
    assert widths == {(2, 2), (2, 4), (1, 16), (1, 32)}  # the longer, the fewer at once


def test_aligned_columns_share_the_lengths_of_a_bucket():
    offsets = np.array([0, 1, 4])
    ragged = {
        name: Ragged(np.array(ids, np.int32), offsets) for name, ids in (("a", [1, 2, 2, 2]), ("b", [5, 6, 7, 8]))
    }
    columns = Aligned(Columns(ragged, {}, np.arange(2, dtype=np.int32), (2,)))
    assert columns.lengths.tolist() == [[1], [3]] and columns.sizes == (2,)
    batch = columns.batch(np.array([1, -1]), (4,))
    assert batch["a"].tolist() == [[2, 2, 2, 0], [0, 0, 0, 0]] and batch["b"].tolist()[0] == [6, 7, 8, 0]


def test_no_bucket_is_longer_than_what_a_model_can_address():
    columns = Columns({"ids": Ragged.of_ids([[7] * 8])}, {}, np.arange(1, dtype=np.int32), (1,))
    widths = []

    def sums(params, batch):
        widths.append(batch["ids"].shape)
        return batch["ids"].sum(1)

    assert [int(one) for one in Batched(sums, ((4,),), 2, longest=9)(None, columns)] == [58]
    assert widths == [(1, 9)]
    with pytest.raises(UserError, match="an example has 9 positions, the model reads 8"):
        Batched(sums, ((4,),), 2, longest=8)(None, columns)
