"""A compiled function over all rows of a data set."""

import numpy as np

from s2sjax.data.columns import Columns, Ragged
from s2sjax.evaluate.batched import Batched


def test_every_row_once_in_order_and_longer_than_any_bucket_too():
    words = [[7] * length for length in (1, 9, 2, 30, 3, 0)]
    columns = Columns({"ids": Ragged.of_ids(words)}, {}, np.arange(6, dtype=np.int32), (6,))
    widths = set()

    def sums(params, batch):
        widths.add(batch["ids"].shape)
        return params * batch["ids"].sum(1)

    found = Batched(sums, ((2,), (4,)), rows=2)(3, columns)
    assert [int(one) for one in found] == [3 * (7 * len(word) + 2) for word in words]
    assert widths == {(2, 2), (2, 4), (2, 16), (2, 32)}
