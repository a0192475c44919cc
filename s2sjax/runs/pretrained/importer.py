"""The interface of importers and exporters, one for each kind of model.

read(folder, name, options)         -> Imported
dump(run, params, origin, dtype)    -> Exported
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config, interop

LENGTHS = (16, 32, 64, 128, 256)
"""lengths of the buckets of an imported run, as far as its model can address them"""


class Options(NamedTuple):
    """Options of an import."""

    source_language: str | None = None
    target_language: str | None = None
    test: tuple[str, ...] = ()
    """absolute paths of text to evaluate on"""


class Imported(NamedTuple):
    """A pretrained model as an experiment without training data, with all that its run folder holds."""

    experiment: config.Experiment
    assets: Mapping[str, Any]
    params: Any
    """nested parameters in float32"""
    dtype: str
    """dtype of the original files"""
    origin: interop.Origin
    """what an export needs"""
    remarks: Sequence[str]
    """lines on what was not taken"""
    use: str = "translate lines with s2sjax decode {run}"
    """what to do with the run, for the last line"""


class Exported(NamedTuple):
    """A run as a model of transformers."""

    hf_config: dict[str, Any]
    tensors: dict[str, np.ndarray]


def buckets(places: int | None) -> tuple[int, ...]:
    """The lengths of the buckets of a model with this number of positions; None for no limit."""
    most = places or LENGTHS[-1]
    return tuple(length for length in LENGTHS if length <= most) or (most,)
