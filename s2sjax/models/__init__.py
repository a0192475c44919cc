"""Encoder-decoders: the contract, the families, and the table of all models."""

from s2sjax.models.named_models import NAMED, Named
from s2sjax.models.registry import (
    FAMILIES,
    TENSOR_RULES,
    Rules,
    build,
    build_encoder,
    encoder_rules,
    tensor_rules,
)
