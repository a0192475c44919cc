"""Reads the collectives of a compiled program, and the padding of its arrays, from its HLO text.

    %all-gather.1 = bf16[512,512]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=5, replica_groups=[2,4]<=[8], ...

A collective in the body of a loop is executed as often as the loop runs.

With several slices, this is the program of one slice, and its groups number the devices of the slice. What it exchanges
with the other slices is sent through the hosts:

    %send = (f32[32,8,128]{2,1,0}, ...) send(%x, %token), ... {_xla_megascale_transfer_type="ALL_REDUCE", ...}
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4,
    "s64": 8, "u64": 8, "f64": 8, "c64": 8,
}  # fmt: skip
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\(")
_BETWEEN = re.compile(r' = (.*?) send\(.*_xla_host_transfer_rendezvous="([^"]*)".*_xla_megascale_transfer_type="(\w+)"')
_ARRAY = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\](?:\{{([\d,]*)(?::([^}}]*))?\}})?")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LISTS = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_WHILE = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")


class Collective(NamedTuple):
    kind: str
    axes: tuple[str, ...]
    """mesh axes over which it communicates; () if unknown"""
    bytes: int
    """size of the whole array on a device: the result of an all-gather, the input of a reduce-scatter; between slices,
    what the chip sends
    """
    times: int
    """number of executions per step"""
    shapes: tuple[tuple[int, ...], ...]
    between: bool = False
    """whether it crosses slices"""

    @property
    def total(self) -> int:
        return self.bytes * self.times


class Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...]
    """dimensions from minor to major: consecutive elements of the first are adjacent in memory"""
    tiles: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]

    @property
    def padded(self) -> int:
        """Bytes in memory: bf16[8, 64] in tiles T(8,128) takes as much as bf16[8, 128]."""
        tile = re.match(r"T\((\d+(?:,\d+)*)\)", self.tiles)
        if not tile or not self.layout:
            return self.bytes
        sizes = [self.shape[dimension] for dimension in self.layout]
        for place, size in enumerate(reversed([int(n) for n in tile[1].split(",")])):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // size) * size
        return math.prod(sizes) * BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def arrays(text: str) -> list[Array]:
    """The arrays of an HLO type: "(bf16[8,64]{1,0:T(8,128)}, f32[])" has two."""
    numbers = lambda listed: tuple(int(n) for n in (listed or "").split(",") if n)
    return [Array(d, numbers(shape), numbers(layout), tiles or "") for d, shape, layout, tiles in _ARRAY.findall(text)]


class Module:
    """A compiled program, split into its computations."""

    def __init__(self, text: str):
        self.computations: dict[str, list[str]] = {}
        self.entry = ""
        lines: list[str] = []
        for line in text.splitlines():
            head = _HEAD.match(line)
            if head:
                lines = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            else:
                lines.append(line)
        self._callers: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for name, body in self.computations.items():
            for line in body:
                for called, often in self._called(line):
                    self._callers[called].append((name, often))
        self.times = cache(self._times)

    def _called(self, line: str) -> Iterator[tuple[str, int]]:
        loop = _WHILE.search(line)
        if loop:
            yield loop[2], self.trips(loop[1])
            return
        listed = ",".join(_CALLED.findall(line) + _CALLED_LISTS.findall(line))
        yield from ((name.strip().removeprefix("%"), 1) for name in listed.split(",") if name)

    def trips(self, condition: str) -> int:
        """The trip count of a loop from 0 with the condition `i < constant`; 1 for any other loop."""
        body = self.computations.get(condition, [])
        compared = any("direction=LT" in line and "compare(" in line for line in body)
        found = [int(n) for line in body for n in re.findall(r"s32\[\][^ ]* constant\((\d+)\)", line)]
        return max(found, default=1) if compared else 1

    def _times(self, computation: str) -> int:
        """The number of executions of a computation per step."""
        if computation == self.entry:
            return 1
        return sum(self.times(caller) * often for caller, often in self._callers[computation])

    def collectives(self, mesh: Mapping[str, int]) -> list[Collective]:
        """The collectives of the program. `mesh` maps the names of the axes to their sizes within a slice, in order.

        An asynchronous collective, written in several parts, counts once. The parts of a chain overlap with other work,
        including loops that start and end meanwhile, so the least executed part gives the number of chains.
        """
        found: dict[str, Collective] = {}
        for name, body in self.computations.items():
            for number, line in enumerate(body):
                if crossing := _BETWEEN.search(line):
                    sent, key, kind = arrays(crossing[1])[0], crossing[2], crossing[3].lower().replace("_", "-")
                    found[key] = Collective(
                        kind, ("data",), sent.bytes, max(1, self.times(name)), (sent.shape,), between=True
                    )
                match = _COLLECTIVE.search(line)
                if not match:
                    continue
                channel = re.search(r"channel_id=(\d+)", line)
                given, kind, start = match[1], match[2], bool(match[3])
                # With several slices, the two halves of an all-reduce share a channel.
                key = f"{kind} {channel[1]}" if channel else f"{name} {number}"
                members = len(_first_group(line) or [1]) if kind == "reduce-scatter" else 1
                # The compiler writes a reduce-scatter as an all-reduce after which each device keeps a part.
                kind = "reduce-scatter" if kind == "all-reduce" and name.startswith("all-reduce-scatter") else kind
                moved = _moved(arrays(given), kind, start)
                times = max(1, self.times(name))
                one = Collective(
                    kind, axes_of(line, mesh), members * sum(each.bytes for each in moved), times,
                    tuple(each.shape for each in moved),
                )  # fmt: skip
                better = min if "chain_id=" in line else max
                found[key] = better(found.get(key, one), one, key=lambda each: each.total)
        return list(found.values())

    def written(self) -> Iterator[Array]:
        """Yields the arrays that the program and its loops write to the chip's memory, not those inside fusions."""
        loops = {loop[2] for lines in self.computations.values() for loop in map(_WHILE.search, lines) if loop}
        for name in (self.entry, *loops):
            for line in self.computations.get(name, []):
                made = re.match(r"\s+(?:ROOT )?%[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(", line)
                if made and made[2] not in ("get-tuple-element", "parameter", "tuple", "bitcast", "constant"):
                    yield from (each for each in arrays(made[1]) if "S(" not in each.tiles)


def _moved(given: list[Array], kind: str, start: bool) -> list[Array]:
    """The communicated arrays among the results of an instruction: a `-start` instruction also returns its inputs."""
    if kind == "collective-permute":
        return given[:1]
    apart = start and kind in ("all-gather", "reduce-scatter") and len(given) > 1
    return given[len(given) // 2 :] if apart else given


# --------------------------------------------------------------------------------- mesh axes


def axes_of(line: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the first device group of a collective extends."""
    group = _first_group(line)
    shape = tuple(mesh.values())
    if group is None or max(group) >= math.prod(shape):
        return ()
    places = np.unravel_index(group, shape)  # for each axis, [devices]
    return tuple(name for name, place in zip(mesh, places) if np.ptp(place))


def _first_group(line: str) -> list[int] | None:
    """The device ids of the first group, in any of XLA's notations.

    {{0,1},{2,3}}        [2,2]<=[4]        [2,2]<=[2,2]T(1,0)        mesh['data'=2,'fsdp'=2] {'fsdp'}
    """
    plain = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", line)
    if plain:
        return [int(n) for n in plain[1].split(",")]
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        numbers = _iota(iota[3], iota[4])
        return numbers.reshape(int(iota[1]), int(iota[2]))[0].tolist()
    named = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, ?device_ids=\(?\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)? ?\{([^}]*)\}", line)  # fmt: skip  # noqa: E501
    if named is None:
        return None
    axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    numbers = (_iota(named[2], named[3]) if named[2] else np.arange(math.prod(axes.values()))).reshape(*axes.values())
    used = {name for name, part in re.findall(r"'([^']+)'(:\(\d+\)\d+)?", named[4])}
    first = tuple(slice(None) if name in used else 0 for name in axes)
    return numbers[first].ravel().tolist()


def _iota(sizes: str, order: str | None) -> np.ndarray:
    """Expands an iota: [2,4]T(1,0) -> 0 4 1 5 2 6 3 7."""
    dimensions = [int(n) for n in sizes.split(",")]
    numbers = np.arange(math.prod(dimensions)).reshape(dimensions)
    return (numbers.transpose([int(n) for n in order.split(",")]) if order else numbers).ravel()


# ------------------------------------------------------------------------------------ content


PROBLEMS = {
    "float64": r"\bf64\[",
    "a callback to the host": r'custom_call_target="[^"]*(callback|py_)[^"]*"'
    r"| (infeed|outfeed|send|recv)\((?!.*_xla_megascale)",
}


def problems(text: str) -> list[str]:
    """Finds what a program for TPUs must not contain."""
    return [name for name, pattern in PROBLEMS.items() if re.search(pattern, text)]
