"""Initial parameters from another run, matched by name and shape.

If the vocabularies differ, an id means different words. For parameters that are indexed by words, the task then gives
the axis of the words, and the row of each word in the other run (`Rows`):

    this run's words a b c, the other's c a    ->    Rows(0, [1, -1, 0]): b keeps its initial row
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.errors import UserError
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.mesh import path_of, with_shardings

Tree = Any
SHOWN = 6
"""maximum number of names of a list that are printed"""


class Rows(NamedTuple):
    """The correspondence between the rows of a parameter of this run and of the other run."""

    axis: int
    of: np.ndarray
    """[n] row of the other run for each row of this run; -1 for none"""
    name: str = ""
    """path of the other run's parameter, if it differs"""


class Transfer(NamedTuple):
    """The parameters that are taken from another run, and those that are not."""

    taken: dict[str, Rows | None]
    """rows of each parameter taken, by path; None for all rows"""
    new: dict[str, tuple[int, ...]]
    """shapes of the parameters that keep their initial values, by path"""
    left: dict[str, tuple[int, ...]]
    """shapes of the parameters of the other run that are not used, by path"""

    def describe(self, name: str, step: int) -> list[str]:
        """Describes the transfer in lines for the log."""
        total = len(self.taken) + len(self.new)
        lines = [f"initialised from {name}, checkpoint of step {step}: {len(self.taken)} of {total} parameters taken"]
        rows = {path: how.of for path, how in self.taken.items() if how is not None}
        mapped = [f"{path} {(index >= 0).sum():,} of {len(index):,}" for path, index in rows.items()]
        if mapped:
            lines.append(f"  rows of words that both vocabularies have: {_some(mapped)}")
        for what, shapes in (("new", self.new), ("not used", self.left)):
            if shapes:
                lines.append(f"  {what}: {_some([f'{path} {shape}' for path, shape in shapes.items()])}")
        return lines


def match(params: Tree, others: Tree, rows: Mapping[str, Rows | None]) -> Transfer:
    """Matches parameters (arrays, or their shapes) of equal names and shapes.

    rows: those of parameters that belong to different words, by path; None if they cannot be mapped.
    """
    shapes, found = ({path: leaf.shape for path, leaf in named_leaves(tree)} for tree in (params, others))
    taken: dict[str, Rows | None] = {}
    for path, shape in shapes.items():
        how = rows.get(path)
        there = found.get((how and how.name) or path)
        if there is None or (path in rows and how is None):
            continue
        if how is None and there == shape:
            taken[path] = None
        elif how is not None and _without(there, how.axis) == _without(shape, how.axis) and (how.of >= 0).any():
            taken[path] = how
    used = {(how and how.name) or path for path, how in taken.items()}
    new = {path: shape for path, shape in shapes.items() if path not in taken}
    left = {path: shape for path, shape in found.items() if path not in used}
    return Transfer(taken, new, left)


def require_some(transfer: Transfer, name: str) -> None:
    """Raises UserError if the other run has nothing in common with this one."""
    if not transfer.taken:
        first = lambda shapes: _some([f"{path} {shape}" for path, shape in shapes.items()], 2)
        raise UserError(
            f"nothing of {name} fits: it has {first(transfer.left)}; this model has {first(transfer.new)}: "
            "use a model with the same names and shapes, or leave out --init"
        )


def template(transfer: Transfer, others: Tree, params: Tree) -> Tree:
    """Abstract parameters of the other run. Those taken as a whole are sharded like `params`, this run's."""
    mine = dict(named_leaves(params))
    mesh = next(iter(mine.values())).sharding.mesh
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: mine[path_of(path)] if transfer.taken.get(path_of(path), 0) is None else leaf,
        with_shardings(others, mesh),
    )


def merge(transfer: Transfer, params: Tree, others: Tree) -> Tree:
    """Replaces the parameters and rows that are taken from `others`. Pure."""
    found = dict(named_leaves(others))

    def one(path, leaf):
        name = path_of(path)
        if name not in transfer.taken:
            return leaf
        rows = transfer.taken[name]
        if rows is None:
            return found[name].astype(leaf.dtype)
        other = found[rows.name or name]
        known = np.expand_dims(rows.of >= 0, [axis for axis in range(leaf.ndim) if axis != rows.axis])
        return jnp.where(known, jnp.take(other, np.maximum(rows.of, 0), rows.axis), leaf).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(one, params)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _some(names: list[str], count: int = SHOWN) -> str:
    rest = len(names) - count
    return ", ".join(names[:count]) + (f" and {rest} more" if rest > 0 else "")
