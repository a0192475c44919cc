"""The sizes of `s2sjax bench decode`."""

from typing import NamedTuple

from s2sjax import config


class Size(NamedTuple):
    """A model and the searches that it is measured with."""

    model: config.Transformer
    vocabulary: int
    source: int  # tokens per source sentence
    tokens: int  # tokens generated per sentence
    runs: dict[str, tuple[int, int]]  # name -> (beam, batch)
    dtype: str


SIZES = {
    "small": Size(
        config.Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.0),
        8000, 32, 32, {"beam 5, batch 16": (5, 16), "beam 5, batch 1": (5, 1)}, "float32",
    ),
    "base": Size(
        config.Transformer(width=512, heads=8, feedforward=2048, dropout=0.0),
        32000, 64, 64,
        {"beam 5, batch 64": (5, 64), "beam 5, batch 1": (5, 1), "greedy, batch 512": (1, 512)}, "bfloat16",
    ),
}  # fmt: skip
