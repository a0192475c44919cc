"""Encodes a corpus once, so that the hosts of a pod only read ids. See data/corpora/prepared_corpus.py for its format.

    prepare(experiment.data, "prepared/de-en", workers=8)

The main process reads the text, `workers` processes encode chunks of it, and the main process writes the ids in the
order of the text. Only a few chunks are in memory at a time. Every section of the text has files of its own, which are
joined at the end:

    section-00000.ids         source ids <eos> target ids <eos> of each pair in turn
    section-00000.npz         lengths, example, sizes and the number of bytes of the ids, written after them

prepared.json is written last: a folder without it is incomplete. If a preparation is interrupted and run again on the
same text, it keeps the complete sections; on another text, it removes the files that unfinished.json lists, and nothing
else. The folder may be in object storage, where a file appears as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS
from s2sjax.data import pairs, text
from s2sjax.data.corpora import prepared_corpus, readers, tfds
from s2sjax.data.data_notes import Notes, Overlaps
from s2sjax.data.examples import Example, Split
from s2sjax.errors import UserError
from s2sjax.files import as_path, in_storage, replace_file, writing

CHUNK = 4096
"""number of examples per task of a worker"""
SECTION = 256 * CHUNK
"""number of examples in a section; an interrupted preparation keeps the complete sections"""
UNFINISHED = "unfinished.json"
"""file with the settings of an incomplete preparation and the files that it has started to write"""
WRITTEN = re.compile(
    r"(vocabulary/)?\.?((source|target)\.(json|model)|train\.ids|section-\d{5,}\.(ids|npz)|(lengths|example|starts)\.npy"
    r"|(dev|test)\.jsonl|prepared\.json)(\.partial)?|(section-\d{5,}|lengths|example|starts|dev|test)\.partial"
)
"""names of all files that a preparation writes, and that those of earlier versions wrote, except unfinished.json"""

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
    data, folder = checked(data), as_path(folder)
    for part in readers.parts(data.corpus):
        if isinstance(part, config.Tfds):
            tfds.download(part)
    train = partial(TrainExamples, data.corpus, progress)
    notes = Notes(data.corpus)
    overlaps = Overlaps({split: readers.stream(data.corpus, split) for split in held_out(data.corpus)})
    fingerprint = pairs.fingerprint(overlaps.watch(notes.watch(train("reading"))))
    journal = begin(data, folder, fingerprint, section)
    if journal is None:
        return summary(folder, new=False)
    vocabularies = make_vocabularies(journal, partial(text.build_both, data, train("vocabulary")))
    sections = _write_sections(journal, train("writing"), vocabularies, workers, section)
    return finish(journal, data.corpus, vocabularies, sections, [*notes.lines(), *overlaps.lines()])


def begin(data: config.Data, folder: Path, fingerprint: str, section: int) -> Journal | None:
    """Begins or continues the preparation of a folder. None if the folder is complete.

    fingerprint: that of the training text (`pairs.fingerprint`). section: number of examples in a section.
    """
    made_with = config.to_json(config.without_folders(data))  # other hosts have the files elsewhere
    if (folder / prepared_corpus.MANIFEST).is_file():
        manifest = prepared_corpus.read_manifest(folder)
        same = all(manifest["made_with"][name] == made_with[name] for name in ("corpus", "source", "target", "shared"))
        if manifest["data"] != fingerprint or not same:  # buckets and token budgets do not affect the ids
            raise UserError(f"{folder} contains another corpus: choose another --out, or delete the folder")
        _tidy(folder)
        return None
    settings = {"version": prepared_corpus.VERSION, "data": fingerprint, "section": section, "made_with": made_with}
    return Journal(folder, settings)


def finish(
    journal: Journal, corpus: config.Corpus, vocabularies: Vocabularies, sections: Sequence[Section],
    remarks: list[str],
) -> Summary:  # fmt: skip
    """Joins the complete sections, and writes the rest of the folder, the manifest last."""
    _join(journal, sections)
    for split in held_out(corpus):
        _write_text(journal, split, readers.stream(corpus, split))
    manifest = {
        **journal.settings,
        "vocabulary": [vocabulary.fingerprint for vocabulary in vocabularies],
        "type": _id_type(vocabularies),
        "sizes": [int(size) for size in np.sum([each.sizes for each in sections], axis=0)],
        "remarks": remarks,
    }
    (path,) = journal.claim(prepared_corpus.MANIFEST)
    replace_file(path, json.dumps(manifest, indent=2) + "\n")
    _tidy(journal.folder)
    return summary(journal.folder, new=True)


def held_out(corpus: config.Corpus) -> list[Split]:
    """The splits whose text is stored."""
    splits: tuple[Split, ...] = ("dev", "test")
    return [split for split in splits if readers.has(corpus, split)]


def checked(data: config.Data) -> config.Data:
    """The settings of the ids, with the raw corpus. Raises a UserError if they cannot be prepared."""
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
    return prepared_corpus.without_spelling(data)


def summary(folder: Path, new: bool) -> Summary:
    """Describes a complete folder."""
    made = prepared_corpus.read_manifest(folder)
    tokens = (folder / prepared_corpus.IDS).stat().st_size // np.dtype(made["type"]).itemsize
    return Summary(folder, sum(made["sizes"]), tokens, new, made["remarks"])


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
        there = _names(folder)
        if UNFINISHED in there:
            unfinished = _read_unfinished(folder / UNFINISHED)
            if unfinished["settings"] == settings:
                self.files = unfinished["files"]
            else:
                _remove(folder, unfinished["files"])
        elif there - {f".{UNFINISHED}.partial"} or folder.is_file():
            raise UserError(f"{folder} contains other files: choose another --out")

    def claim(self, *names: str) -> list[Path]:
        """Lists files before they are written, and returns their paths. Raises if an unlisted one already exists."""
        drafts = [] if in_storage(self.folder) else [_draft(name) for name in names]
        new = [name for name in [*names, *drafts] if name not in self.files]
        if taken := next(iter(_present(self.folder, new)), None):
            raise UserError(f"{taken} was not written by this preparation: choose another --out")
        if new:
            self.files += new
            replace_file(self.folder / UNFINISHED, json.dumps({"settings": self.settings, "files": self.files}))
        return [self.folder / name for name in names]


def _draft(name: str) -> str:
    """The name under which a file of this machine is written: vocabulary/a.json -> vocabulary/.a.json.partial."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/.{last}.partial".removeprefix("/")


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    """Those of the names that exist in a folder. It is listed once."""
    there = {parent: _names(folder / parent) for parent in {os.path.dirname(name) for name in names}}
    return [folder / name for name in names if os.path.basename(name) in there[os.path.dirname(name)]]


def _names(folder: Path) -> set[str]:
    """The names of the files and folders in a folder, none if it does not exist."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _tidy(folder: Path) -> None:
    """Removes what a complete folder does not need: the sections, and unfinished.json."""
    if UNFINISHED in _names(folder):
        _remove(folder, [name for name in _read_unfinished(folder / UNFINISHED)["files"] if "section-" in name])
        (folder / UNFINISHED).unlink()


def _remove(folder: Path, names: Sequence[str]) -> None:
    for path in _present(folder, names):
        if not path.is_dir():
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


def make_vocabularies(journal: Journal, build: Callable[[], Vocabularies]) -> Vocabularies:
    """Loads the vocabularies that an unfinished preparation saved, or builds and saves new ones."""
    folder = journal.folder / "vocabulary"
    if section_files(0)[0] in journal.files:  # which is listed after both vocabularies are written
        return text.load_both(folder)
    journal.claim(*(f"vocabulary/{side}.{kind}" for side in ("source", "target") for kind in ("json", "model")))
    source, target = build()
    source.save(folder, "source")
    target.save(folder, "target")
    return source, target


# ------------------------------------------------------------------------------------- sections


class Section(NamedTuple):
    """A complete section of the training text."""

    number: int
    sizes: tuple[int, ...]  # pairs per corpus of a mixture


class Encoded(NamedTuple):
    """An encoded chunk of examples."""

    ids: bytes
    lengths: np.ndarray  # int32 [n, 2]
    counts: list[int]  # pairs per example
    corpora: list[int]  # corpus index of each example


def section_files(number: int) -> tuple[str, str]:
    """The names of the ids and of the table of a section."""
    return f"section-{number:05}.ids", f"section-{number:05}.npz"


def read_section(folder: Path, number: int) -> Section | None:
    """The section that an earlier run completed, or None."""
    try:
        size = (folder / section_files(number)[0]).stat().st_size
        with _table(folder, number) as found:
            return Section(number, tuple(found["sizes"].tolist())) if int(found["bytes"]) == size else None
    except FileNotFoundError:
        return None


def _table(folder: Path, number: int) -> Any:
    return np.load(io.BytesIO((folder / section_files(number)[1]).read_bytes()))


def write_section(folder: Path, number: int, chunks: Iterable[Encoded], first: int, width: int) -> tuple[int, Section]:
    """Writes a section: first the ids, then its table. Returns (number of examples, section).

    first: the number of examples before the section. width: the number of corpora.
    """
    ids, table = (folder / name for name in section_files(number))
    lengths, counts, corpora, size = [np.zeros((0, 2), np.int32)], [], [], 0
    with writing(ids) as file:
        for chunk in chunks:
            file.write(chunk.ids)
            size += len(chunk.ids)
            lengths.append(chunk.lengths)
            counts += chunk.counts
            corpora += chunk.corpora
    example = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    sizes = np.bincount(np.repeat(np.array(corpora, np.int64), counts), minlength=width)
    content = io.BytesIO()
    np.savez(content, lengths=np.concatenate(lengths), example=example, sizes=sizes, bytes=size)
    replace_file(table, content.getvalue())
    return len(counts), Section(number, tuple(sizes.tolist()))


def _write_sections(
    journal: Journal, train: TrainExamples, vocabularies: Vocabularies, workers: int, size: int
) -> list[Section]:
    """Writes the sections, of `size` examples each, that an earlier run has not completed."""
    width = len(readers.parts(train.corpus))
    examples = iter(train)
    sections: list[Section] = []
    read = size
    with _encoder(journal.folder / "vocabulary", vocabularies, workers) as encode:
        while read == size:
            number = len(sections)
            journal.claim(*section_files(number))
            section = read_section(journal.folder, number)
            if section:
                read = sum(1 for _ in islice(examples, size))
            else:
                chunks = encode(_chunks(islice(examples, size)))
                read, section = write_section(journal.folder, number, chunks, number * size, width)
            sections.append(section)
    return sections


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while chunk := list(islice(examples, CHUNK)):
        yield chunk


def _join(journal: Journal, sections: Sequence[Section]) -> None:
    """Writes train.ids and the three tables, a section at a time."""
    folder, total = journal.folder, sum(sum(section.sizes) for section in sections)
    kinds = {"lengths": ("<i4", (total, 2)), "example": ("<i4", (total,)), "starts": ("<i8", (total,))}
    with contextlib.ExitStack() as stack:
        paths = journal.claim(prepared_corpus.IDS, *(f"{name}.npy" for name in kinds))
        ids, *tables = (stack.enter_context(writing(path)) for path in paths)
        for table, (kind, shape) in zip(tables, kinds.values()):
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(table, header)
        start = 0
        for section in sections:
            with (folder / section_files(section.number)[0]).open("rb") as part:
                shutil.copyfileobj(part, ids, 1 << 20)
            with _table(folder, section.number) as found:
                lengths, example = found["lengths"], found["example"]
            ends = start + lengths.sum(axis=1, dtype=np.int64).cumsum()
            starts = np.concatenate([[start], ends])[:-1]
            for table, array in zip(tables, (lengths, example, starts)):
                table.write(array.tobytes())
            start = int([start, *ends[-1:]][-1])


def _write_text(journal: Journal, split: str, examples: Iterator[Example]) -> None:
    (path,) = journal.claim(f"{split}.jsonl")
    with writing(path) as file:
        for example in examples:
            line = json.dumps([example.source, example.targets, example.corpus], ensure_ascii=False)
            file.write(f"{line}\n".encode())


# -------------------------------------------------------------------------------------- workers


def _id_type(vocabularies: Vocabularies) -> str:
    return "<u2" if max(vocabulary.size for vocabulary in vocabularies) <= 1 << 16 else "<i4"


def encoded(vocabularies: Vocabularies, examples: Iterator[Example]) -> Iterator[Encoded]:
    """Encodes examples in this process, a chunk at a time."""
    return map(partial(_encode, vocabularies), _chunks(examples))


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
            "it keeps the complete sections"
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
