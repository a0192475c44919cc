"""The identity encoder: the decoder attends to the output of the front end (Show, Attend and Tell, Xu et al. 2015)."""

from jax import Array

from s2sjax import config, layers
from s2sjax.config import at_least, require
from s2sjax.models.encoder_decoder import EncoderModule, EncoderOutput


class IdentityEncoder(EncoderModule):
    """Returns its input, h_s = x_s, after dropout."""

    config: "Identity"

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        return EncoderOutput(layers.dropout(self, xs, self.config.dropout, train), mask, ())


@config.settings
class Identity(config.ModelSettings):
    """An encoder for `config.Pair` whose memory is the output of the front end. It has no decoder."""

    encoder_type = IdentityEncoder

    embedding_size: int = 256
    """width of the vectors"""
    dropout: float = 0.0
    """dropout rate of the memory"""

    @property
    def encoder_spec(self) -> config.EncoderSpec:
        return config.EncoderSpec(self.embedding_size)

    @property
    def encoder_is_products(self) -> bool:
        return True

    def __post_init__(self):
        at_least(1, self, "model.network.encoder", "embedding_size")
        require(0 <= self.dropout < 1, f"model.network.encoder.dropout is {self.dropout}: it must be in [0, 1)")
