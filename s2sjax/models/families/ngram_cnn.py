"""An encoder of parallel convolutions of several widths (Kim 2014). It has no decoder.

Letters: B batch, S source positions, E input width, F filters per kernel width.
"""

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.config import at_least, require
from s2sjax.models.encoder_decoder import EncoderModule, EncoderOutput


class NGramEncoder(EncoderModule):
    """Computes h_s = [relu(W_k * x)_s for each width k], the features of the k-grams around each position."""

    config: "NGrams"

    def setup(self):
        c = self.config
        self.convolution = [layers.Convolution(self.inputs, c.filters, kernel, self.dtype) for kernel in c.kernels]

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        xs = layers.dropout(self, xs, self.config.dropout, train)
        states = jnp.concatenate([jax.nn.relu(convolve(xs, mask)) for convolve in self.convolution], axis=-1)
        return EncoderOutput(states, mask, ())


@config.settings
class NGrams(config.ModelSettings):
    """Kim 2014: parallel convolutions of several widths. The paper pools them by the maximum over time."""

    encoder_type = NGramEncoder
    tensor_rules = (
        (r"encoder/convolution_\d+/kernel$", (None, None, "tensor")),
        (r"encoder/convolution_\d+/bias$", ("tensor",)),
    )

    embedding_size: int = 128
    """width of the token embedding; 0 for one-hot vectors"""
    kernels: tuple[int, ...] = (3, 4, 5)
    """kernel widths of the convolutions, in positions"""
    filters: int = 100
    """number of features per kernel width"""
    dropout: float = 0.1
    """dropout rate of the input"""

    @property
    def encoder_spec(self) -> config.EncoderSpec:
        return config.EncoderSpec(len(self.kernels) * self.filters)

    @property
    def encoder_is_products(self) -> bool:
        return True

    def __post_init__(self):
        at_least(1, self, "model.encoder", "filters")
        at_least(0, self, "model.encoder", "embedding_size")
        good = len(self.kernels) > 0 and min(self.kernels) >= 1
        require(good, f"model.encoder.kernels is {self.kernels}: give at least one width of 1 or more")
        require(0 <= self.dropout < 1, f"model.encoder.dropout is {self.dropout}: it must be in [0, 1)")
