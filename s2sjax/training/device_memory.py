"""Device memory: what a device holds between steps, and what a step adds.

    mesh: data 2 x fsdp 4 x tensor 1 on 8 cpu devices, 1 host
    each device holds parameters 0.4 MB, optimizer 0.9 MB; a step adds batch 16 kB, activations 12 MB: 13 MB of 24 GB

Every device holds the same number of bytes: arrays are either split evenly or replicated (training/mesh.py).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from s2sjax.files import readable_size
from s2sjax.training.train_state import TrainState

Tree = Any


class Memory(NamedTuple):
    """Bytes on one device."""

    parameters: int
    optimizer: int
    """optimizer state, and the counters of the train state"""
    average: int
    """average of the parameters, if one is kept"""
    batch: int
    step: int
    """activations and other temporary arrays; the new state reuses the memory of the old one"""

    @property
    def total(self) -> int:
        return sum(self)


def shard_bytes(tree: Tree) -> int:
    """Bytes of a tree (arrays, or shapes with shardings) on one device: [8, 6] float32 split over 4 is 48."""
    return sum(
        math.prod(leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def measure(state: TrainState, batch: Tree, program: Any) -> Memory | None:
    """The memory of a compiled train step; None if the backend does not report it.

    state, batch: arrays, or their shapes with shardings.
    """
    analysis = program.memory_analysis()
    if analysis is None:
        return None
    parameters, average = shard_bytes(state.params), shard_bytes(state.ema)
    optimizer = shard_bytes(state) - parameters - average
    made = analysis.output_size_in_bytes - analysis.alias_size_in_bytes  # the new state reuses the old one's memory
    return Memory(parameters, optimizer, average, shard_bytes(batch), analysis.temp_size_in_bytes + made)


def limit(device: jax.Device) -> int | None:
    """The memory of a device in bytes; None if it is not reported, as on a CPU."""
    return (device.memory_stats() or {}).get("bytes_limit")


def describe(memory: Memory, mesh: Mesh | None = None, limit: int | None = None) -> list[str]:
    """The lines shown in the module docstring. A mesh of one device is omitted."""
    many = mesh is not None and mesh.size > 1
    lines = [_describe_mesh(mesh)] if mesh is not None and many else []
    held = _join(parameters=memory.parameters, optimizer=memory.optimizer, average=memory.average)
    added = _join(batch=memory.batch, activations=memory.step)
    total, of = readable_size(memory.total), "in total" if limit is None else f"of {readable_size(limit)}"
    lines.append(f"{'each' if many else 'the'} device holds {held}; a step adds {added}: {total} {of}")
    if limit is not None and memory.total > limit:
        lines.append(
            f"warning: {total} is more than the {readable_size(limit)} of a device: raise train.grad_accum_steps or "
            "train.mesh.fsdp, or set train.remat layers"
        )
    return lines


def _join(**sizes: int) -> str:
    return ", ".join(f"{name} {readable_size(size)}" for name, size in sizes.items() if size)


def _describe_mesh(mesh: Mesh) -> str:
    kinds = sorted({device.device_kind for device in mesh.devices.flat})
    hosts = len({device.process_index for device in mesh.devices.flat})
    shape = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    return f"mesh: {shape} on {mesh.size} {' and '.join(kinds)} devices, {hosts} host{'s' if hosts > 1 else ''}"
