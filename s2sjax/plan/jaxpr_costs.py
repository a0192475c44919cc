"""Counts the FLOPs and bytes of a program in its jaxpr, including every iteration of its loops.

XLA's cost analysis counts the body of a loop once, whatever its length. But a Transformer is a scan over layers, and a
recurrent model a scan over time, whose lengths the jaxpr contains. For a program without loops both count the same
FLOPs (tested).

    x [4, 8] @ w [8, 2] in a scan of 3    ->  3 times 2 * 4 * 8 * 2 FLOPs
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval


class Kind(enum.IntEnum):
    OTHER = 0
    """operation other than a product: limited by memory bandwidth"""
    WHOLE = 1
    """product with a matrix that no rule splits: every device of the `tensor` axis computes all of it"""
    SPLIT = 2
    """product with a matrix that a rule splits"""
    HEADS = 3
    """product of two activations per head: split with the heads"""
    GRADIENT = 4
    """any other product of two activations, usually the gradient of a matrix: split like the matrices"""


class Work(NamedTuple):
    """Operations, one per element of each array."""

    kind: np.ndarray
    times: np.ndarray
    """number of executions"""
    flops: np.ndarray
    """FLOPs per execution; 0 for operations other than products"""
    bytes: np.ndarray
    """bytes read and written by a product, or written by another operation"""
    narrow: np.ndarray
    """bytes of the smaller activation, input or output, of a product"""
    float32: np.ndarray
    """whether a product has inputs of at least 4 bytes"""

    @property
    def products(self) -> float:
        """The total FLOPs of the products."""
        return float((self.flops * self.times).sum())


# Operations that only rename, move or repeat values are fused into their consumer.
VIEWS = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice", "iota", "optimization_barrier",
    "reshape", "rev", "sharding_constraint", "slice", "squeeze", "stop_gradient", "transpose",
}  # fmt: skip


def count(program: Any, split: Sequence[bool | None]) -> Work:
    """Counts a closed jaxpr. `split`, per input: True for a matrix that a rule splits, False for another, else None."""
    # Remove dead code, as XLA does.
    needed, _ = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars), instantiate=True)
    return Work(*map(np.array, zip(*_walk(needed, split, 1, []))))


def _walk(jaxpr: Any, split: Sequence[bool | None], times: int, out: list) -> Iterator[tuple]:
    """Yields the fields of `Work` for each operation. Appends to `out` a value for each output, as in `split`."""
    known = {var: owner for var, owner in zip(jaxpr.invars, split) if owner is not None}
    owner = lambda atom: None if hasattr(atom, "val") else known.get(atom)  # only literals have a value
    for equation in jaxpr.eqns:
        name, owners = equation.primitive.name, [owner(atom) for atom in equation.invars]
        inner = _inner(equation)
        if inner is not None:
            left: list[bool | None] = []
            often = equation.params.get("length", 1) if name == "scan" else 1
            aligned = owners if len(owners) == len(inner.invars) else [None] * len(inner.invars)
            yield from _walk(inner, aligned, times * often, left)
            found = left if len(left) == len(equation.outvars) else []
        elif name in ("dot_general", "conv_general_dilated"):
            yield _product(equation, owners, times)
            found = []
        elif name in VIEWS:
            found = owners[:1]
        else:  # computed only from parameters, such as a normalized matrix: counts as a parameter
            given = [owner(atom) for atom in equation.invars if not hasattr(atom, "val")]
            made = bool(given) and all(one is not None for one in given)
            found = [any(given)] * len(equation.outvars) if made else []
            written = [_bytes(var) for var in equation.outvars if not _is_index(var)]
            yield Kind.OTHER, times, 0.0, float(sum(written)), 0.0, False
        known |= {var: one for var, one in zip(equation.outvars, found) if one is not None}
    out += [owner(atom) for atom in jaxpr.outvars]


def _inner(equation: Any) -> Any:
    """The jaxpr of a loop, a call or the largest branch of a `cond`; None for any other operation."""
    if equation.primitive.name == "cond":
        return max((branch.jaxpr for branch in equation.params["branches"]), key=lambda jaxpr: len(jaxpr.eqns))
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "body_jaxpr"):
        if name in equation.params:
            return getattr(equation.params[name], "jaxpr", equation.params[name])
    return None


def _product(equation: Any, owners: Sequence[bool | None], times: int) -> tuple:
    left, right = equation.invars[:2]
    result = equation.outvars[0]
    sizes = [_bytes(atom) for atom in (left, right, result)]
    if equation.primitive.name == "dot_general":
        (contracted, _), (batch, _) = equation.params["dimension_numbers"]
        inner, heads = math.prod(left.aval.shape[axis] for axis in contracted), len(batch) > 1
    else:
        numbers = equation.params["dimension_numbers"]
        inner, heads = math.prod(right.aval.shape) // right.aval.shape[numbers.rhs_spec[0]], False
    matrix = next((owner for owner in owners[:2] if owner is not None), None)
    kind = {None: Kind.HEADS if heads else Kind.GRADIENT, True: Kind.SPLIT, False: Kind.WHOLE}[matrix]
    activations = [size for size, owner in zip(sizes, (*owners[:2], None)) if owner is None]
    wide = left.aval.dtype.itemsize >= 4
    return kind, times, 2.0 * math.prod(result.aval.shape) * inner, float(sum(sizes)), float(min(activations)), wide


def _is_index(atom: Any) -> bool:
    """Whether an array holds indices, masks or random bits, which are computed where they are used, not written."""
    return not jnp.issubdtype(getattr(atom.aval, "dtype", jnp.float32), jnp.inexact)


def _bytes(atom: Any) -> int:
    dtype = getattr(atom.aval, "dtype", None)
    return 0 if dtype is None else math.prod(atom.aval.shape) * getattr(dtype, "itemsize", 0)
