"""The formats of transformers: which model of s2sjax is which, and what an import keeps for the export."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.models.specs import Tie
from s2sjax.interop.correspondence import Foreign, Row, Side
from s2sjax.interop.families import bart, t5
from s2sjax.interop.families.family import Difference, ExportedFamily

FAMILIES: dict[str, ExportedFamily] = {family.model_type: family for family in (*bart.FAMILIES, *t5.FAMILIES)}
REFUSED = {
    "longt5": "its attention is local",
    "nllb-moe": "it is a mixture of experts",
    "switch_transformers": "it is a mixture of experts",
    "blenderbot-small": "its decoder normalizes the embeddings before positions are added",
    "pegasus_x": "its attention is local",
    "led": "its attention is local",
    "bigbird_pegasus": "its attention is local",
}
"""architectures that resemble those of FAMILIES, and why they are not among them"""

Ids = np.ndarray | tuple[np.ndarray, np.ndarray]
"""foreign id of each of our ids: of the one vocabulary, or of source and target"""


@dataclass(frozen=True)
class Origin:
    """What an export needs to restore a folder bit for bit, besides settings and parameters."""

    model_type: str
    hf_config: dict[str, Any]
    """the entries of config.json"""
    tie: Tie
    """matrices that are tied by the tensors"""
    dtypes: dict[str, str]
    """name and dtype of each tensor of the files"""
    unused: dict[str, np.ndarray]
    """tensors, and parts of tensors, that the model does not use as they are: `NAME[:2]` are the first two rows,
    `NAME[:]` all of them, `NAME[ulps]` the rounding errors of a division"""


@dataclass(frozen=True)
class Imported:
    """A model of a Hugging Face folder."""

    settings: config.Transformer
    params: dict[str, Any]
    """nested parameters in float32, as the Flax module of `settings` has them"""
    dtype: str
    """dtype of most tensors of the files"""
    origin: Origin

    @property
    def unused(self) -> dict[str, np.ndarray]:
        return self.origin.unused


def settings_of(hf_config: Mapping[str, Any]) -> config.Transformer:
    """The settings of a config.json; the tensors may be tied otherwise. Raises a UserError for what s2sjax lacks."""
    return family_of(hf_config).settings(hf_config)


def family_of(hf_config: Mapping[str, Any]) -> ExportedFamily:
    """The family of a config.json."""
    name = hf_config.get("model_type")
    name = None if name is None else str(name)
    known = ", ".join(FAMILIES)
    require(name is not None, f"config.json has no model_type: name the folder of a model of transformers ({known})")
    require(
        name not in REFUSED,
        f"config.json: a model of type {name} cannot be imported: {REFUSED.get(str(name))}; {known} can",
    )
    require(name in FAMILIES, f"config.json: a model of type {name!r} cannot be imported; {known} can")
    require(
        "quantization_config" not in hf_config,
        "config.json has a quantization_config: import the model that was not quantized",
    )
    return FAMILIES[str(name)]


def format_of(settings: config.Transformer) -> str:
    """The model_type of transformers that can hold a Transformer of s2sjax. Raises a UserError if there is none."""
    found = {name: family.differences(settings) for name, family in FAMILIES.items()}
    best = min(found, key=lambda name: len(found[name]))
    require_format(best, found[best])
    return best


def require_format(name: str, differences: list[Difference]) -> None:
    require(
        not differences,
        f"no format of transformers can hold this model; the nearest, {name}, cannot because of "
        f"{' and '.join(map(str, differences))}: keep it in s2sjax, or train it with those settings",
    )


def check_unchanged(name: str, settings: config.Transformer, imported: config.Transformer) -> None:
    """Raises a UserError unless a part of a model has the settings of the original, but for dropout and adapters."""
    for field in fields(settings):
        mine, theirs = getattr(settings, field.name), getattr(imported, field.name)
        require(
            mine == theirs or field.name in ("dropout", "adapter_rank", "adapter_scale"),
            f"{name}.{field.name} is {mine!r}, and {theirs!r} in the imported model: such a model cannot be exported",
        )


def vocabularies_of(foreign: Ids) -> Foreign:
    """The foreign ids of both vocabularies."""
    source, target = foreign if isinstance(foreign, tuple) else (foreign, foreign)
    return {"source": np.asarray(source), "target": np.asarray(target)}


def prefix_of(family: ExportedFamily, names: Iterable[str]) -> str:
    """The start of the names: a model that was saved without its output layer does not have it."""
    return family.prefix if any(name.startswith(family.prefix) for name in names) else ""


def table_row(settings: config.Transformer, role: str, name: str, vocabularies: Foreign) -> Row:
    """The correspondence of an embedding or of the output layer."""
    side: Side = "source" if role == "encoder" and not settings.ties_embeddings else "target"
    shape = len(vocabularies[side]), settings.width
    if role == "head" and not settings.ties_output:
        return Row("decoder/output/kernel", (name,), shape, transpose=True, vocabulary=side)
    return Row(f"{side}_embedding/table", (name,), shape, vocabulary=side)


def bias_rows(settings: config.Transformer, family: ExportedFamily, vocabularies: Foreign) -> list[Row]:
    """The correspondence of the bias of the logits, if there is one."""
    has_bias = not settings.ties_output if settings.output_bias is None else settings.output_bias
    shape = 1, len(vocabularies["target"])
    return [Row("decoder/output/bias", (str(family.bias),), shape, vocabulary="target")] if has_bias else []


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of floating point numbers as whole numbers: those of neighbours differ by 1."""
    return np.ascontiguousarray(x).view(f"int{8 * x.dtype.itemsize}")
