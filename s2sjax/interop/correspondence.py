"""Correspondences: one parameter of s2sjax and the tensors of a file that it is made of, in both directions.

    Row("encoder/blocks/stack/attention/key_value/kernel",
        ("encoder.layers.{}.self_attn.k_proj.weight", "encoder.layers.{}.self_attn.v_proj.weight"),
        shape=(512, 512), layers=6, transpose=True)

says that the kernel [6, 512, 1024] has one entry per layer, and that each is the concatenation of two transposed
tensors [512, 512]. The rows of a family are its table. `import_parameter` and `export_parameter` are inverse to each
other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Side = Literal["", "source", "target"]
Foreign = Mapping[str, np.ndarray]
"""foreign id of each id of s2sjax, for the vocabularies "source" and "target\""""


@dataclass(frozen=True)
class Row:
    """One parameter of s2sjax, and the tensors of a file that it is made of."""

    ours: str
    """path of the parameter"""
    theirs: tuple[str, ...]
    """names of the tensors, with {} for the number of the layer; several are concatenated along the last axis"""
    shape: tuple[int, ...]
    """shape of each tensor in the file"""
    layers: int = 0
    """number of layers that are stacked along the first axis; 0 for a parameter of no layer"""
    transpose: bool = False
    """whether the file has [outputs, inputs], and the parameter [inputs, outputs]"""
    vocabulary: Side = ""
    """vocabulary whose ids number the first axis of the tensor, or the last axis of [1, ids]"""
    factor: float = 1.0
    """number by which the parameter is multiplied"""
    skip: int = 0
    """number of rows at the start of the tensor that the parameter does not have"""

    def names(self) -> Iterator[str]:
        """Yields the names of the tensors of all layers."""
        return (name.format(layer) for layer in range(max(1, self.layers)) for name in self.theirs)


def dense(ours: str, theirs: tuple[str, ...], inputs: int, outputs: int, layers: int, bias: bool = True) -> list[Row]:
    """The rows of a dense layer, or of several that are concatenated, `outputs` being those of each."""
    kernel = Row(f"{ours}/kernel", tuple(f"{name}.weight" for name in theirs), (outputs, inputs), layers, True)
    offset = Row(f"{ours}/bias", tuple(f"{name}.bias" for name in theirs), (outputs,), layers)
    return [kernel, offset] if bias else [kernel]


def norm(ours: str, theirs: str, width: int, layers: int = 0, bias: bool = True) -> list[Row]:
    """The rows of a norm."""
    scale = Row(f"{ours}/scale", (f"{theirs}.weight",), (width,), layers)
    return [scale, Row(f"{ours}/bias", (f"{theirs}.bias",), (width,), layers)] if bias else [scale]


def import_parameter(row: Row, read: Callable[[str], np.ndarray], foreign: Foreign) -> np.ndarray:
    """Builds a parameter in float32. `read` returns a tensor of the row's shape by its name."""
    if not row.layers:
        return _import_one(row, read, foreign, 0)
    first = _import_one(row, read, foreign, 0)
    stack = np.empty((row.layers, *first.shape), np.float32)
    stack[0] = first
    for layer in range(1, row.layers):
        stack[layer] = _import_one(row, read, foreign, layer)
    return stack


def _import_one(row: Row, read: Callable[[str], np.ndarray], foreign: Foreign, layer: int) -> np.ndarray:
    parts = []
    for name in row.theirs:
        x = read(name.format(layer)).astype(np.float32)
        if row.vocabulary:
            x = (x[0] if _is_flat(row) else x)[foreign[row.vocabulary]]
        x = x[row.skip :]
        parts.append(x.T if row.transpose else x)
    value = np.concatenate(parts, axis=-1) if len(parts) > 1 else np.ascontiguousarray(parts[0])
    return value if row.factor == 1 else value * np.float32(row.factor)


def put(params: dict[str, Any], path: str, value: np.ndarray) -> None:
    """Adds a parameter to nested dictionaries, by its path."""
    *parents, last = path.split("/")
    for name in parents:
        params = params.setdefault(name, {})
    params[last] = value


def export_parameter(
    row: Row, value: np.ndarray, foreign: Foreign, skipped: Callable[[str], np.ndarray | None]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of a parameter in float32, by their names. `skipped` returns the rows that were skipped."""
    for layer in range(max(1, row.layers)):
        one = value[layer] if row.layers else value
        one = one if row.factor == 1 else one / np.float32(row.factor)
        for name, part in zip(row.theirs, np.split(one, len(row.theirs), axis=-1)):
            x = part.T if row.transpose else part
            if row.skip:
                before = skipped(name.format(layer))
                before = np.zeros((row.skip, *x.shape[1:]), np.float32) if before is None else before
                x = np.concatenate([before.astype(np.float32), x])
            if row.vocabulary:
                x = _inverse(x, foreign[row.vocabulary])
            yield name.format(layer), x.reshape(row.shape)


def _is_flat(row: Row) -> bool:
    """Whether the tensor is [1, ids]."""
    return len(row.shape) == 2 and row.shape[0] == 1


def _inverse(x: np.ndarray, foreign: np.ndarray) -> np.ndarray:
    """Undoes x[foreign]."""
    result = np.empty_like(x)
    result[foreign] = x
    return result


def parameter_shape(row: Row) -> tuple[int, ...]:
    """The shape of the parameter."""
    shape = row.shape[1:] if row.vocabulary and _is_flat(row) else row.shape
    shape = (shape[0] - row.skip, *shape[1:])
    shape = shape[::-1] if row.transpose else shape
    shape = (*shape[:-1], shape[-1] * len(row.theirs))
    return (row.layers, *shape) if row.layers else shape
