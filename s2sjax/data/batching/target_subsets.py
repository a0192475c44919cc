"""A training set split into parts, each with few distinct target words (Jean et al. 2015, section 3.2).

Sentences are read in order. A new part starts when the next sentence would exceed the number of words of a part. A part
with fewer words is filled up with the most frequent other words, so that all parts have the same number. All parts
share the parameters; only the words over which a batch is normalized differ.
"""

from typing import NamedTuple

import numpy as np

from s2sjax.core.special_tokens import SPECIALS
from s2sjax.data.batching.columns import Ragged
from s2sjax.errors import UserError


class Parts(NamedTuple):
    """The part of each pair, and the words of each part."""

    of: np.ndarray  # int32 [pairs]: the part of each pair; -1 if the pair is not used
    words: np.ndarray  # int32 [parts, N]: the target words of each part, in ascending order


def split(targets: Ragged, planned: np.ndarray, size: int) -> Parts:
    """Splits the pairs with `planned` [pairs] into parts of `size` target words, including the specials.

    targets a b | b c | d, size 4 + 3 with <eos> among the specials  ->  parts 0 0 1, words {a b c}, {d a b}
    """
    part = np.full(len(planned), -1, np.int32)
    specials = frozenset(range(len(SPECIALS)))
    found: list[set[int]] = [set(specials)]
    for pair in np.flatnonzero(planned):
        words = specials.union(targets.flat[targets.offsets[pair] : targets.offsets[pair + 1]].tolist())
        if len(words) > size:
            what = f"a target has {len(words)} distinct words including the specials"
            raise UserError(f"train.softmax.subset is {size}, but {what}: set it to {len(words)} or more")
        if len(found[-1] | words) > size:
            found.append(set())
        found[-1] |= words
        part[pair] = len(found) - 1
    return Parts(part, np.stack([_filled(words, size) for words in found]))


def _filled(words: set[int], size: int) -> np.ndarray:
    """Fills up a part with the smallest other ids, the most frequent words: {0, 5}, 4 -> 0 1 2 5."""
    others = [word for word in range(size + len(words)) if word not in words]
    return np.array(sorted([*words, *others[: size - len(words)]]), np.int32)
