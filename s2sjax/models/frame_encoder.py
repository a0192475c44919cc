"""A front end and the encoder of any family, for tasks that read frames and have no decoder.

A family is a model configuration, such as `config.Transformer(width=128, encoder_layers=2)`; its decoder settings are
not used. The states have width `family.encoder_spec.states`. The encoder's parameters are below `encoder/`;
`models.encoder_rules` splits them over a tensor-parallel mesh.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, models
from s2sjax.models.encoder_decoder import EncoderOutput
from s2sjax.models.frontends import Frames


class FrameEncoder(nn.Module):
    """Projects real-valued frames to the family's embedding width (0: no projection), then encodes them."""

    family: config.Family
    features: int
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        self.frontend = Frames(self.features, self.family.embedding_size, self.dtype)
        self.encoder = models.build_encoder(self.family, self.frontend.width, self.dtype, self.remat_policy)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> EncoderOutput:
        return self.encoder(*self.frontend(frames, lengths), train)
