"""Settings of transcription: the model."""

from __future__ import annotations

from dataclasses import field

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.tasks.recognition.settings import FrameModel
from s2sjax.tasks.transcription.convolutions import STRIDE


@settings
class SpellerModel(FrameModel):
    """An encoder-decoder that reads frames."""

    network: config.ModelConfig = field(
        default_factory=lambda: config.RNNsearch(width=128, embedding_size=64, encoder_layers=2, dropout=0.2)
    )
    """encoder-decoder from frames to labels; the `embedding` of its encoder is the width to which frames are projected,
    0: no projection"""
    convolve: bool = False
    """whether the encoder reads the output of two convolutions over time with GELU, the second of stride 2, as in
    Whisper"""

    def __post_init__(self):
        super().__post_init__()
        if not self.convolve:
            return
        encoder, _ = config.encoder_and_decoder(self.network)
        require(
            self.stack == 1 and self.channels == 0 and not self.normalize,
            "model.convolve reads two frames as one, as they are: leave out model.stack, channels and normalize",
        )
        require(
            encoder.embedding_size > 0,
            "model.convolve projects frames to the embedding size of model.network: set it above 0",
        )

    @property
    def reduction(self) -> int:
        return STRIDE if self.convolve else super().reduction
