"""A prepared folder: pairs that training reads by their number, no more than a batch of them at once.

    prepared.json                 the mark that the folder is whole: what it holds and what it was made of
    vocabulary/                   as in the folder of a run
    train-00000.array_record ...  a record a pair: source ids <eos> target ids <eos>
    lengths.npy                   int32 [N, 2], mapped into memory and not read
    example.npy                   int32 [N]: the example that each pair came from
    dev.jsonl, test.jsonl         [source, [target ...], corpus] a line: text as it was, for evaluation

N pairs. It is written by prepare.py.
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

MARK = "prepared.json"
VERSION = 1


class Records:
    """The training pairs of a prepared folder; to a plan and a stream, what `Columns` are."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.page = read_page(folder)
        self.fingerprint: str = self.page["data"]
        self.sizes: tuple[int, ...] = tuple(self.page["sizes"])
        self.lengths, self.example = (self._mapped(name) for name in ("lengths.npy", "example.npy"))
        self._records = self._open()

    def _mapped(self, name: str) -> np.ndarray:
        try:
            table = np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(self.folder / name, error) from None
        if len(table) != sum(self.sizes):
            raise _damaged(self.folder / name, f"{len(table)} pairs, not {sum(self.sizes)}")
        return table

    def _open(self) -> Any:
        # Here, for it is slow to import; and without Grain, so that a notebook may read without JAX.
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        for name, _ in self.page["shards"]:
            if not (self.folder / name).is_file():
                raise _damaged(self.folder / name, "it is missing")
        return ArrayRecordDataSource([f"{self.folder / name}[0:{count}]" for name, count in self.page["shards"]])

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """See `Columns.batch`; every epoch has the same."""
        real = rows[rows >= 0]
        lengths = self.lengths[real]
        flat = np.append(self._read(real, lengths), np.zeros(1, self._type))  # never empty, even of padding alone
        both = Ragged(flat, np.concatenate([[0], lengths.ravel().cumsum()]))  # source and target by turns
        place = np.full(len(rows), -1)
        place[rows >= 0] = 2 * np.arange(len(real))
        return {
            "source": both.padded(place, bucket[0]).astype(np.int32),
            "target": both.padded(np.where(place < 0, -1, place + 1), bucket[1]).astype(np.int32),
            "example": np.where(rows < 0, np.int32(-1), self.example[rows]),
        }

    @property
    def _type(self) -> np.dtype:
        return np.dtype(self.page["type"])

    def _read(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The records of these pairs, one behind the other."""
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
        if [source.fingerprint, target.fingerprint] != self.page["vocabulary"]:
            raise _damaged(self.folder / "vocabulary", "it is not the one of the records")
        return source, target

    def check(self, data: config.Data) -> None:
        """Refuses an experiment that asks for what the folder was not prepared with."""
        made: config.Data = config.from_json(self.page["made_with"])
        for field in ("source", "target", "shared"):
            before, now = getattr(made, field), getattr(unspelt(data), field)
            if before != now:
                raise UserError(
                    f"{self.folder} was prepared with data.{field} {before}, not {now}: set it so, or prepare it anew"
                )
        wanted = data.corpus.corpus if isinstance(data.corpus, config.Prepared) else data.corpus
        if wanted is not None and wanted != made.corpus:
            raise UserError(f"{self.folder} was prepared from another corpus than data.corpus.corpus: prepare it anew")


def unspelt(data: config.Data) -> config.Data:
    """Settings that make the same ids: how a model makes vectors of words is of no account here."""
    source, target = (config.replace(side, spelling=config.Spelling()) for side in (data.source, data.target))
    return config.replace(data, source=source, target=target)


def read_page(folder: str | Path) -> dict:
    path = Path(folder) / MARK
    if not path.is_file():
        raise UserError(f"{folder} is not prepared: run `s2sjax prepare FILE` first, or correct data.corpus.folder")
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        version = page["version"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    if version != VERSION:
        raise UserError(f"{folder} was prepared by another s2sjax: prepare it anew")
    return page


def corpus_of(folder: str | Path) -> config.Corpus:
    """What a folder was prepared from."""
    return config.from_json(read_page(folder)["made_with"]).corpus


def has(folder: str | Path, split: str) -> bool:
    return split == "train" or (Path(folder) / f"{split}.jsonl").is_file()


def examples(folder: str | Path, split: Split) -> Iterator[Example]:
    """The text of a split that is evaluated; of the training text only the ids were kept."""
    read_page(folder)
    if split == "train":
        raise UserError(f"{folder} keeps no training text: name the corpus that it was prepared from")
    if not has(folder, split):
        raise UserError(f"{folder} was prepared without {split} examples: name another split, or prepare it anew")
    with open(Path(folder) / f"{split}.jsonl", encoding="utf-8") as lines:
        for line in lines:
            source, targets, corpus = json.loads(line)
            yield Example(source, tuple(targets), corpus)


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(f"{path} is damaged ({' '.join(str(reason).split())}): copy it again, or prepare it anew")
