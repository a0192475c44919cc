"""What an encoder returns and what a decoder requires, and the facts of a model that other settings depend on.

Each model configuration has an `encoder_spec` and a `decoder_spec`; s2sjax/models/contract.py builds the bridge.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from s2sjax.config.settings import require
from s2sjax.errors import UserError

Initial = Literal["orthogonal", "glorot"]
Join = Literal["concatenate", "mean", "project"]
Tie = Literal["all", "output", "none"]


class Carries(NamedTuple):
    """The carries of a recurrent stack: one a layer, from the lowest."""

    cell: str
    widths: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.cell} {' + '.join(map(str, self.widths))}"


class EncoderSpec(NamedTuple):
    """What an encoder returns: `Memory.states` [B, S, states] and `Memory.final`."""

    states: int
    """width of the memory, one vector a source position"""
    carries: Carries | None = None
    """where its recurrent layers end; None for an encoder without any"""


class DecoderSpec(NamedTuple):
    """What a decoder requires."""

    states: int | None
    """width of the memory that it attends to; None for a decoder without attention"""
    carries: Carries | None = None
    """where its recurrent layers begin; None for a decoder without any"""


class RecurrentSpec(NamedTuple):
    """The shape of a recurrent encoder: see `layers.Recurrent`."""

    cell: str
    width: int | tuple[int, ...]
    layers: int
    bidirectional: int = 0
    residual: bool = False
    join: Join = "concatenate"
    initial: Initial = "orthogonal"
    variational: bool = False
    zoneout: float = 0.0


class AttentionWindow(NamedTuple):
    """A limit on how far attention reaches."""

    field: str
    """of the model's settings"""
    radius: int
    source_only: bool
    remedy: str
    """how to attend to everything"""


class ModelSettings:
    """The base of every model configuration: facts that other settings are checked against, with safe defaults.

    A model of your own is a `@settings` class derived from this one. It has the fields `embedding` (width of a token; 0
    for one-hot), `tie` and `dropout`, the properties `encoder_spec` and `decoder_spec`, and as class attributes its
    modules: see s2sjax/models/__init__.py. All else is optional.
    """

    embedding: int
    tie: Tie
    dropout: float

    encoder_type: ClassVar[Any] = None
    """the Flax module that encodes; None: of the family it derives from"""
    decoder_type: ClassVar[Any] = None
    """the Flax module that decodes"""
    tensor_rules: ClassVar[tuple[tuple[str, tuple[str | None, ...]], ...]] = ()
    """how a tensor-parallel mesh splits its parameters, see s2sjax/training/mesh.py; the others stay whole"""
    takes_segments: ClassVar[bool] = False
    """whether it keeps the examples of a packed row apart"""
    scans_time: ClassVar[bool] = True
    """whether training runs a scan over positions"""
    attends_own_position: ClassVar[bool] = False
    """whether target position t always attends to source position t"""
    variational: bool = False
    """whether dropout draws one mask a sentence"""
    zoneout: float = 0.0
    """share of each recurrent state that a step leaves unchanged"""
    reverse: bool = False
    """whether the encoder reads the source from its end"""
    share: bool = False
    """whether the decoder uses the encoder's parameters"""

    @property
    def encoder_spec(self) -> EncoderSpec:
        raise UserError(f"{type(self).__name__} has no encoder_spec: define it, see docs/extending.md")

    @property
    def decoder_spec(self) -> DecoderSpec:
        raise UserError(f"{type(self).__name__} has no decoder_spec: define it, see docs/extending.md")

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that it can address; None: any."""
        return None

    @property
    def attention_window(self) -> AttentionWindow | None:
        """None: attention reaches everywhere."""
        return None

    @property
    def encoder_is_products(self) -> bool:
        """Whether only an elementwise function lies between its products: remat "products" then saves nothing."""
        return False

    @property
    def decoder_is_products(self) -> bool:
        return False


def check_tie(config, output: int) -> None:
    """Refuses to tie an output layer that reads vectors of width `output` to an embedding of another width."""
    if config.tie == "none":
        return
    require(config.embedding > 0, f"model.tie {config.tie!r} needs an embedding to tie: set model.embedding {output}")
    require(
        config.embedding == output,
        f"model.tie {config.tie!r}: the output layer reads {output} numbers and an embedding has {config.embedding}: "
        f"set model.embedding {output}, or model.tie 'none'",
    )
