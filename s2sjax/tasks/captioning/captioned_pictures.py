"""Pictures and corpora of pictures with captions.

Pillow (the extra `pictures`) reads the files: JPEG, PNG and its other formats, from a folder or inside a .zip. A
picture becomes uint8 [size, size, 3]: rotated as its EXIF data says, cropped to its central square, in RGB.

A corpus is a settings class that inherits from `Captioned`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax.config import FilePath, at_least, require, settings
from s2sjax.data.assets import sha256
from s2sjax.data.corpora.text_files import Row, read_tsv
from s2sjax.data.signals.audio import open_zip
from s2sjax.errors import UserError

FLICKR8K = "Flickr8k (Hodosh, Young and Hockenmaier 2013)"
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow modes with at most 8 bits per channel"""
MOST_PIXELS = 25_000_000
"""maximum number of pixels of a picture that is sent to `s2sjax serve`"""


class Picture(NamedTuple):
    """A picture with its captions."""

    pixels: np.ndarray  # uint8 [size, size, 3]
    captions: tuple[str, ...]  # () if they are unknown
    name: str
    digest: str = ""
    """SHA-256 of the file"""

    def __str__(self) -> str:
        return self.name


class Captioned:
    """Base class of corpora of captioned pictures. Your own corpus defines `size` and these methods."""

    size: int
    """side of the pictures in pixels"""

    def has(self, split: str) -> bool:
        return bool(getattr(self, split, None))

    def examples(self, split: str) -> list[Picture]:
        """The examples of a split. Repeated calls must return equal examples."""
        raise UserError(f"{type(self).__name__} does not define examples(split): return its Pictures from it")

    def example_of(self, line: str, where: str) -> Picture:
        """Reads the picture whose path is a line of `s2sjax decode`."""
        path = line.strip()
        require(bool(path), f"{where} is empty: write the path of a picture")
        pixels, digest = read(path, self.size, where)
        return Picture(pixels, (), path, digest)

    def example_from(self, content: bytes, where: str) -> Picture:
        """Decodes the content of a file, for `s2sjax serve`."""
        pixels, digest = decoded(content, self.size, where, MOST_PIXELS)
        return Picture(pixels, (), where, digest)


def plain_words(caption: str) -> str:
    """Removes punctuation and converts to lower case: "A tri-colored dog's ball ." -> "a tri-colored dog's ball"."""
    return " ".join(re.findall(r"[^\W_]+(?:['-][^\W_]+)*", caption.lower().replace("\u2019", "'")))


# -------------------------------------------------------------------------------------- reading


def read(
    path: str | Path, size: int, where: str = "", archive: zipfile.ZipFile | None = None
) -> tuple[np.ndarray, str]:
    """Reads a picture: its pixels, uint8 [size, size, 3], and the SHA-256 of its file. Errors begin with `where`.

    With `archive`, `path` is the name of a member.
    """
    name = f"{where}: {path}" if where else str(path)
    try:
        content = archive.read(str(path)) if archive else Path(os.path.expanduser(path)).read_bytes()
    except KeyError:
        raise UserError(f"{name} is not in {archive.filename if archive else path}: correct the name") from None
    except FileNotFoundError:
        raise UserError(f"{name} does not exist: correct the path") from None
    except (OSError, RuntimeError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read ({reason}): check the file") from None
    return decoded(content, size, name)


def decoded(content: bytes, size: int, name: str, most: int | None = None) -> tuple[np.ndarray, str]:
    """Decodes the content of a picture file, of at most `most` pixels, as `read` does. Transparency becomes white."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError("Pillow, which reads pictures, is not installed: pip install pillow") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as opened:
                mode = opened.mode
                if most is not None and opened.width * opened.height > most:
                    raise Image.DecompressionBombError
                picture = ImageOps.exif_transpose(opened)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        most = (Image.MAX_IMAGE_PIXELS or 0) if most is None else most
        raise UserError(f"{name} has more than {most // 10**6} million pixels: make it smaller") from None
    except Exception as error:  # Pillow's decoders raise errors of many kinds for a damaged file
        reason = "its format is unknown" if type(error).__name__ == "UnidentifiedImageError" else str(error)
        raise UserError(f"{name} cannot be read ({reason}): give a JPEG or PNG file") from None
    require(mode in MODES, f"{name} has pixels of mode {mode}: convert it to 8-bit RGB")
    width, height = picture.size
    require(
        min(width, height) >= size,
        f"{name} is too small, with {width} x {height} pixels: at least {size} x {size} are needed",
    )
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    if picture.size != (size, size):
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = picture.convert("RGB").crop((left, top, left + side, top + side))
        picture = square.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture.convert("RGB"), np.uint8), hashlib.sha256(content).hexdigest()


# -------------------------------------------------------------------------------------- corpora


@settings
class CaptionedFiles(Captioned):
    """Files of pictures and captions. For each part NAME: the pictures in NAME.zip or in a folder NAME, and
    captions_NAME.tsv with the name of a picture, a tab, and a caption; a picture may have several lines.

    Captions are converted to lower case, without punctuation.
    """

    folder: FilePath = "data:flickr8k"
    """folder of the files"""
    train: str = "train"
    """training part"""
    dev: str = ""
    """part evaluated during training; empty: see dev_percent"""
    test: str = "dev"
    """part evaluated at the end; empty: none"""
    dev_percent: float = 5.0
    """percentage of the training pictures that become dev pictures if there is no dev part, by a hash of their names"""
    size: int = 128
    """side of the pictures in pixels; larger pictures are shrunk, smaller ones rejected"""
    origin: str = FLICKR8K
    """origin of the data, for the error if a file is missing"""

    def __post_init__(self):
        at_least(1, self, "data.corpus", "size")
        require(self.train != "", "data.corpus.train is empty: name the training part")
        require(
            0 <= self.dev_percent < 100,
            f"data.corpus.dev_percent is {self.dev_percent}: it must be from 0 to less than 100",
        )

    def has(self, split: str) -> bool:
        return bool(getattr(self, split) or (split == "dev" and self.dev_percent))

    def examples(self, split: str) -> list[Picture]:
        """The pictures of a split, in the order of the captions file."""
        require(self.has(split), f"data.corpus has no {split} part: name one, or choose another split")
        part = getattr(self, split) or self.train
        file = Path(self.folder) / f"captions_{part}.tsv"
        captions: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        for row in read_tsv(file, ("name of a picture", "caption"), "data.corpus.folder", self.origin):
            name = row.fields[0]
            if part == self.train and not self.dev and self._held_out(name) != (split == "dev"):
                continue
            captions.setdefault(name, []).append(_words_of(row))
            first.setdefault(name, row.where)
        require(
            bool(captions), f"data.corpus has no pictures for {split}: change data.corpus.dev_percent, or name a part"
        )
        folder = Path(self.folder) / part
        zipped = lambda: open_zip(folder.with_name(f"{part}.zip"), f"pictures of {self.origin}")
        found = []
        with contextlib.nullcontext() if folder.is_dir() else zipped() as archive:
            for name, texts in captions.items():
                pixels, digest = read(name if archive else folder / name, self.size, first[name], archive)
                found.append(Picture(pixels, tuple(texts), name, digest))
        return found

    def _held_out(self, name: str) -> bool:
        number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
        return number % 10_000 < 100 * self.dev_percent


def _words_of(row: Row) -> str:
    words = plain_words(row.fields[1])
    require(bool(words), f"{row.where} has a caption without words ({row.fields[1]!r:.40}): write some, or remove it")
    return words


COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220), "yellow": (230, 210, 50)}


@settings
class Squares(Captioned):
    """Generated pictures, for quick tests: a coloured square in a quarter of a grey picture, with two captions."""

    train: int = 400
    """number of training pictures"""
    dev: int = 40
    """number of pictures evaluated during training"""
    test: int = 40
    """number of pictures evaluated at the end"""
    size: int = 16
    """side of the pictures in pixels"""
    seed: int = 0
    """seed of the pictures"""

    def __post_init__(self):
        at_least(0, self, "data.corpus", "train", "dev", "test")
        at_least(4, self, "data.corpus", "size")

    def examples(self, split: str) -> list[Picture]:
        found = []
        for index in range(getattr(self, split)):
            rng = random.Random(f"{self.seed}/{split}/{index}")
            colour = rng.choice(list(COLOURS))
            down, right = rng.randrange(2), rng.randrange(2)
            half, pixels = self.size // 2, np.full((self.size, self.size, 3), rng.randrange(90, 160), np.uint8)
            top, left = (1 + side * half + rng.randrange(max(half // 4, 1)) for side in (down, right))
            pixels[top : top + half - half // 4, left : left + half - half // 4] = COLOURS[colour]
            place = f"{('top', 'bottom')[down]} {('left', 'right')[right]}"
            captions = f"a {colour} square at the {place}", f"in the {place} there is a {colour} square"
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            found.append(Picture(pixels, captions, f"{split} {index}", digest))
        return found


def fingerprint(pictures: Sequence[Picture]) -> str:
    """The SHA-256 of captions and files. Pixels are not hashed: the last bits of a JPEG depend on the decoder."""
    return sha256(json.dumps([picture.captions, picture.digest]).encode() for picture in pictures)
