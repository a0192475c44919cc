"""Prepared folders, whose training pairs are read by index, one batch at a time.

    prepared.json             the manifest, written last: contents of the folder and settings of the preparation
    vocabulary/               as in the folder of a run
    train.ids                 source ids <eos> target ids <eos> of each pair in turn
    starts.npy                int64 [N]: the start of each pair in train.ids
    lengths.npy               int32 [N, 2]: the numbers of source and target ids of each pair
    example.npy               int32 [N]: the example of each pair
    dev.jsonl, test.jsonl     [source, [target ...], corpus] on each line: the raw text, for evaluation

N is the number of pairs. Ids are unsigned 16-bit integers if they fit, else 32-bit. The ids and the three tables are
memory-mapped: a batch reads only its own pairs. In object storage, the tables are read into memory (20 bytes per pair),
and a batch requests the ranges of its own pairs. prepare.py writes the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS
from s2sjax.data import text
from s2sjax.data.batching.columns import Batch, Bucket, padded
from s2sjax.data.examples import Example, Split
from s2sjax.errors import UserError
from s2sjax.files import in_storage

MANIFEST, IDS = "prepared.json", "train.ids"
VERSION = 2
GAP = 1 << 16
"""largest number of bytes between two pairs that one request reads; they take less time than another request"""


class Records:
    """The training pairs of a prepared folder, with the interface of `Columns`."""

    def __init__(self, folder: str | Path):
        self.folder = config.as_path(folder)
        self.manifest = read_manifest(folder)
        self.fingerprint: str = self.manifest["data"]
        self.sizes: tuple[int, ...] = tuple(self.manifest["sizes"])
        self.remarks: list[str] = self.manifest["remarks"]
        self.starts, self.lengths, self.example = map(self._table, ("starts.npy", "lengths.npy", "example.npy"))
        count = int(self.starts[-1] + self.lengths[-1].sum())
        ids: Any = RemoteIds if in_storage(self.folder) else _mapped
        self._ids = self._read(IDS, partial(ids, dtype=np.dtype(self.manifest["type"])), count, "ids")

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.lengths)

    def _table(self, name: str) -> np.ndarray:
        return self._read(name, _table, sum(self.sizes), "pairs")

    def _read(self, name: str, read: Callable[[Path], Any], count: int, what: str) -> Any:
        """What `read` makes of a file, which must have `count` entries."""
        try:
            found = read(self.folder / name)
        except (FileNotFoundError, ValueError, EOFError) as error:
            raise _damaged(self.folder / name, error) from None
        if len(found) != count:
            raise _damaged(self.folder / name, f"{len(found):,} {what}, not {count:,}")
        return found

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """The batch of `Columns.batch`, the same in every epoch."""
        real = rows >= 0
        starts, lengths = self.starts[rows], (self.lengths[rows] * real[:, None]).T  # [B], [2, B]
        # Source and target in one call: with few rows, the overhead of NumPy's calls dominates.
        starts, lengths = np.concatenate([starts, starts + lengths[0]]), lengths.ravel()
        ids = self._ids
        if isinstance(ids, RemoteIds):
            try:
                ids, starts = ids.read(starts, lengths)
            except (FileNotFoundError, ValueError) as error:
                raise _damaged(self.folder / IDS, error) from None
        last = ids.take(starts + lengths - 1, mode="clip")
        if np.count_nonzero((last != EOS) & (lengths > 0)):  # an interrupted copy has zeros in place of ids
            raise _damaged(self.folder / IDS, "a pair does not end in <eos>")
        both = padded(ids, starts, lengths, max(bucket))
        return {
            "source": both[: len(rows), : bucket[0]],
            "target": both[len(rows) :, : bucket[1]],
            "example": np.where(real, self.example[rows], np.int32(-1)),
        }

    def vocabularies(self) -> tuple[text.AnyVocabulary, text.AnyVocabulary]:
        source, target = text.load_both(self.folder / "vocabulary")
        if [source.fingerprint, target.fingerprint] != self.manifest["vocabulary"]:
            raise _damaged(self.folder / "vocabulary", "it does not match the records")
        return source, target

    def check(self, data: config.Data) -> None:
        """Raises a UserError if the experiment's settings differ from those that the folder was prepared with."""
        made: config.Data = config.from_json(self.manifest["made_with"])
        for field in ("source", "target", "shared"):
            before, now = getattr(made, field), getattr(without_spelling(data), field)
            require(
                before == now,
                f"{self.folder} was prepared with data.{field} {before}, not {now}: change the setting, or prepare the "
                "folder again",
            )
        wanted = data.corpus.corpus if isinstance(data.corpus, config.Prepared) else data.corpus
        described = lambda corpus: config.to_json(config.without_folders(corpus))  # its class may be another import
        if wanted is not None and described(wanted) != described(made.corpus):
            raise UserError(f"{self.folder} was prepared from another corpus than data.corpus.corpus: prepare it again")


def _table(path: Path) -> np.ndarray:
    if in_storage(path):
        with path.open("rb") as file:
            return np.load(file)
    return np.load(path, mmap_mode="r").view(np.ndarray)  # indexing a `memmap` is slower


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    return np.memmap(path, dtype, mode="r").view(np.ndarray)


class RemoteIds:
    """The ids of all pairs, in object storage. Only those of a batch are read."""

    def __init__(self, path: Path, dtype: np.dtype):
        from s2sjax.object_storage import Ranges

        self.ranges, self._dtype = Ranges(path), dtype
        self._size = path.stat().st_size // dtype.itemsize

    def __len__(self) -> int:
        return self._size

    def read(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids that contain every sequence, ids[start : start + length], and where each starts in them.

        Sequences that are close to each other are read at once.

            starts 90 0 4, lengths 2 4 3    ids of 0 to 7 and of 90 to 92, starts 7 0 4
        """
        real = lengths > 0
        order = np.flatnonzero(real)[np.argsort(starts[real], kind="stable")]
        first, last = starts[order], np.maximum.accumulate((starts + lengths)[order])
        if np.any(first < 0) or np.any(last > self._size):
            raise ValueError("a pair is outside of it")
        begins = np.concatenate([[True], first[1:] - last[:-1] > GAP // self._dtype.itemsize])[: len(order)]
        piece = np.cumsum(begins) - 1  # of each sequence in `order`
        first = first[begins]  # of each piece, like `last`
        last = last[np.append(np.flatnonzero(begins)[1:], len(order))[: len(first)] - 1]
        found = self.ranges.read((first * self._dtype.itemsize).tolist(), (last * self._dtype.itemsize).tolist())
        ids = np.frombuffer(b"".join(found), self._dtype)
        if len(ids) != np.sum(last - first):
            raise ValueError("it is shorter than before")
        before = np.cumsum(last - first) - last  # place of each piece in `ids`, less its place in the object
        placed = np.zeros_like(starts)
        placed[order] = starts[order] + before[piece]
        return (ids if len(ids) else np.full(1, EOS, self._dtype)), placed


def without_spelling(data: config.Data) -> config.Data:
    """Removes the settings of character-based word vectors from `data`, because they do not affect the ids."""
    source, target = (config.replace(side, spelling=config.Spelling()) for side in (data.source, data.target))
    return config.replace(data, source=source, target=target)


def read_manifest(folder: str | Path) -> dict:
    path = config.as_path(folder) / MANIFEST
    if not path.is_file():
        where = config.relative_path(folder)
        raise UserError(f"{where} is not prepared: run `s2sjax prepare FILE` first, or correct data.corpus.folder")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    require(version == VERSION, f"{folder} was prepared by another version of s2sjax: delete it, and prepare it again")
    return manifest


def corpus_of(folder: str | Path) -> config.Corpus:
    """The corpus that a folder was prepared from."""
    return config.from_json(read_manifest(folder)["made_with"]).corpus


def has(folder: str | Path, split: str) -> bool:
    return split == "train" or (config.as_path(folder) / f"{split}.jsonl").is_file()


def examples(folder: str | Path, split: Split) -> Iterator[Example]:
    """The text of dev or test. The training split is stored as ids only."""
    read_manifest(folder)
    require(split != "train", f"{folder} contains no training text: use the corpus that it was prepared from")
    remedy = "choose another split, or prepare it again"
    require(has(folder, split), f"{folder} was prepared without {split} examples: {remedy}")
    with (config.as_path(folder) / f"{split}.jsonl").open("rb") as lines:
        for line in lines:
            source, targets, corpus = json.loads(line)
            yield Example(source, tuple(targets), corpus)


def _damaged(path: Path, reason: object) -> UserError:
    why = " ".join(str(reason).split())
    return UserError(f"{path} is damaged ({why}): copy it again, or delete the folder and prepare it again")
