"""Keeps the rows of a batch where they are, on a mesh of several devices.

A compiler that splits a program among devices chooses for itself which array of a product it moves. Where parameters
are split too, it may gather the activations of all rows instead of one matrix. A model says once, where its activations
pass from one part to the next, that their rows are split; what is between follows.
"""

from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, PartitionSpec

AXES = ("data", "fsdp")
"""axes of a mesh that split the rows of a batch, see s2sjax/training/mesh.py"""
Tree = TypeVar("Tree")


def keep_rows_split(tree: Tree, axis: int = 0) -> Tree:
    """The same arrays, their dimension `axis` split over data and fsdp. Outside of `jax.set_mesh`: unchanged."""
    mesh = _mesh()
    if mesh is None:
        return tree
    parts = mesh.shape["data"] * mesh.shape["fsdp"]

    def keep(leaf):
        if leaf.ndim <= axis or leaf.shape[axis] % parts:
            return leaf
        free = PartitionSpec.UNCONSTRAINED
        spec = PartitionSpec(*(AXES if place == axis else free for place in range(leaf.ndim)))
        return jax.lax.with_sharding_constraint(leaf, spec)

    return jax.tree.map(keep, tree)


def gather_whole(tree: Tree) -> Tree:
    """Parameters that no tensor axis splits, all of them on every device: the gradient is scattered again."""
    if _mesh() is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, PartitionSpec()), tree)


def gather_for_loop(parameters: Tree) -> Tree:
    """The parameters of a loop over time, whole: they are gathered once before it, not in each step.

    Where a tensor axis may split them, they stay as they are.
    """
    mesh = _mesh()
    return parameters if mesh is None or mesh.shape.get("tensor", 1) > 1 else gather_whole(parameters)


def _mesh() -> AbstractMesh | None:
    """The mesh of `jax.set_mesh`, if it splits rows and parameters."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if set(AXES) <= set(mesh.axis_names) and mesh.shape["fsdp"] > 1 else None
