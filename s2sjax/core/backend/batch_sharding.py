"""Sharding constraints on activations and parameters, for a mesh of several devices.

The compiler chooses which operand of a product it moves between devices. If parameters are sharded too, it may gather
the activations of all rows instead of one matrix. Models therefore constrain the sharding of activations that pass from
one part to the next; the compiler derives the rest.
"""

from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, PartitionSpec

AXES = ("fsdp", "data")
"""mesh axes that shard the rows of a batch, in the order of `ROWS` in s2sjax/training/mesh.py"""
Tree = TypeVar("Tree")


def constrain_batch_sharding(tree: Tree, axis: int = 0) -> Tree:
    """Constrains dimension `axis` of each array to be sharded over data and fsdp. No effect outside `jax.set_mesh`."""
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
    """Gathers parameters that no tensor axis shards on every device; their gradients are scattered again."""
    if _mesh() is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, PartitionSpec()), tree)


def gather_for_loop(parameters: Tree) -> Tree:
    """Gathers the parameters of a loop over time once before it, rather than in each step.

    On a mesh with a tensor axis, the parameters stay sharded.
    """
    mesh = _mesh()
    return parameters if mesh is None or mesh.shape.get("tensor", 1) > 1 else gather_whole(parameters)


def _mesh() -> AbstractMesh | None:
    """The mesh of `jax.set_mesh`, if it shards rows and parameters, else None."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if set(AXES) <= set(mesh.axis_names) and mesh.shape["fsdp"] > 1 else None
