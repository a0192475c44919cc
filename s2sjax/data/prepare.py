"""Encodes a corpus once, so that the hosts of a pod only read ids. See data/corpora/prepared_corpus.py for its format.

    prepare(experiment.data, "prepared/de-en", workers=8)

The main process reads the text, `workers` processes encode chunks of it, and the main process writes the ids in the
order of the text. Only a few chunks are in memory at a time. prepared.json is written last: a folder without it is
incomplete. If a preparation is interrupted and run again on the same text, it keeps the complete sections; on another
text, it removes the files that unfinished.json lists, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS
from s2sjax.data import pairs, text
from s2sjax.data.corpora import prepared_corpus, readers, tfds
from s2sjax.data.data_notes import Notes, Overlaps
from s2sjax.data.examples import Example, Split
from s2sjax.errors import UserError
from s2sjax.files import replace_file

CHUNK = 4096
"""number of examples per task of a worker"""
SECTION = 256 * CHUNK
"""number of examples in a section; an interrupted preparation continues after the last complete section"""
UNFINISHED = "unfinished.json"
"""file with the settings of an incomplete preparation and the files that it has started to write"""
WRITTEN = re.compile(
    r"vocabulary/\.?(source|target)\.(json|model)(\.partial)?|train\.ids|section-\d{5,}\.(npz|partial)"
    r"|(lengths|example|starts)\.(npy|partial)|(dev|test)\.(jsonl|partial)|\.?prepared\.json(\.partial)?"
)
"""names of all files that a preparation writes, except unfinished.json"""

Vocabularies = tuple[text.AnyVocabulary, text.AnyVocabulary]
Progress = Callable[[str, int], None]
"""callback progress(stage, number of examples done)"""


class Summary(NamedTuple):
    """The result of a preparation."""

    folder: Path
    pairs: int
    tokens: int
    new: bool  # False if the folder was already complete
    remarks: list[str]


def prepare(
    data: config.Data, folder: str | Path, workers: int = 1, progress: Progress = lambda stage, done: None,
    section: int = SECTION,
) -> Summary:  # fmt: skip
    """Prepares the corpus of an experiment into `folder`. Does nothing if that folder is already complete."""
    require(workers >= 1, f"--workers is {workers}: it must be at least 1")
    data, folder = prepared_corpus.without_spelling(_checked(data)), config.local_path(folder)
    for part in readers.parts(data.corpus):
        if isinstance(part, config.Tfds):
            tfds.download(part)
    train = partial(TrainExamples, data.corpus, progress)
    held_out: list[Split] = [split for split in ("dev", "test") if readers.has(data.corpus, split)]
    notes = Notes(data.corpus)
    overlaps = Overlaps({split: readers.stream(data.corpus, split) for split in held_out})
    fingerprint = pairs.fingerprint(overlaps.watch(notes.watch(train("reading"))))
    made_with = config.to_json(config.without_folders(data))  # other hosts have the files elsewhere
    settings = {"version": prepared_corpus.VERSION, "data": fingerprint, "section": section, "made_with": made_with}
    if (folder / prepared_corpus.MANIFEST).is_file():
        manifest = prepared_corpus.read_manifest(folder)
        same = all(manifest["made_with"][name] == made_with[name] for name in ("corpus", "source", "target", "shared"))
        if manifest["data"] != fingerprint or not same:  # buckets and token budgets do not affect the ids
            raise UserError(f"{folder} contains another corpus: choose another --out, or delete the folder")
        return _summary(folder, new=False)
    journal = Journal(folder, settings)
    vocabularies = _vocabularies(journal, data, train("vocabulary"))
    sections = _write_sections(journal, train("writing"), vocabularies, workers, section)
    _join(journal, sections)
    for split in held_out:
        _write_text(journal, split, readers.stream(data.corpus, split))
    manifest = {
        **settings,
        "vocabulary": [vocabulary.fingerprint for vocabulary in vocabularies],
        "type": _id_type(vocabularies),
        "sizes": [int(size) for size in np.sum([each.sizes for each in sections], axis=0)],
        "remarks": [*notes.lines(), *overlaps.lines()],
    }
    manifest_file, _ = journal.claim(prepared_corpus.MANIFEST, f".{prepared_corpus.MANIFEST}.partial")
    replace_file(manifest_file, json.dumps(manifest, indent=2) + "\n")
    (folder / UNFINISHED).unlink()
    return _summary(folder, new=True)


def _checked(data: config.Data) -> config.Data:
    """The settings with the raw corpus. Raises a UserError if they cannot be prepared."""
    if isinstance(data.corpus, config.Prepared):
        if data.corpus.corpus is None:
            raise UserError(
                "data.corpus.corpus is not set: set it to the corpus to prepare, or run `train` on the folder as it is"
            )
        data = config.replace(data, corpus=data.corpus.corpus)
    for side in ("source", "target"):
        require(
            not getattr(data, side).sampling,
            f"data.{side}.sampling draws new subwords each epoch, but a prepared folder has fixed ids: set it to 0",
        )
    return data


def _summary(folder: Path, new: bool) -> Summary:
    lengths = np.load(folder / "lengths.npy", mmap_mode="r")
    remarks = prepared_corpus.read_manifest(folder)["remarks"]
    return Summary(folder, len(lengths), int(lengths.sum(dtype=np.int64)), new, remarks)


@dataclass(frozen=True)
class TrainExamples:
    """The training examples of a corpus. Each iteration reads the corpus again and reports its progress as `stage`."""

    corpus: config.Corpus
    progress: Progress
    stage: str

    def __iter__(self) -> Iterator[Example]:
        done = 0
        for done, example in enumerate(readers.stream(self.corpus, "train"), start=1):
            if done % CHUNK == 0:
                self.progress(self.stage, done)
            yield example
        require(done > 0, "the corpus has no train examples: check data.corpus")
        self.progress(self.stage, done)


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress]:
    """Shows a progress bar for each stage in the terminal."""
    from rich import console, progress  # imported here so that the workers do not import it

    columns = (progress.TextColumn("{task.description:10}"), progress.BarColumn(), progress.TaskProgressColumn(),
               progress.TextColumn("{task.completed:,} examples"), progress.TimeElapsedColumn())  # fmt: skip
    with progress.Progress(*columns, console=console.Console(), transient=not sys.stdout.isatty()) as shown:
        tasks: dict[str, progress.TaskID] = {}
        most = 0

        def report(stage: str, done: int) -> None:
            nonlocal most
            if stage not in tasks:  # the number of examples is unknown during the first stage
                tasks[stage] = shown.add_task(stage, total=most or None)
            most = max(most, done)
            shown.update(tasks[stage], completed=done, refresh=done == most)

        yield report


class Journal:
    """The unfinished.json of a folder, which lists each file before it is written. Only listed files are ever replaced
    or removed.
    """

    def __init__(self, folder: Path, settings: dict):
        """Continues an unfinished preparation of the same text, or starts one in a folder without other files."""
        self.folder, self.settings = folder, settings
        self.files: list[str] = []
        if os.path.lexists(folder / UNFINISHED):
            unfinished = _read_unfinished(folder / UNFINISHED)
            self.files = unfinished["files"]
            if unfinished["settings"] != settings:
                self._remove_files()
        elif folder.exists() and (not folder.is_dir() or set(os.listdir(folder)) - {f".{UNFINISHED}.partial"}):
            raise UserError(f"{folder} contains other files: choose another --out")

    def claim(self, *names: str) -> list[Path]:
        """Lists files before they are written, and returns their paths. Raises if an unlisted one already exists."""
        new = [name for name in names if name not in self.files]
        for name in new:
            if os.path.lexists(self.folder / name):
                raise UserError(f"{self.folder / name} was not written by this preparation: choose another --out")
        if new:
            self.files += new
            replace_file(self.folder / UNFINISHED, json.dumps({"settings": self.settings, "files": self.files}))
        return [self.folder / name for name in names]

    def _remove_files(self) -> None:
        for path in (self.folder / name for name in self.files):
            if path.is_file() or path.is_symlink():
                path.unlink()


def _read_unfinished(path: Path) -> dict:
    """Reads an unfinished.json. Raises a UserError if no preparation wrote it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(found["files"], list) and all(map(WRITTEN.fullmatch, found["files"])) and "settings" in found
    except (OSError, ValueError, TypeError, KeyError):
        known = False
    require(known, f"{path} does not list what a preparation wrote: choose another --out, or move it")
    return found


def _vocabularies(journal: Journal, data: config.Data, train: TrainExamples) -> Vocabularies:
    """Loads the vocabularies that an unfinished preparation saved, or builds and saves new ones."""
    folder = journal.folder / "vocabulary"
    ids = prepared_corpus.IDS  # written after both vocabularies
    if ids in journal.files and (journal.folder / ids).is_file():
        return text.load_both(folder)
    names = [f"{side}.{kind}" for side in ("source", "target") for kind in ("json", "model")]
    journal.claim(*(f"vocabulary/{file}" for name in names for file in (name, f".{name}.partial")))
    source, target = text.build_both(data, train)
    source.save(folder, "source")
    target.save(folder, "target")
    return source, target


# ------------------------------------------------------------------------------------- sections


class Section(NamedTuple):
    """A part of train.ids. A table stores the lengths and examples of its pairs until all sections are joined."""

    table: Path
    sizes: tuple[int, ...]  # pairs per corpus of a mixture
    end: int  # end of the section in train.ids, in bytes


class Encoded(NamedTuple):
    """An encoded chunk of examples."""

    ids: bytes
    lengths: np.ndarray  # int32 [n, 2]
    counts: list[int]  # pairs per example
    corpora: list[int]  # corpus index of each example


def _write_sections(
    journal: Journal, train: TrainExamples, vocabularies: Vocabularies, workers: int, size: int
) -> list[Section]:
    """Appends the ids of all examples to train.ids, in sections of `size` examples."""
    width = len(readers.parts(train.corpus))
    examples = iter(train)
    sections: list[Section] = []
    (ids,) = journal.claim(prepared_corpus.IDS)
    with open(ids, "ab") as file, _encoder(journal.folder / "vocabulary", vocabularies, workers) as encode:
        for number in count():
            table, _ = journal.claim(f"section-{number:05}.npz", f"section-{number:05}.partial")
            if kept := _kept(table, file.tell()):
                sections.append(kept)
                read = sum(1 for _ in islice(examples, size))
            else:
                file.seek(sections[-1].end if sections else 0)
                file.truncate()  # the beginning of an interrupted section
                chunks = _chunks(islice(examples, size))
                read, made = _write_section(file, table, encode(chunks), number * size, width)
                sections += [made] if made else []
            if read < size:
                break
    return sections


def _kept(table: Path, written: int) -> Section | None:
    """The section that an earlier run completed, or None."""
    if not table.is_file():
        return None
    with np.load(table) as found:
        section = Section(table, tuple(found["sizes"].tolist()), int(found["end"]))
    return section if section.end <= written else None


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while chunk := list(islice(examples, CHUNK)):
        yield chunk


def _write_section(
    file: BinaryIO, table: Path, chunks: Iterable[Encoded], first: int, width: int
) -> tuple[int, Section | None]:
    """Writes a section: first the ids, then atomically its table. Returns (number of examples, section)."""
    lengths, counts, corpora = [], [], []
    for chunk in chunks:
        file.write(chunk.ids)
        lengths.append(chunk.lengths)
        counts += chunk.counts
        corpora += chunk.corpora
    if not counts:
        return 0, None
    file.flush()
    os.fsync(file.fileno())
    example = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    sizes = np.bincount(np.repeat(corpora, counts), minlength=width)
    section = Section(table, tuple(sizes.tolist()), file.tell())
    draft = table.with_suffix(".partial")
    with open(draft, "wb") as into:
        np.savez(into, lengths=np.concatenate(lengths), example=example, sizes=sizes, end=section.end)
    os.replace(draft, table)
    return len(counts), section


def _join(journal: Journal, sections: Sequence[Section]) -> None:
    """Joins the tables of all sections, as memory maps."""
    total = sum(sum(section.sizes) for section in sections)
    shapes = {"lengths": (np.int32, (total, 2)), "example": (np.int32, (total,)), "starts": (np.int64, (total,))}
    journal.claim(*(f"{name}.{kind}" for name in shapes for kind in ("npy", "partial")))
    folder = journal.folder
    tables: dict[str, Any] = {
        name: np.lib.format.open_memmap(folder / f"{name}.partial", mode="w+", dtype=dtype, shape=shape)
        for name, (dtype, shape) in shapes.items()
    }
    first = start = 0
    for section in sections:
        with np.load(section.table) as part:
            lengths, example = part["lengths"], part["example"]
        rows = slice(first, first + len(lengths))
        both = lengths.sum(axis=1, dtype=np.int64)
        tables["lengths"][rows], tables["example"][rows] = lengths, example
        tables["starts"][rows] = start + both.cumsum() - both
        first, start = rows.stop, start + int(both.sum())
    for name in list(tables):
        tables.pop(name).flush()
        os.replace(folder / f"{name}.partial", folder / f"{name}.npy")
    for section in sections:
        section.table.unlink()


def _write_text(journal: Journal, split: str, examples: Iterator[Example]) -> None:
    path, draft = journal.claim(f"{split}.jsonl", f"{split}.partial")
    with open(draft, "w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps([example.source, example.targets, example.corpus], ensure_ascii=False) + "\n")
    os.replace(draft, path)


# -------------------------------------------------------------------------------------- workers


def _id_type(vocabularies: Vocabularies) -> str:
    return "<u2" if max(vocabulary.size for vocabulary in vocabularies) <= 1 << 16 else "<i4"


def _encode(vocabularies: Vocabularies, chunk: Sequence[Example]) -> Encoded:
    source, target = vocabularies
    ids: list[int] = []
    lengths = []
    for example in chunk:
        source_ids = [*source.encode(example.source), EOS]
        for line in example.targets:
            target_ids = [*target.encode(line), EOS]
            ids += source_ids + target_ids
            lengths.append((len(source_ids), len(target_ids)))
    encoded, counts = np.array(ids, _id_type(vocabularies)), [len(example.targets) for example in chunk]
    corpora = [example.corpus for example in chunk]
    return Encoded(encoded.tobytes(), np.array(lengths, np.int32).reshape(-1, 2), counts, corpora)


@contextlib.contextmanager
def _encoder(folder: Path, vocabularies: Vocabularies, workers: int) -> Iterator[Callable[..., Iterable[Encoded]]]:
    """A function that encodes chunks of examples in order: in this process, or in `workers` processes."""
    if workers == 1:
        yield partial(map, partial(_encode, vocabularies))
        return
    # Spawned, not forked: forking a process that runs JAX's threads can hang.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker, (folder,))
    try:
        yield partial(_encode_in_pool, pool, 2 * workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _encode_in_pool(pool: ProcessPoolExecutor, ahead: int, chunks: Iterator[list[Example]]) -> Iterator[Encoded]:
    waiting: deque[Future] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_encode_in_worker, chunk))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a worker was killed, perhaps because memory ran out: run the same command again with fewer --workers; "
            "it continues after the last complete section"
        ) from None


_worker: dict[str, Any] = {}


def _start_worker(folder: Path) -> None:
    _worker["vocabularies"] = text.load_both(folder)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:  # the pool does not notice if its parent is killed
        wait([parent.sentinel])  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _encode_in_worker(chunk: Sequence[Example]) -> Encoded:
    return _encode(_worker["vocabularies"], chunk)
