"""Reads Orbax checkpoints by TensorStore alone, because importing Orbax takes longer than reading a small model.

store.py compares what is read with its fingerprints. What cannot be read here is left to Orbax, which
reports what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax.files import in_storage
from s2sjax.training.checkpoints import folders
from s2sjax.training.checkpoints.fingerprints import named_leaves

Tree = Any


REPLACED = ".replaced"
"""suffix of a checkpoint while another state of its step is being written"""


def steps_in(folder: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first. Checkpoints that are still being written have other names."""
    names = {path.name.removesuffix(REPLACED) for path in folders.found(folder)}
    return sorted(int(name) for name in names if name.isdecimal())


def path_in(folder: Path, step: int) -> Path:
    """The folder of a checkpoint: 20, or 20.replaced if only that exists."""
    path = folder / str(step)
    former = folder / f"{step}{REPLACED}"
    return former if folders.exists(former) and not folders.exists(path) else path


def metadata_fault(checkpoint: Path, names: Iterable[str]) -> str:
    """Describes the damage to the JSON metadata of the arrays with these names; "" if none is proved.

    One version of Orbax writes all items of a checkpoint, so their metadata must have the same keys.
    """
    leaves: dict[str, set[str]] = {}
    for name in names:
        item, _, leaf = name.partition("/")
        leaves.setdefault(item, set()).add(leaf)
    for pattern in ("_METADATA", "array_metadatas/*"):
        files = {path: _parsed(path) for item in leaves for path in sorted((checkpoint / item).glob(pattern))}
        keys = [_keys(content) for content in files.values()]
        for (path, content), own in zip(files.items(), keys):
            if content is None or any(own != other for other in keys):
                return f"{path.relative_to(checkpoint)} is not valid"
    for item, expected in leaves.items():
        entries = (_parsed(checkpoint / item / "_METADATA") or {}).get("tree_metadata", {}).values()
        if {"/".join(str(key["key"]) for key in entry["key_metadata"]) for entry in entries} != expected:
            return f"{item}/_METADATA lists other arrays"
    return ""


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError):
        return None


def _keys(content: Any) -> set[str]:
    """The keys of all objects in a JSON file, without the names of arrays: "('net', 'kernel')"."""
    inner = content if isinstance(content, list) else list(content.values()) if isinstance(content, dict) else []
    own = {key for key in content if not key.startswith("(")} if isinstance(content, dict) else set()
    return own.union(*map(_keys, inner))


def read_arrays(item: Path, template: Tree) -> Tree | None:
    """Reads an item, nested dicts of arrays with the shapes of the template, as NumPy; None if it cannot be read."""
    try:
        import tensorstore

        layout = json.loads((item / "_METADATA").read_text(encoding="utf-8"))
        if not layout["use_ocdbt"]:
            return None
        base = {"driver": "ocdbt", "base": _base(item)}
        context = tensorstore.Context()

        def opened(path: str) -> Any:
            place = {**base, "path": f"{path.replace('/', '.')}/"}
            driver = "zarr3" if layout["use_zarr3"] else "zarr"
            return tensorstore.open({"driver": driver, "kvstore": place}, open=True, context=context)

        leaves = dict(named_leaves(template))
        stores = [opened(path) for path in leaves]  # opened concurrently, then read concurrently
        reads = [store.result().read() for store in stores]
        found = [np.asarray(read.result()) for read in reads]
    except Exception:  # TensorStore raises ValueError for most errors, and another version may have another layout
        return None
    if any((a.shape, a.dtype) != (tuple(leaf.shape), leaf.dtype) for a, leaf in zip(found, leaves.values())):
        return None
    return jax.tree.unflatten(jax.tree.structure(template), found)


def _base(item: Path) -> dict[str, Any]:
    """The TensorStore spec of the files of an item."""
    if not in_storage(item):
        return {"driver": "file", "path": f"{item}/"}
    from s2sjax import object_storage

    return object_storage.key_value_store(str(item))
