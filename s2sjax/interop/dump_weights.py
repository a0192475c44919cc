"""Writes the parameters of a Transformer of s2sjax as the tensors and the config.json of a model of transformers.

    hf_config, tensors = dump(imported.settings, params, vocabulary.foreign, imported.origin)     an imported model
    hf_config, tensors = dump(settings, params, np.arange(vocabulary.size))                       one of s2sjax
    safetensors_files.write(folder, tensors)

With the unchanged parameters of an imported model, they are the original ones, bit for bit.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401, NumPy then knows bfloat16
import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import PAD
from s2sjax.interop.correspondence import Foreign, Row, export_parameter, parameter_shape
from s2sjax.interop.families.family import ExportedFamily
from s2sjax.interop.formats import (
    FAMILIES,
    Ids,
    Origin,
    bias_rows,
    bits,
    format_of,
    prefix_of,
    require_format,
    table_row,
    vocabularies_of,
)
from s2sjax.interop.safetensors_files import FLOATS


def dump(
    settings: config.Transformer, params: Mapping[str, Any], foreign: Ids, origin: Origin | None = None,
    model_type: str | None = None, dtype: str | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:  # fmt: skip
    """Returns the entries of config.json and the tensors of a model.

    foreign: foreign id of each id, or those of source and target
    origin: that of an imported model: its names, dtypes and entries of config.json are kept
    model_type: one of FAMILIES; None for that of the origin, or for `format_of(settings)`
    dtype: float32, float16 or bfloat16; None for that of the origin, or float32
    """
    check_dtype(dtype)
    name = model_type or (origin.model_type if origin else format_of(settings))
    require(
        name in FAMILIES, f"{name!r} is none of the formats of transformers that are written: {', '.join(FAMILIES)}"
    )
    family, vocabularies = FAMILIES[name], vocabularies_of(foreign)
    origin = origin if origin and origin.model_type == name else None
    require_format(name, family.differences(settings))
    _check_vocabularies(settings, family, vocabularies)
    prefix = prefix_of(family, origin.dtypes) if origin else family.prefix
    rows = [*family.rows(settings, prefix), *_written_tables(settings, family, vocabularies, prefix, origin)]
    tensors = {} if origin else family.fixed_tensors(settings, prefix, len(vocabularies["target"]))
    tensors |= dump_rows(rows, params, vocabularies, origin, dtype)
    tensors |= unread_tensors(origin, tensors, dtype) if origin else {}
    return _exported_config(settings, family, vocabularies, origin, dtype), dict(sorted(tensors.items()))


def check_dtype(dtype: str | None) -> None:
    require(dtype in (None, *FLOATS.values()), f"the dtype {dtype!r} is none of {', '.join(FLOATS.values())}")


def dump_rows(
    rows: Iterable[Row], params: Mapping[str, Any], foreign: Foreign, origin: Origin | None, dtype: str | None
) -> dict[str, np.ndarray]:
    """The tensors of the parameters of rows, in a dtype, or by default in that of the origin."""
    unused, dtypes = origin.unused if origin else {}, origin.dtypes if origin and not dtype else {}
    tensors = {}
    for row in rows:
        skipped = lambda name, end=f"[:{row.skip}]": unused.get(name + end)
        for name, value in export_parameter(row, parameter_of(params, row), foreign, skipped):
            value = cast(name, value, dtypes.get(name, dtype or "float32"))
            tensors[name] = _with_ulps(value, unused.get(f"{name}[ulps]")) if name in dtypes else value
    return tensors


def unread_tensors(origin: Origin, written: Container[str], dtype: str | None) -> dict[str, np.ndarray]:
    """The tensors of the origin that the model does not read, without those that are written."""
    rest = {name: value for name, value in origin.unused.items() if name in origin.dtypes and name not in written}
    return {
        name: value.astype(dtype) if dtype and value.dtype.name in FLOATS.values() else value
        for name, value in rest.items()
    }


def changed_config(origin: Origin, changed: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """The entries of the config.json of the origin, with those that have changed."""
    # transformers 4 calls it torch_dtype
    kind = {"torch_dtype" if "torch_dtype" in origin.hf_config else "dtype": dtype} if dtype else {}
    return origin.hf_config | dict(changed) | kind


def _written_tables(
    settings: config.Transformer,
    family: ExportedFamily,
    vocabularies: Foreign,
    prefix: str,
    origin: Origin | None,
) -> list[Row]:
    """The correspondences of the tables that an export has: those of the origin, if it has the same ties."""
    names = family.roles(prefix)._asdict()
    written = family.written_roles(settings)
    if origin and origin.tie == settings.tie:
        written = [role for role, name in names.items() if name in origin.dtypes and name not in origin.unused]
    rows = [table_row(settings, role, names[role], vocabularies) for role in written]
    return rows + bias_rows(settings, family, vocabularies)


def _check_vocabularies(settings: config.Transformer, family: ExportedFamily, vocabularies: Foreign) -> None:
    """Raises a UserError for vocabularies that the format cannot hold."""
    require(
        family.model_type == "marian" or np.array_equal(vocabularies["source"], vocabularies["target"]),
        f"the source and the target have vocabularies of their own, and {family.model_type} has one for both: train "
        "with data.shared True, or with model.norm post and model.positions sinusoidal, which marian can hold",
    )
    first = int(vocabularies["target"][PAD]) + 1
    require(
        settings.sinusoids != "tensor2tensor" or settings.first_position == first,
        f"{family.model_type} numbers positions from {first}, the number after <pad>, and model.first_position is "
        f"{settings.first_position}: keep the model in s2sjax, or train it with {first}",
    )


def parameter_of(params: Mapping[str, Any], row: Row) -> np.ndarray:
    """The parameter of a row, in float32."""
    value: Any = params
    for name in row.ours.split("/"):
        value = value[name]
    found, expected = np.asarray(value, np.float32), parameter_shape(row)
    if found.shape != expected:
        raise ValueError(f"parameter {row.ours} has shape {found.shape}, but by the settings it should have {expected}")
    return found


def cast(name: str, value: np.ndarray, dtype: str) -> np.ndarray:
    """Converts a tensor. Raises a UserError if a number is too large for float16."""
    with np.errstate(over="ignore"):
        found = value.astype(dtype)
    require(
        dtype != "float16" or bool((np.isfinite(found) | ~np.isfinite(value)).all()),
        f"tensor {name} has numbers above 65,504, the largest of float16: export it as float32 or bfloat16",
    )
    return found


def _with_ulps(value: np.ndarray, ulps: np.ndarray | None) -> np.ndarray:
    """Adds the rounding errors that `_keep_remainder` has kept."""
    if ulps is None or ulps.shape != value.shape:
        return value
    corrected = (bits(value) + ulps).view(value.dtype)
    return np.where(np.isfinite(corrected) & (value != 0), corrected, value)  # the neighbour of 0 below it is no number


def _exported_config(
    settings: config.Transformer,
    family: ExportedFamily,
    vocabularies: Foreign,
    origin: Origin | None,
    dtype: str | None,
) -> dict[str, Any]:
    """The entries of the origin, with those that the settings have changed since; without an origin all entries."""
    sizes = len(vocabularies["source"]), len(vocabularies["target"])
    entries = family.hf_config(settings, sizes, vocabularies["target"], dtype or "float32")
    if origin is None:
        return entries
    imported = family.settings(origin.hf_config)
    imported = config.replace(family.with_tie(imported, origin.tie), output_bias=settings.output_bias)
    before = family.hf_config(imported, sizes, vocabularies["target"], dtype or "float32")
    changed = {name: value for name, value in entries.items() if value != before[name]}
    return changed_config(origin, changed, dtype)
