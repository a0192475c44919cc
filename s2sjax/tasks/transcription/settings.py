"""Settings of transcription: the model."""

from __future__ import annotations

from dataclasses import field

from s2sjax import config
from s2sjax.config import settings
from s2sjax.tasks.recognition.settings import FrameModel


@settings
class SpellerModel(FrameModel):
    """An encoder-decoder that reads frames."""

    network: config.ModelConfig = field(
        default_factory=lambda: config.RNNsearch(width=128, embedding_size=64, encoder_layers=2, dropout=0.2)
    )
    """encoder-decoder from frames to labels; the `embedding` of its encoder is the width to which frames are projected,
    0: no projection"""
