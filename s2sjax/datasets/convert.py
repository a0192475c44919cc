"""Upstream files to the files of a data set.

A function of CONVERTERS takes the upstream files as bytes (an archive as a dict from names to bytes), then arguments
from the table, and returns the bytes of the file. Lines end with \\n only: other line breaks occur inside sentences.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from s2sjax.errors import UserError


def _lines(data: bytes, encoding: str = "utf-8") -> list[str]:
    return data.decode(encoding).removesuffix("\n").split("\n")


def _text(rows: Iterable[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def _zip(files: Iterable[tuple[str, bytes]], method: int) -> bytes:
    """A zip with fixed dates and modes, so that the same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr, info.compress_type = 0o644 << 16, method
            archive.writestr(info, data)
    return out.getvalue()


# ------------------------------------------------------------------------------------- any set


def gunzip(data: bytes) -> bytes:
    """The content of a .gz file."""
    return gzip.decompress(data)


def compress(data: bytes) -> bytes:
    """A .gz file, without a name and a date in it."""
    return gzip.compress(data, 9, mtime=0)


def unzip(data: bytes, member: str) -> bytes:
    """One file of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(member)


# ------------------------------------------------------------------------------------- tatoeba


def _key(text: str) -> str:
    """Text without case and punctuation."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", text).casefold()))


def _bucket(english: str) -> int:
    return int(hashlib.sha1(_key(english).encode(), usedforsecurity=False).hexdigest()[:8], 16) % 100


def tatoeba(data: bytes, member: str, part: str) -> bytes:
    """Pairs of one part, from the zip of manythings.org or from its text.

    A hash of the English sentence decides: buckets 0 to 95 are train, 96 and 97 dev. Dev pairs whose other side is also
    in train are left out.
    """
    text = unzip(data, member) if data[:2] == b"PK" else data
    pairs = list(dict.fromkeys(tuple(line.split("\t")[:2]) for line in _lines(text)))
    train = [pair for pair in pairs if _bucket(pair[0]) < 96]
    if part == "train":
        return _text(map("\t".join, train))
    seen = {_key(other) for _, other in train}
    dev = (pair for pair in pairs if _bucket(pair[0]) in (96, 97) and _key(pair[1]) not in seen)
    return _text(map("\t".join, dev))


# --------------------------------------------------------------------- classification and tagging


def sst2(data: bytes) -> bytes:
    """ "LABEL TEXT" to "TEXT<tab>LABEL"; no-break spaces become blanks."""
    rows = (line.split(" ", 1) for line in _lines(data))
    return _text(f"{' '.join(text.split())}\t{label}" for label, text in rows)


def trec(data: bytes) -> bytes:
    """ "CLASS:fine QUESTION" in Latin-1 to "QUESTION<tab>CLASS<tab>fine"."""
    rows = (line.split(" ", 1) for line in _lines(data, "latin-1"))
    return _text(f"{question}\t" + label.replace(":", "\t", 1) for label, question in rows)


def snips(words: bytes, tags: bytes, intents: bytes) -> bytes:
    """Three files, line by line, to three columns."""
    columns = [[" ".join(line.split()) for line in _lines(data)] for data in (words, tags, intents)]
    return _text(map("\t".join, zip(*columns, strict=True)))


def wnut17(data: bytes) -> bytes:
    """Blocks of lines "WORD<tab>TAG" to "WORDS<tab>TAGS"."""
    return _tagged(line.split("\t") if line.strip() else None for line in _lines(data))


def conllu(data: bytes) -> bytes:
    """Words and universal tags of a CoNLL-U file; lines whose id is a range or a decimal number are left out."""
    rows = (line.split("\t") if line else None for line in _lines(data))
    return _tagged(row and (row[1], row[3]) for row in rows if row is None or row[0].isdigit())


def _tagged(rows: Iterable[Any]) -> bytes:
    """Rows (word, tag), and None after each sentence, to lines "WORDS<tab>TAGS"."""
    sentences: list[list[Any]] = [[]]
    for row in rows:
        if row is None:
            sentences.append([])
        else:
            sentences[-1].append(row)
    return _text("\t".join(map(" ".join, zip(*sentence, strict=True))) for sentence in sentences if sentence)


# ---------------------------------------------------------------------------------- other text


def first_rows(data: bytes, rows: int) -> bytes:
    """The header line and the first rows of a CSV file."""
    return b"".join(data.splitlines(keepends=True)[: rows + 1])


def scan(data: bytes) -> bytes:
    """ "IN: COMMAND OUT: ACTIONS" to "COMMAND<tab>ACTIONS"."""
    return _text("\t".join(re.findall(r"^IN: (.*) OUT: (.*)$", line)[0]) for line in _lines(data))


def inflection(data: bytes) -> bytes:
    """Lines that end with \\n, without blanks around the fields."""
    return _text("\t".join(field.strip() for field in line.split("\t")) for line in _lines(data) if line.strip())


# ------------------------------------------------------------------------------------ hansards


def _without_accents(data: bytes) -> list[str]:
    """Lines in lower case, without accents and repeated blanks."""
    text = unicodedata.normalize("NFD", data.decode().lower())
    text = "".join(char for char in text if not unicodedata.combining(char))
    return [" ".join(line.split()) for line in text.split("\n") if line.strip()]


def hansards_gold(english: bytes, french: bytes, links: bytes | None = None) -> bytes:
    """Sentences and links: "SENTENCE E F S|P" counted from 1 becomes "i-j" (sure) or "i?j" (possible) from 0."""
    rows = list(zip(_without_accents(english), _without_accents(french), strict=True))
    if links is None:
        return _text(map("\t".join, rows))
    linked: list[set[tuple[int, int, str]]] = [set() for _ in rows]
    for number, i, j, kind in (line.split() for line in _lines(links) if line.strip()):
        linked[int(number) - 1].add((int(i) - 1, int(j) - 1, "-" if kind == "S" else "?"))
    third = (" ".join(f"{i}{kind}{j}" for i, j, kind in sorted(each)) for each in linked)
    return _text("\t".join((*row, text)) for row, text in zip(rows, third))


_TOKEN = (
    r"\b(?:[a-z]\.)+|\b(?:mr|hon|no|st|ms|mrs|dr|jr|sr)\.|\d+(?:[.,]\d+)*[a-z]*|(?<![a-z])\.\d+|%s|"
    r"(?<![a-z])\.\.\.|--|\S"
)
_ELIDED = ["l", "d", "n", "s", "c", "j", "m", "t", "qu", "jusqu", "lorsqu", "puisqu", "quelqu", "presqu"]
_ENGLISH = re.compile(_TOKEN % r"(?<=[a-z])'s\b|[a-z]+(?:'(?!s\b)[a-z]+)*")
_FRENCH = re.compile(_TOKEN % rf"\baujourd'|\b(?:{'|'.join(_ELIDED)})'(?=\w)|[a-z]+(?:'[a-z]+)*")
_FULL = {f"{word}'": f"{word}e" for word in _ELIDED} | {"du": "de le", "des": "de les", "au": "a le", "aux": "a les"}


def hansards_train(debates: Mapping[str, bytes]) -> bytes:
    """Pairs of the debates *.e and *.f, tokenised like the gold sentences. Elisions are undone, repetitions removed."""
    pairs: dict[str, None] = {}  # an ordered set
    for name in sorted(name for name in debates if name.endswith(".e")):
        for english, french in zip(_lines(debates[name]), _lines(debates[f"{name[:-1]}f"]), strict=True):
            if english.strip() and french.strip():
                source = " ".join(_ENGLISH.findall(english.lower()))
                target = " ".join(_FULL.get(token, token) for token in _FRENCH.findall(french.lower()))
                pairs[f"{source}\t{target}"] = None
    return compress(_text(pairs))


# ------------------------------------------------------------------- recordings, photos, series


def _takes(names: Iterable[str], part: str) -> list[tuple[str, str, int, int]]:
    """Names, speakers, digits and takes of the recordings of a part: takes 0 to 4 are test."""
    rows = []
    for name in names:
        if found := re.fullmatch(r"(\d)_([a-z]+)_(\d+)\.wav", name):
            digit, speaker, take = int(found[1]), found[2], int(found[3])
            if (take < 5) == (part == "test"):
                rows.append((speaker, digit, take, name))
    return [(name, speaker, digit, take) for speaker, digit, take, name in sorted(rows)]


def fsdd_index(recordings: Mapping[str, bytes], part: str) -> bytes:
    """A table of the recordings, in the order of fsdd_zip."""
    rows = (f"{name}\t{speaker}\t{digit}\t{take}" for name, speaker, digit, take in _takes(recordings, part))
    return _text(["path\tspeaker\tdigit\ttake", *rows])


def fsdd_zip(recordings: Mapping[str, bytes], part: str) -> bytes:
    """The recordings of a part, in one archive."""
    return _zip(((row[0], recordings[row[0]]) for row in _takes(recordings, part)), zipfile.ZIP_DEFLATED)


def flickr8k_captions(captions: bytes, names: bytes) -> bytes:
    """The captions of the photos that a file names, sorted by photo."""
    found: dict[str, list[str]] = {}
    for line in filter(None, _lines(captions)):
        key, _, caption = line.partition("\t")
        found.setdefault(key.partition("#")[0], []).append(caption)
    return _text(f"{name}\t{caption}" for name in sorted(names.decode().split()) for caption in found[name])


def flickr8k_photo(data: bytes) -> bytes:
    """The square in the middle of a photo, as a JPEG of 128 x 128 pixels; the bytes depend on the JPEG library."""
    from PIL import Image

    picture = Image.open(io.BytesIO(data)).convert("RGB")
    (width, height), side = picture.size, min(picture.size)
    left, top = (width - side) // 2, (height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((128, 128), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    square.save(out, "JPEG", quality=85, optimize=True)
    return out.getvalue()


def flickr8k_zip(photos: Mapping[str, bytes], names: bytes) -> bytes:
    """The photos that a file names, in one archive."""
    return _zip(((name, photos[name]) for name in sorted(names.decode().split())), zipfile.ZIP_STORED)


def pendigits(data: bytes, first: int, last: int) -> bytes:
    """Rows of a CSV file (name, 16 numbers, digit) to "DIGIT<tab>x y<tab>x y ..."."""
    rows = (line.split(",") for line in _lines(data)[first : last + 1])
    return _text(row[17] + "".join(f"\t{row[i]} {row[i + 1]}" for i in range(1, 17, 2)) for row in rows)


def japanese_vowels(data: bytes) -> bytes:
    """Series in the format .ts, 12 channels and the speaker separated by ":", to "SPEAKER<tab>frame<tab>frame ..."."""
    rows = [line.strip().split(":") for line in data.decode().split("@data")[1].split("\n") if line.strip()]
    frames = lambda channels: (" ".join(frame) for frame in zip(*(each.split(",") for each in channels), strict=True))
    return _text("\t".join([row[-1], *frames(row[:-1])]) for row in rows)


CONVERTERS: dict[str, Callable[..., bytes]] = {
    function.__name__: function
    for function in (
        gunzip, compress, unzip, tatoeba, sst2, trec, snips, wnut17, conllu, first_rows, scan, inflection,
        hansards_gold, hansards_train, fsdd_index, fsdd_zip, flickr8k_captions, flickr8k_photo, flickr8k_zip,
        pendigits, japanese_vowels,
    )
}  # fmt: skip


def check_packages(name: str) -> None:
    """Raises a UserError if a converter needs a package that is not installed."""
    if name == "flickr8k_photo":
        try:
            import PIL  # noqa: F401
        except ImportError:
            raise UserError("photos are converted with Pillow, which is not installed: pip install pillow") from None
