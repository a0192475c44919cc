"""Pictures in a column of a table, with their captions in another."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from s2sjax import config
from s2sjax.config import at_least, require, settings
from s2sjax.config.in_memory import text_row
from s2sjax.data.corpora import frame_reader
from s2sjax.errors import UserError
from s2sjax.tasks.captioning.captioned_pictures import Captioned, Picture, decoded, plain_words, read


@settings
class FramePictures(Captioned):
    """Pictures and captions of a frame or of Parquet or JSON lines files.

    The source is a picture: the bytes of a JPEG or PNG file, an image column of Hugging Face datasets, or numbers from
    0 to 255 of the shape [height, width, 3]. The target is a caption, or a list of captions, which are converted to
    lower case, without punctuation.
    """

    frame: config.Tabular = field(default_factory=config.Frame)
    """table of the pictures and captions"""
    size: int = 128
    """side of the pictures in pixels; larger pictures are shrunk, smaller ones rejected"""

    def __post_init__(self):
        at_least(1, self, "data.corpus", "size")
        frame_reader.require_target(self.frame)

    def has(self, split: str) -> bool:
        return self.frame.has(split)

    def examples(self, split: str) -> list[Picture]:
        require(self.has(split), f"data.corpus.frame.{split} is empty: give some rows, or name another split")
        found = []
        for row in frame_reader.rows(self.frame, split):
            _, *texts = text_row(row.where, self.frame.columns, ("", *row.targets))
            captions = tuple(map(plain_words, texts))
            for words, text in zip(captions, texts):
                wrong = f"{row.where} has a caption without words ({text!r:.40}): write some, or remove the row"
                require(bool(words), wrong)
            pixels, digest = self._picture(row)
            found.append(Picture(pixels, captions, row.where, digest))
        return found

    def _picture(self, row: frame_reader.Row) -> tuple[np.ndarray, str]:
        content = frame_reader.encoded(row.source)
        if isinstance(content, str):
            return read(content, self.size, row.where)
        if content:
            return decoded(content, self.size, row.where)
        pixels = frame_reader.array(row.source)
        if (
            pixels is None or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.min() < 0 or pixels.max() > 255
            or (pixels != np.floor(pixels)).any()  # from 0 to 1, or NaN
        ):  # fmt: skip
            found = f"{row.where}: the column {self.frame.source!r} is {row.source!r:.60}"
            form = "bytes, an image column, or whole numbers from 0 to 255 [height, width, 3]"
            raise UserError(f"{found}: it must be a picture: {form}")
        return decoded(_as_file(pixels.astype(np.uint8)), self.size, row.where)


def _as_file(pixels: np.ndarray) -> bytes:
    """Pixels [height, width, 3] as the content of a PPM file, so that they are cropped and shrunk as those of files."""
    height, width, _ = pixels.shape
    return f"P6 {width} {height} 255\n".encode() + pixels.tobytes()
