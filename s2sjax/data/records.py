"""A prepared folder: training pairs that are read by index, one batch at a time.

    prepared.json                 the manifest, written last: what the folder holds and how it was prepared
    vocabulary/                   as in the folder of a run
    train-00000.array_record ...  one record per pair: source ids <eos> target ids <eos>
    lengths.npy                   int32 [N, 2], memory-mapped
    example.npy                   int32 [N]: the example that each pair comes from
    dev.jsonl, test.jsonl         [source, [target ...], corpus] on each line: the raw text, for evaluation

N is the number of pairs. prepare.py writes the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.data import Example, Split, text
from s2sjax.data.columns import Batch, Bucket, Ragged
from s2sjax.errors import UserError

MANIFEST = "prepared.json"
VERSION = 1


class Records:
    """The training pairs of a prepared folder, with the interface of `Columns`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.manifest = read_manifest(folder)
        self.fingerprint: str = self.manifest["data"]
        self.sizes: tuple[int, ...] = tuple(self.manifest["sizes"])
        self.lengths, self.example = (self._memory_map(name) for name in ("lengths.npy", "example.npy"))
        self._records = self._open()

    def _memory_map(self, name: str) -> np.ndarray:
        try:
            table = np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(self.folder / name, error) from None
        if len(table) != sum(self.sizes):
            raise _damaged(self.folder / name, f"{len(table)} pairs, not {sum(self.sizes)}")
        return table

    def _open(self) -> Any:
        # Imported here because it is slow; and without Grain, so that a notebook can read a folder without JAX.
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        for name, _ in self.manifest["shards"]:
            if not (self.folder / name).is_file():
                raise _damaged(self.folder / name, "it is missing")
        return ArrayRecordDataSource([f"{self.folder / name}[0:{count}]" for name, count in self.manifest["shards"]])

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """See `Columns.batch`. The result does not depend on the epoch."""
        real = rows[rows >= 0]
        lengths = self.lengths[real]
        flat = np.append(
            self._read(real, lengths), np.zeros(1, self._type)
        )  # never empty, even if all rows are padding
        both = Ragged(flat, np.concatenate([[0], lengths.ravel().cumsum()]))  # source and target alternate
        place = np.full(len(rows), -1)
        place[rows >= 0] = 2 * np.arange(len(real))
        return {
            "source": both.padded(place, bucket[0]).astype(np.int32),
            "target": both.padded(np.where(place < 0, -1, place + 1), bucket[1]).astype(np.int32),
            "example": np.where(rows < 0, np.int32(-1), self.example[rows]),
        }

    @property
    def _type(self) -> np.dtype:
        return np.dtype(self.manifest["type"])

    def _read(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The records of these pairs, concatenated."""
        if len(rows) == 0:
            return np.zeros(0, self._type)
        try:
            records = self._records.__getitems__(rows.tolist())
        except (OSError, ValueError, IndexError, RuntimeError) as error:
            raise _damaged(self.folder, error) from None
        if [len(record) for record in records] != (lengths.sum(1) * self._type.itemsize).tolist():
            raise _damaged(self.folder, "a record is longer or shorter than lengths.npy says")
        return np.frombuffer(b"".join(records), self._type)

    def vocabularies(self) -> tuple[text.AnyVocabulary, text.AnyVocabulary]:
        source, target = (text.load(self.folder / "vocabulary", name) for name in ("source", "target"))
        if [source.fingerprint, target.fingerprint] != self.manifest["vocabulary"]:
            raise _damaged(self.folder / "vocabulary", "it does not match the records")
        return source, target

    def check(self, data: config.Data) -> None:
        """Raises a UserError if the experiment's settings differ from those that the folder was prepared with."""
        made: config.Data = config.from_json(self.manifest["made_with"])
        for field in ("source", "target", "shared"):
            before, now = getattr(made, field), getattr(without_spelling(data), field)
            if before != now:
                raise UserError(
                    f"{self.folder} was prepared with data.{field} {before}, not {now}: "
                    "change the setting, or prepare the folder again"
                )
        wanted = data.corpus.corpus if isinstance(data.corpus, config.Prepared) else data.corpus
        if wanted is not None and config.without_folders(wanted) != config.without_folders(made.corpus):
            raise UserError(f"{self.folder} was prepared from another corpus than data.corpus.corpus: prepare it again")


def without_spelling(data: config.Data) -> config.Data:
    """`data` without the settings of character-based word vectors, which do not change the ids."""
    source, target = (config.replace(side, spelling=config.Spelling()) for side in (data.source, data.target))
    return config.replace(data, source=source, target=target)


def read_manifest(folder: str | Path) -> dict:
    path = Path(folder) / MANIFEST
    if not path.is_file():
        where = config.relative_path(folder)
        raise UserError(f"{where} is not prepared: run `s2sjax prepare FILE` first, or correct data.corpus.folder")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["version"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    if version != VERSION:
        raise UserError(f"{folder} was prepared by another version of s2sjax: prepare it again")
    return manifest


def corpus_of(folder: str | Path) -> config.Corpus:
    """The corpus that a folder was prepared from."""
    return config.from_json(read_manifest(folder)["made_with"]).corpus


def has(folder: str | Path, split: str) -> bool:
    return split == "train" or (Path(folder) / f"{split}.jsonl").is_file()


def examples(folder: str | Path, split: Split) -> Iterator[Example]:
    """The text of dev or test. The training split is stored as ids only."""
    read_manifest(folder)
    if split == "train":
        raise UserError(f"{folder} contains no training text: use the corpus that it was prepared from")
    if not has(folder, split):
        raise UserError(f"{folder} was prepared without {split} examples: choose another split, or prepare it again")
    with open(Path(folder) / f"{split}.jsonl", encoding="utf-8") as lines:
        for line in lines:
            source, targets, corpus = json.loads(line)
            yield Example(source, tuple(targets), corpus)


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(f"{path} is damaged ({' '.join(str(reason).split())}): copy it again, or prepare it again")
