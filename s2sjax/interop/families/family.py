"""What the families share: reading a config.json, and comparing settings with what a format can hold."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.models.specs import Tie
from s2sjax.core.special_tokens import EOS, PAD, SOS
from s2sjax.interop.correspondence import Row

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "swish": "swish", "silu": "swish",
}  # fmt: skip
"""activations of transformers, and ours; of several names the first is written"""


class Difference(NamedTuple):
    """A setting that a format cannot hold."""

    field: str
    value: Any
    allowed: str

    def __str__(self) -> str:
        return f"model.{self.field} {self.value!r} (where it has {self.allowed})"


class Roles(NamedTuple):
    """The names of the tensors over the vocabulary."""

    shared: str
    encoder: str
    decoder: str
    head: str


class _Kind(NamedTuple):
    types: tuple[type, ...]
    name: str


_KINDS = {
    bool: _Kind((bool,), "true or false"),
    int: _Kind((int,), "a whole number"),
    float: _Kind((int, float), "a number"),
    str: _Kind((str,), "a string"),
    type(None): _Kind((int, type(None)), "a whole number or null"),
}
"""what an entry may be, by the type of its default"""


@dataclass(frozen=True)
class Family(ABC):
    """A kind of model of transformers: its config.json, and the names of its tensors."""

    model_type: str
    architecture: str
    """name of its class in transformers"""
    defaults: Mapping[str, Any]
    """entries of config.json if it does not have them"""

    prefix: ClassVar[str] = ""
    """start of the names that a model without an output layer does not have"""
    never_used: ClassVar[str] = "$^"
    """regular expression of tensors that files may have, and transformers ignores"""

    @property
    def bias(self) -> str | None:
        """The name of the bias of the logits; None if they have none."""
        return None

    def complete(self, c: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of a config.json, with the defaults of those that older versions of transformers leave out."""
        result = {**self.defaults, **c}
        for name, usual in self.defaults.items():
            is_optional = name in ("bos_token_id", "decoder_start_token_id")
            value, kind = result[name], _KINDS[type(None if is_optional else usual)]
            require(
                isinstance(value, kind.types) and (isinstance(value, bool) == isinstance(usual, bool)),
                f"config.json: {name} is {json.dumps(value)[:40]}, and must be {kind.name}: such a model "
                "cannot be imported",
            )
        return result

    @abstractmethod
    def settings(self, c: Mapping[str, Any]) -> config.Transformer:
        """The settings of a config.json, with its ties. Raises a UserError for what s2sjax does not have."""

    @abstractmethod
    def rows(self, settings: config.Transformer, prefix: str) -> list[Row]:
        """The correspondences of all parameters but those over the vocabulary."""


class ExportedFamily(Family):
    """A kind of model that is imported and exported."""

    @abstractmethod
    def hf_config(
        self, settings: config.Transformer, sizes: tuple[int, int], foreign: np.ndarray, dtype: str
    ) -> dict[str, Any]:
        """The config.json of settings. `sizes` are those of the two vocabularies."""

    @abstractmethod
    def differences(self, settings: config.Transformer) -> list[Difference]:
        """The settings that the format cannot hold."""

    @abstractmethod
    def separate(self, c: Mapping[str, Any]) -> set[str]:
        """The roles whose tensors may differ from the shared one."""

    def with_tie(self, settings: config.Transformer, tie: Tie) -> config.Transformer:
        """The settings of a config.json for a model whose tensors are tied as `tie` says."""
        return config.replace(settings, tie=tie)

    def roles(self, prefix: str) -> Roles:
        embedding = f"{prefix}{{}}.embed_tokens.weight"
        return Roles(
            f"{prefix}shared.weight", embedding.format("encoder"), embedding.format("decoder"), "lm_head.weight"
        )

    def written_roles(self, settings: config.Transformer) -> list[str]:
        """The roles whose tensors an export has."""
        return {
            "all": ["shared"],
            "embeddings": ["shared", "encoder", "decoder", "head"],
        }.get(settings.tie, ["encoder", "decoder", "head"])

    def fixed_tensors(self, settings: config.Transformer, prefix: str, size: int) -> dict[str, np.ndarray]:
        """Tensors that an export has, and the model does not. `size` is that of the target vocabulary."""
        return {}


def decoder_start(c: Mapping[str, Any], model_type: str) -> Any:
    """The special token that the decoder reads first."""
    start = c["decoder_start_token_id"]
    names = {c["pad_token_id"]: "pad", c["eos_token_id"]: "eos"}
    found = names.get(start, "sos" if start is not None and start == c.get("bos_token_id") else None)
    require(
        start is not None and found is not None,
        f"config.json: decoder_start_token_id of the {model_type} model is {start}, and s2sjax starts a decoder with "
        "pad_token_id, eos_token_id or bos_token_id: import a model that starts with one of them",
    )
    return found


def special_ids(settings: config.Transformer, foreign: np.ndarray) -> dict[str, Any]:
    """The entries of config.json for special tokens."""
    names = {"pad_token_id": PAD, "bos_token_id": SOS, "eos_token_id": EOS}
    names["decoder_start_token_id"] = settings.start_token
    return {name: int(foreign[id]) for name, id in names.items()} | {"forced_eos_token_id": None}


def equal(c: Mapping[str, Any], one: str, other: str) -> Any:
    """An entry that the encoder and the decoder must have in common."""
    require(
        c[one] == c[other],
        f"config.json: {one} {c[one]} and {other} {c[other]} differ, and s2sjax has one setting for both: such a model "
        "cannot be imported",
    )
    return c[one]


def activation(name: Any, entry: str) -> Any:
    require(
        isinstance(name, str) and name in ACTIVATIONS,
        f"config.json: {entry} {name!r} is none of {', '.join(ACTIVATIONS)}: such a model cannot be imported",
    )
    return ACTIVATIONS[name]


def foreign_activation(name: str) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


def differing(settings: config.Transformer, allowed: Mapping[str, tuple[Any, ...]]) -> list[Difference]:
    """The settings that are none of the allowed values."""
    return [
        Difference(field, getattr(settings, field), " or ".join(map(repr, values)))
        for field, values in allowed.items()
        if getattr(settings, field) not in values
    ]
