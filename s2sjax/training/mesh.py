"""The device mesh and the sharding of each parameter. Models never mention devices: a table of rules does that.

The mesh has three axes: `data` splits the rows of a batch; `fsdp` splits the rows and every large parameter (ZeRO,
Rajbhandari et al. 2020); `tensor` splits the dimensions of parameters that the rules name. If train.mesh.context is
above 1, a fourth axis, `context`, splits the time of a batch, and the compiler splits the computations over time: it
gathers the keys and values of attention, exchanges the borders of convolutions, and passes on the states between the
chunks of a recurrence.

TPUs of several slices talk over the data-centre network, which is slow: the `data` axis crosses slices, and the others
stay within one. The same holds for GPUs and their hosts, unless a host has too few GPUs for them.

A rule is (regular expression for the path of a parameter, axis names of its *last* dimensions). The first match wins:

    (("feedforward/in/kernel", (None, "tensor")), ("feedforward/out/kernel", ("tensor", None)))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training.train_state import TrainState

Tree = Any
AnyMesh = Mesh | AbstractMesh
"""concrete or abstract mesh; an AbstractMesh has a shape but no devices"""
Rules = Sequence[tuple[str, tuple[str | None, ...]]]
AXES = ("data", "fsdp", "tensor", "context")
MEMBERS = "members"
"""axis of a mesh for a sweep"""
ROWS = PartitionSpec(("fsdp", "data"))
"""sharding of the rows of a batch; fsdp first, or XLA computes wrong products: see docs/xla_three_axes.py"""
EVERYWHERE = PartitionSpec()
MIN_SIZE = 2**12
"""number of elements below which fsdp does not split a parameter"""


def make_mesh(mesh: config.Mesh, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices, data x fsdp x tensor, and x context if it is above 1; data -1 uses what the others leave.

    `make_mesh(config.Mesh(fsdp=4))` on 8 devices has the shape 2 x 4 x 1. Each slice has consecutive indices of `data`.
    """
    devices = jax.devices() if devices is None else devices
    axes = AXES if mesh.context != 1 else AXES[:3]
    inner = [getattr(mesh, name) for name in axes[1:]]
    count, split = len(devices), math.prod(inner)
    for name in AXES:
        size = getattr(mesh, name)
        if size < 1 and not (name == "data" and size == -1):
            raise UserError(f"train.mesh.{name} is {size}: it must be at least 1")
    slices = slices_of(devices)
    size = math.gcd(*map(len, slices))
    if size % split and devices[0].platform == "gpu":
        slices, size = [list(devices)], count
    if size % split:
        found = f"there {'is' if count == 1 else 'are'} {count} device{'s' * (count > 1)}"
        if len(slices) > 1:
            sizes = " or ".join(map(str, sorted(set(map(len, slices)))))
            found = f"the {len(slices)} slices have {sizes} devices each, and only data may cross slices"
        raise UserError(
            f"train.mesh splits {' x '.join(map('{} {}'.format, axes[1:], inner))} = {split}, but {found}: "
            f"the product must be one of {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)}"
        )
    data = count // split if mesh.data == -1 else mesh.data
    if data * split != count:
        raise UserError(
            f"train.mesh is {' x '.join(map(str, [data, *inner]))} = {data * split} devices, but there are {count}: "
            f"set train.mesh.data to {count // split}, or to -1"
        )
    # Not `jax.make_mesh`: it rejects an axis that is only a part of an axis of the pod, such as a tensor axis of 4 on
    # v6e:8x8. Not `create_hybrid_device_mesh`, which does the same for slices of equal sizes alone.
    placed = [
        mesh_utils.create_device_mesh((len(one) // split, *inner), one, allow_split_physical_axes=True)
        for one in slices
    ]
    return Mesh(np.concatenate(placed), axes, axis_types=(AxisType.Auto,) * len(axes))


def slices_of(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """The devices of each slice, in the given order."""
    found: dict[int, list[jax.Device]] = {}
    for device in devices:
        found.setdefault(slice_of(device), []).append(device)
    return [found[index] for index in sorted(found)]


def slice_of(device: jax.Device) -> int:
    """The index of the slice of a TPU; of a GPU, of the host, whose GPUs are connected by NVLink."""
    if device.platform not in ("tpu", "gpu"):
        return 0
    index = getattr(device, "slice_index", None)
    if index is not None:
        return index
    return device.process_index if device.platform == "gpu" else 0


def data_parallel_size(mesh: AnyMesh) -> int:
    """Number of shards into which the rows of a batch are split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def row_shards(mesh: Mesh, process: int) -> list[int]:
    """Indices of the row shards (of `data_parallel_size`) that the devices of a process hold, in ascending order.

    With a tensor or context axis, several processes may hold the same shard. The shards of a process need not be
    consecutive.

        process of each device  0 0 1 1         0 0 0 1 1 1         0 1 0 1
        tensor                  4               2                   1
        shards of process 0; 1  0; 0            0 1; 1 2            0 2; 1 3
    """
    shards = mesh.devices.swapaxes(0, 1).reshape(data_parallel_size(mesh), -1)  # the order of ROWS
    return [index for index, devices in enumerate(shards) if any(one.process_index == process for one in devices)]


def global_batch(batch: Tree, mesh: Mesh) -> Tree:
    """Makes global arrays, sharded by `column_sharding`, from the rows of this process, numpy [rows, ...].

    These are the rows of its `row_shards`, concatenated.
    """
    count, held = data_parallel_size(mesh), row_shards(mesh, jax.process_index())

    def put(leaf):
        share, rest = divmod(leaf.shape[0], len(held))
        if rest:
            raise UserError(
                f"a batch of {leaf.shape[0] * count // len(held)} rows cannot be split over {count} devices: "
                f"make its rows a multiple of train.mesh data x fsdp = {count}"
            )

        def part(index: Any) -> np.ndarray:
            place = held.index((index[0].start or 0) // share)
            return leaf[place * share : (place + 1) * share, *index[1:]]

        whole = (share * count, *leaf.shape[1:])
        return jax.make_array_from_callback(whole, column_sharding(mesh, whole), part)

    return jax.tree.map(put, batch)


def column_sharding(mesh: Mesh, shape: tuple[int, ...], rows: PartitionSpec = ROWS) -> NamedSharding:
    """The sharding of a column of a batch, [B, T, ...]: its rows, and its time if the context axis divides it.

    rows: the spec of the dimensions before the time.
    """
    parts, time = mesh.shape.get("context", 1), len(rows)
    splits = parts > 1 and len(shape) > time and shape[time] % parts == 0
    return NamedSharding(mesh, PartitionSpec(*rows, "context") if splits else rows)


def put(tree: Tree, mesh: Mesh | None, spec: PartitionSpec) -> Tree:
    """Copies arrays, which all processes have, to the devices of a mesh; without one, to the first device."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    sharding = NamedSharding(mesh, spec)
    place = lambda value: jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
    return jax.tree.map(place, tree)


# ------------------------------------------------------------------------------------ populations


def population_mesh(mesh: config.Mesh, members: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with a first axis for the members of a sweep, so that each device trains some of them.

    `data` -1 uses the devices that are left if there are fewer members than devices:
    `population_mesh(config.Mesh(), 4)` on 8 devices has the shape 4 x 2 x 1 x 1.
    """
    single = make_mesh(mesh, devices)
    data = single.shape["data"]
    axis = max(size for size in range(1, data + 1) if data % size == 0 and size <= members) if mesh.data == -1 else 1
    placed = single.devices.reshape(axis, data // axis, *single.devices.shape[1:])
    return Mesh(placed, (MEMBERS, *single.axis_names), axis_types=(AxisType.Auto,) * placed.ndim)


def stacked(template: Tree, mesh: Mesh, members: int) -> Tree:
    """Abstract arrays of the states of all members, [M, ...], from those of one member."""

    def stack(leaf):
        sharding = NamedSharding(mesh, PartitionSpec(MEMBERS, *leaf.sharding.spec))
        return jax.ShapeDtypeStruct((members, *leaf.shape), leaf.dtype, sharding=sharding)

    return jax.tree.map(stack, template)


# -------------------------------------------------------------------------------------- parameters


def shardings(tree: Tree, mesh: AnyMesh, rules: Rules = (), min_size: int = MIN_SIZE) -> Tree:
    """A NamedSharding for each leaf of a tree of parameters or of a TrainState (arrays, or their shapes).

    A parameter is split over `tensor` as the first matching rule says and, if it has at least min_size elements, over
    `fsdp` along its largest free dimension that is divisible. Optimizer state and average are sharded like their
    parameter; a carry is sharded by rows, like a batch.
    """
    params = tree.params if isinstance(tree, TrainState) else tree
    shapes = {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    specs = {}
    used = set()
    for path, shape in shapes.items():
        pattern, axes = next(((p, a) for p, a in rules if re.search(p, path)), ("", ()))
        used.add(pattern)
        specs[path] = _with_fsdp(shape, _checked(path, shape, axes, mesh), mesh, min_size)
    for pattern, _ in rules:
        if pattern not in used:
            raise UserError(
                f"the sharding rule {pattern!r} matches no parameter that earlier rules leave: fix or delete it"
            )

    def like_parameter(path, leaf):
        """Shards mu/encoder/kernel of the optimizer like encoder/kernel, the longest suffix that is a parameter."""
        names = path_of(path).split("/")
        if isinstance(tree, TrainState) and names[0] == "carry":
            return NamedSharding(mesh, ROWS)
        ends = ("/".join(names[i:]) for i in range(len(names)))
        owner = next((end for end in ends if shapes.get(end) == leaf.shape), None)
        return NamedSharding(mesh, PartitionSpec(*specs[owner]) if owner is not None else PartitionSpec())

    return jax.tree_util.tree_map_with_path(like_parameter, tree)


def with_shardings(tree: Tree, mesh: AnyMesh, rules: Rules = (), min_size: int = MIN_SIZE) -> Tree:
    """Abstract arrays (shape, dtype, sharding) for a tree of arrays or of their shapes."""
    where = shardings(tree, mesh, rules, min_size)
    return jax.tree.map(lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), tree, where)


def abstract_state(
    init: Callable[..., Tree], mesh: AnyMesh, rules: Rules = (), *arguments: Any, min_size: int = MIN_SIZE
) -> Tree:
    """Abstract arrays of init(*arguments): what `init_sharded` would create, without creating it."""
    return with_shardings(jax.eval_shape(init, *arguments), mesh, rules, min_size)


def init_sharded(
    init: Callable[..., Tree], mesh: Mesh, rules: Rules = (), *arguments: Any, min_size: int = MIN_SIZE
) -> Tree:
    """Runs init(*arguments) so that each device computes only its own shards: shapes, then shardings, then values."""
    return init_program(init, mesh, rules, *arguments, min_size=min_size)(*arguments)


def init_program(
    init: Callable[..., Tree], mesh: Mesh, rules: Rules = (), *arguments: Any, min_size: int = MIN_SIZE
) -> Callable[..., Tree]:
    """The program that `init_sharded` runs, for arguments of these shapes."""
    where = shardings(jax.eval_shape(init, *arguments), mesh, rules, min_size)
    return jax.jit(init, out_shardings=where)


def path_of(path) -> str:
    """The key path of a leaf as text: encoder/kernel."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _checked(path: str, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: AnyMesh) -> list[str | None]:
    """Aligns the axes of a rule to the last dimensions, checked: (3, 4, 8), ("tensor",) -> [None, None, "tensor"]."""
    if len(axes) > len(shape):
        raise UserError(
            f"the sharding rule {axes} names {len(axes)} dimensions, but {path} has shape {shape}: shorten it"
        )
    spec = [None] * (len(shape) - len(axes)) + list(axes)
    for dimension, axis in enumerate(spec):
        if axis is not None and axis not in mesh.shape:
            raise UserError(f"the sharding rule of {path} names the axis {axis!r}: the axes are {', '.join(AXES)}")
        if axis is not None and shape[dimension] % mesh.shape[axis]:
            raise UserError(
                f"{path} has shape {shape}: its dimension {dimension}, {shape[dimension]}, does not divide over "
                f"train.mesh.{axis} {mesh.shape[axis]}: change that size or the mesh"
            )
    return spec


def _with_fsdp(shape: tuple[int, ...], spec: list[str | None], mesh: AnyMesh, min_size: int) -> list[str | None]:
    """Adds `fsdp` at the largest free dimension that is divisible: (32, 64), [None, None] -> [None, "fsdp"]."""
    fsdp = mesh.shape["fsdp"]
    free = [d for d, axis in enumerate(spec) if axis is None and shape[d] % fsdp == 0]
    if fsdp == 1 or math.prod(shape) < min_size or "fsdp" in spec or not free:
        return spec
    largest = max(free, key=lambda d: shape[d])
    return [*spec[:largest], "fsdp", *spec[largest + 1 :]]
