"""Generates texts from sources of any kind (pictures, recordings), with the search of translator.py.

Letters: B rows of a batch, S positions of the memory, T target tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.search.hypotheses import Hypotheses
from s2sjax.data.batching.columns import AnyColumns, Batch, Buckets
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.search_programs import Converted, attention_weights, search_batch
from s2sjax.evaluate.prediction.translator import Output, outputs_of
from s2sjax.evaluate.prediction.word_constraints import word_constraints


class Generator:
    """Decodes with a model or an ensemble. Compiles one program per bucket, and reuses it between calls.

    The rows of the columns are sources; `source_of(batch)` returns the input of the modules. The random samples of a
    row depend on its number in the column `example`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        source_of: Callable[[Batch], Any],
        target: AnyVocabulary,
        options: config.Search,
        buckets: Buckets,
        rows: int,
        mesh: Mesh | None = None,
        longest: int | None = None,
        source_buckets: Buckets | None = None,
    ):
        """`buckets`, `rows`, `mesh` and `longest`: see `Batched`.

        source_buckets: the buckets of searches, where there are no targets; by default `buckets`.
        """
        self._words = word_constraints(options, target)
        self.attends = all(module.attends for module in modules)  # type: ignore[attr-defined]
        require(
            options.coverage == 0 or self.attends,
            f"search.coverage {options.coverage} requires a model with attention, and this model has none: set it to 0",
        )
        self.target, self.options = target, options
        self._modules, self._source_of = modules, source_of
        self._converted = Converted(options.precision)
        most = max(source_buckets[-1]) if source_buckets else longest
        self._search = Batched(self._search_rows, source_buckets or buckets, rows, mesh, most)
        self._attention = Batched(self._attention_rows, buckets, rows, mesh, longest)

    @property
    def rows(self) -> int:
        """The number of rows of a batch."""
        return self._search.rows

    def decode(self, params: Any, columns: AnyColumns) -> list[list[Output]]:
        """Returns the n best outputs of each row, best first. `params` is a list for an ensemble."""
        return [outputs_of(self.options, self.target, found) for found in self._search(self._stored(params), columns)]

    def lower(self, params: Any, batch: Any) -> Any:
        """Lowers the search for arrays of these shapes, ready to be compiled."""
        return self._search.lower((params,), batch)

    def attention(self, params: Any, columns: AnyColumns) -> list[np.ndarray]:
        """The attention weights [T, S] of the tokens in column `target` of each row, including padding."""
        require(self.attends, "an attention map requires a model with attention: choose another model")
        return self._attention(self._stored(params), columns)

    def _stored(self, params: Any) -> tuple:
        return self._converted(tuple(params) if len(self._modules) > 1 else (params,))

    def _search_rows(self, params: tuple, batch: dict[str, Any]) -> Hypotheses:
        rows = len(batch["example"])
        prefixes = jnp.broadcast_to(jnp.array(self._words.prefix, jnp.int32), (rows, len(self._words.prefix)))
        numbers = jnp.maximum(batch["example"], 0)
        search = partial(search_batch, self._modules, self.options, self._words, slots=rows)
        return search(params, self._source_of(batch), prefixes, numbers)[0]

    def _attention_rows(self, params: tuple, batch: dict[str, Any]) -> Array | None:
        source = self._source_of(batch)
        return attention_weights(self._modules, self.options.ensemble, params, source, batch["target"])
