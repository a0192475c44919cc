"""Slices of TPU pods: their names, shapes, and devices, for which programs can be compiled without having them.

A slice is a torus of chips. Google Cloud names it by its chip and a number: v6e-16 has 16 chips; v4-16 has 8 chips of
two cores each, and each chip is one JAX device. The compiler names it by its chip and its shape: v6e:4x4.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import sys
from typing import Any, NamedTuple

import jax

from s2sjax.core.backend.device import quiet
from s2sjax.errors import UserError, nearest

FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
DEEP = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
# cloud.google.com/tpu/docs/v4, v5e, v5p, v6e
SHAPES = {"v4": DEEP, "v5e": FLAT, "v5p": DEEP, "v6e": FLAT}
TYPES = {"v4": ("v4", 2), "v5e": ("v5litepod", 1), "v5p": ("v5p", 2), "v6e": ("v6e", 1)}
"""first part of the name at Google Cloud, and the factor from chips to the number in it"""


class Slice(NamedTuple):
    """A slice of a pod: `chip` as in plan/chips.py."""

    chip: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.chip}:{self.shape}"

    @property
    def size(self) -> int:
        """The number of chips, each of which is a JAX device."""
        return math.prod(map(int, self.shape.split("x")))

    @property
    def type(self) -> str:
        """The name at Google Cloud: v5e:4x4 is v5litepod-16."""
        first, counted = TYPES[self.chip]
        return f"{first}-{self.size * counted}"


SLICES = [Slice(chip, shape) for chip, shapes in SHAPES.items() for shape in shapes]


def find(name: str) -> Slice:
    """Finds a slice by either name: v6e:4x4 and v6e-16 are the same slice."""
    known = {key.lower(): each for each in SLICES for key in (each.name, each.type)}
    if name.lower() not in known:
        meant = known[nearest(name.lower(), list(known))]
        listed = "; ".join(f"{chip}: {', '.join(shapes)}" for chip, shapes in SHAPES.items())
        raise UserError(f"there is no topology {name!r}: did you mean {meant.name} ({meant.type})? {listed}")
    return known[name.lower()]


def missing() -> str:
    """Why programs cannot be compiled for TPUs here, and the remedy; "" if they can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        here = f"{platform.system()} on {platform.machine()}"
        return f"the TPU compiler, libtpu, runs on x86-64 Linux, not on {here}: use such a machine; it needs no TPU"
    if importlib.util.find_spec("libtpu") is None:
        return 'the TPU compiler, libtpu, is not installed: pip install -e ".[tpu]", which needs no TPU'
    return ""


def devices(of: Slice, slices: int = 1) -> list[jax.Device]:
    """The devices of one or several slices, as compilation targets. Raises UserError without the TPU compiler."""
    if why := missing():
        raise UserError(why)
    # Otherwise libtpu asks Google Cloud which TPU this is. Several processes may load it because there is no TPU.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", of.type)
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    from jax.experimental import topologies

    options: dict[str, Any] = {"chip_config_name": "megacore"} if of.chip == "v4" else {}
    if slices > 1:
        options["num_slices"] = slices
    try:
        with quiet():
            found = topologies.get_topology_desc(platform="tpu", topology_name=of.name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"libtpu knows no topology {of.name} ({reason}): choose another") from None
    assert len(found) == of.size * slices, f"{of.name} has {len(found)} devices"
    return list(found)
