"""Specifications of encoder outputs and decoder inputs, and the base class of model configurations.

Each model configuration has an `encoder_spec` and a `decoder_spec`; s2sjax/models/encoder_decoder.py builds the bridge.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from s2sjax.config.settings import at_least, must_be, require, settings
from s2sjax.core.special_tokens import SOS
from s2sjax.errors import UserError

Initial = Literal["orthogonal", "glorot"]
Join = Literal["concatenate", "mean", "project"]
Tie = Literal["all", "output", "embeddings", "none"]


class Carries(NamedTuple):
    """The cell of a recurrent stack and the width of each layer, from the lowest."""

    cell: str
    widths: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.cell} {' + '.join(map(str, self.widths))}"


class EncoderSpec(NamedTuple):
    """Shapes that an encoder returns: `EncoderOutput.states` [B, S, states] and `EncoderOutput.final`."""

    states: int
    """width of the memory, which has one vector per source position"""
    carries: Carries | None = None
    """final carries of the recurrent layers; None for an encoder without any"""


class DecoderSpec(NamedTuple):
    """Shapes that a decoder requires."""

    states: int | None
    """width of the memory that the decoder attends to; None for a decoder without attention"""
    carries: Carries | None = None
    """initial carries of the recurrent layers; None for a decoder without any"""


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
    """A limit on the distance over which attention reaches."""

    field: str
    """name of the field of the model settings that sets the radius"""
    radius: int
    source_only: bool
    remedy: str
    """value of the field that turns the limit off, for error messages"""


class ModelSettings:
    """Base class of model configurations: the properties that other settings are checked against, with safe defaults.

    To add a model, derive a `@settings` class. It requires the fields `embedding_size` (0 for one-hot tokens),
    `tie` and `dropout`, the properties `encoder_spec` and `decoder_spec`, and its modules as class attributes: see
    s2sjax/models/registry.py. The rest is optional.
    """

    embedding_size: int
    tie: Tie
    dropout: float

    encoder_type: ClassVar[Any] = None
    """Flax module of the encoder; None for that of the family the class derives from"""
    decoder_type: ClassVar[Any] = None
    """Flax module of the decoder; None for that of the family the class derives from"""
    tensor_rules: ClassVar[tuple[tuple[str, tuple[str | None, ...]], ...]] = ()
    """rules by which a tensor-parallel mesh splits parameters, see s2sjax/training/mesh.py; others are not split"""
    takes_segments: ClassVar[bool] = False
    """whether the model keeps the examples of a packed row apart"""
    heads: int = 0
    """number of attention heads, a multiple of the tensor axis of a mesh; 0 for a model without heads"""
    attends_own_position: ClassVar[bool] = False
    """whether target position t always attends to source position t"""
    variational_dropout: bool = False
    """whether dropout draws one mask per sentence"""
    zoneout: float = 0.0
    """fraction of each recurrent state that a step leaves unchanged"""
    reverse: bool = False
    """whether the encoder reads the source from its end"""
    share: bool = False
    """whether the decoder uses the encoder's parameters"""
    adapter_rank: int = 0
    """rank of the low-rank adapters; 0 for none"""
    adapter_scale: float = 1.0
    """multiplier of the low-rank adapters"""
    scale_embedding: bool = True
    """whether token embeddings are multiplied by the square root of their width"""
    output_bias: bool | None = None
    """whether the logits have a bias; None for one exactly if the output layer is a matrix of its own"""

    @property
    def encoder_spec(self) -> EncoderSpec:
        raise UserError(f"{type(self).__name__} has no encoder_spec: define it, see docs/extending.md")

    @property
    def decoder_spec(self) -> DecoderSpec:
        raise UserError(f"{type(self).__name__} has no decoder_spec: define it, see docs/extending.md")

    @property
    def start_token(self) -> int:
        """The id of the token that the decoder reads first."""
        return SOS

    @property
    def ties_output(self) -> bool:
        """Whether the embedding of the target is also the output layer."""
        return self.tie in ("all", "output")

    @property
    def ties_embeddings(self) -> bool:
        """Whether the source and the target share one embedding."""
        return self.tie in ("all", "embeddings")

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the model can address; None for no limit."""
        return None

    @property
    def attention_window(self) -> AttentionWindow | None:
        """The limit on the reach of attention, or None."""
        return None

    @property
    def encoder_is_products(self) -> bool:
        """Whether the encoder is products and elementwise functions alone, so that remat "products" saves nothing."""
        return False

    @property
    def decoder_is_products(self) -> bool:
        """The same for the decoder."""
        return False


def check_tie(config, output: int) -> None:
    """Raises a UserError if an output layer that reads width `output` is tied to an embedding of another width."""
    if not config.ties_output:
        return
    require(
        config.embedding_size > 0,
        f"model.tie {config.tie!r} needs an embedding to tie: set model.embedding_size {output}",
    )
    require(
        config.embedding_size == output,
        f"model.tie {config.tie!r}: the output layer reads width {output}, but the embedding has width "
        f"{config.embedding_size}: set model.embedding_size {output}, or model.tie 'none'",
    )


@settings
class EmbeddedModel(ModelSettings):
    """Base class of families whose tokens have an embedding of another width than the states."""

    width: int = 512
    """width of the states"""
    embedding_size: int = 256
    """width of the token embedding; 0 for one-hot vectors"""

    def check(self, *positive: str, nonnegative: tuple[str, ...] = (), output: int) -> None:
        """Raises a UserError unless these fields, the dropout rate and the width `output` of tied vectors are valid."""
        at_least(1, self, "model", "width", *positive)
        at_least(0, self, "model", "embedding_size", *nonnegative)
        must_be("in [0, 1)", self, "model", "dropout", "zoneout")
        check_tie(self, output)


def check_even(config, name: str, *widths: int) -> None:
    """Raises a UserError unless all widths, the value of the field `name`, can be halved between two directions."""
    each = "each" if name.endswith("s") else "it"
    require(
        not any(width % 2 for width in widths),
        f"model.{name} is {getattr(config, name)}: {each} must be even to be halved between two directions",
    )
