"""Every model by name: a new one joins these dicts, and tests/zoo.py for the laws."""

import jax.numpy as jnp

from s2sjax import config
from s2sjax.layers import Spelling
from s2sjax.models.contract import EncoderDecoder
from s2sjax.models.rnn import LuongDecoder, RecurrentEncoder, RNNsearchDecoder
from s2sjax.models.transformer import TransformerDecoder, TransformerEncoder

FAMILIES = {
    config.RNNsearch: (RecurrentEncoder, RNNsearchDecoder),
    config.Luong: (RecurrentEncoder, LuongDecoder),
    config.Transformer: (TransformerEncoder, TransformerDecoder),
}

NAMED: dict[str, config.ModelConfig] = {
    "rnnsearch": config.RNNsearch(width=1000, embedding=620, dropout=0.0),
    "luong": config.Luong(width=1000, embedding=1000, layers=4, dropout=0.2),
    "transformer_base": config.Transformer(),
    "transformer_big": config.Transformer(width=1024, heads=16, feedforward=4096, dropout=0.3),
}

# Which dimensions of which parameters a tensor-parallel mesh splits: see s2sjax/train/mesh.py.
_RECURRENT_RULES = (
    (r"(forward|backward)_\d+/(input|state)$", (None, "tensor")),
    (r"decoder/(cell|first|upper_\d+)/(input|state|context|fed)$", (None, "tensor")),
    (r"decoder/(readout|combine)/kernel$", (None, "tensor")),
)
TENSOR_RULES = {
    config.RNNsearch: _RECURRENT_RULES,
    config.Luong: _RECURRENT_RULES,
    config.Transformer: (
        (r"(query|key_value|inner)/kernel$", (None, "tensor")),
        (r"(query|key_value|inner)/bias$", ("tensor",)),
        (r"blocks/stack/(attention|cross)/output/kernel$", ("tensor", None)),
        (r"outer/kernel$", ("tensor", None)),
    ),
}


def build(
    model: config.ModelConfig,
    source_size: int,
    target_size: int,
    dtype=jnp.float32,
    source_spelling: Spelling | None = None,
    target_spelling: Spelling | None = None,
) -> EncoderDecoder:
    """The module of a configuration. Its `init` and `apply` are the pure functions that everything else uses."""
    encoder, decoder = FAMILIES[type(model)]
    spelt = (source_spelling, target_spelling)
    return EncoderDecoder(model, encoder, decoder, source_size, target_size, jnp.dtype(dtype), *spelt)
