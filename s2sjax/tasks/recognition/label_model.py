"""The alphabet of a CTC model and the language model of its training labels, as one asset of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax.config import require
from s2sjax.core.chains import ngram_language_model
from s2sjax.core.chains.ctc_prefix_search import LanguageModel
from s2sjax.data import assets

LARGEST = 1_000_000
"""maximum number of entries in the table of a language model"""


class LabelModel(NamedTuple):
    """The asset `labels`: the alphabet, and an n-gram model of them (core/chains/ngram_language_model.py)."""

    alphabet: tuple[str, ...]
    log_probs: tuple[tuple[float, ...], ...]
    """table [C, V] of the n-gram model, or () without one"""

    @classmethod
    def of(cls, alphabet: Sequence[str], sequences: Sequence[Sequence[int]], order: int) -> LabelModel:
        symbols = len(alphabet) + 1
        require(
            ngram_language_model.size(symbols, order) <= LARGEST,
            f"data.ngram {order} needs a table of {symbols}^{order} numbers for {len(alphabet)} labels: lower it",
        )
        table = ngram_language_model.estimate(sequences, symbols, order).log_probs.tolist() if order else []
        return cls(tuple(alphabet), tuple(map(tuple, table)))

    @property
    def symbols(self) -> int:
        """The number of labels, including the blank."""
        return len(self.alphabet) + 1

    @property
    def language_model(self) -> LanguageModel:
        return ngram_language_model.from_table(np.array(self.log_probs, np.float32))

    def ids(self, labels: Sequence[str]) -> list[int]:
        """The ids of labels, from 1; 0 is the blank."""
        return [self.alphabet.index(label) + 1 for label in labels]

    @property
    def fingerprint(self) -> str:
        return assets.fingerprint(self)

    def save(self, folder: Path, name: str) -> None:
        assets.save_json(folder, name, self._asdict())
