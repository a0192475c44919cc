"""Pretrained models at their sizes, with random weights, in s2sjax and in `transformers`.

The model of `transformers` is an export by `s2sjax.interop`, so that both compute the same function.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from s2sjax import config, interop, models

_NLLB = config.Transformer(
    width=1024, heads=16, feedforward=4096, encoder_layers=12, decoder_layers=12, norm="pre", sinusoids="tensor2tensor",
    first_position=1, epsilon=1e-5, tie="all", decoder_start="eos",
)  # fmt: skip
_T5 = config.Transformer(
    width=768, heads=12, feedforward=3072, encoder_layers=12, decoder_layers=12, norm="pre", normalization="rms",
    biases=False, positions="relative", tie="all", scale_embedding=False, scale_output=True, decoder_start="pad",
)  # fmt: skip
_MARIAN = config.Transformer(activation="swish", epsilon=1e-5, tie="all", decoder_start="pad")
MODELS = {"marian": (_MARIAN, 58_101), "t5-base": (_T5, 32_128), "nllb-600m": (_NLLB, 256_206)}
"""the settings and the size of the vocabulary of each model"""


def parameters(model: config.Transformer, vocabulary: int) -> Any:
    """Random parameters in float32; those of all libraries."""
    module, ids = models.build(model, vocabulary, vocabulary), np.ones((1, 1), np.int32)
    return jax.jit(module.init)(jax.random.key(0), ids, ids)["params"]


def in_transformers(model: config.Transformer, vocabulary: int) -> Any:
    """The same model with the same parameters in `transformers`."""
    os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # measure the compile times of a first run
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    page, tensors = interop.dump(model, jax.device_get(parameters(model, vocabulary)), np.arange(vocabulary))
    peer = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**page))
    peer.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()}, strict=False)
    peer.tie_weights()
    return peer.eval()
