"""Flax modules that declare parameters and call the core.

parameters          parameters that are traced only when needed
linear              dense layers, layer norm, RMS norm, dropout
embedding           embeddings of tokens, and of words by their characters
recurrent           stacks of recurrent cells
convolutional       convolutions over time
mixer               recurrences of core/mixers
attention_pooling   a sequence pooled into vectors by attention
"""

from s2sjax.layers.attention_pooling import NonLocal, Pooling
from s2sjax.layers.convolutional import ACTIVATIONS, Convolution, Convolutional, Stacked
from s2sjax.layers.embedding import CharacterNetwork, Embedding, OneHot, Spelling, TiedOutput
from s2sjax.layers.linear import (
    ADAPTER,
    TABLE,
    Dense,
    LayerNorm,
    RMSNorm,
    dropout,
    kernels_as_tables,
    merge_adapters,
    remat_block,
)
from s2sjax.layers.mixer import Mixer
from s2sjax.layers.parameters import param, shapes_only
from s2sjax.layers.recurrent import STATE_INITIAL, Recurrent, Shapes, Weights, cell_weights, draw_noise, square_blocks
