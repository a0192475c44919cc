"""Text made into ids once, so that a pod of hosts only reads: see records.py for what the folder holds.

    prepare(experiment.data, "prepared/de-en", workers=8)

One process reads the text, `workers` turn chunks of it into ids, and the first writes those in the order of the text.
Nobody holds more than a few chunks. prepared.json is written last: a folder without it is not prepared. Whole shards
are kept when a preparation that was killed is run again on the same text.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.core.tokens import EOS
from s2sjax.data import Example, pairs, records, sources, text, tfds
from s2sjax.errors import UserError

CHUNK = 4096
"""examples that a worker gets at once"""
SHARD = 256 * CHUNK
"""examples whose pairs make one file of records"""
BEGUN = "begun.json"
"""what a preparation that has not ended was begun with"""

Vocabularies = tuple[text.AnyVocabulary, text.AnyVocabulary]
Progress = Callable[[str, int], None]
"""(stage, examples done)"""


class Summary(NamedTuple):
    folder: Path
    pairs: int
    tokens: int
    new: bool  # False where the folder was whole before


def prepare(
    data: config.Data,
    folder: str | Path,
    workers: int = 1,
    progress: Progress = lambda stage, done: None,
    shard: int = SHARD,
) -> Summary:
    """Prepares the corpus of an experiment into `folder`; where that was done already, nothing is done."""
    if workers < 1:
        raise UserError(f"--workers is {workers}: it must be at least 1")
    if isinstance(data.corpus, config.Prepared):
        if data.corpus.corpus is None:
            raise UserError("data.corpus.corpus is not given: name what to prepare, or `train` on the folder as it is")
        data = config.replace(data, corpus=data.corpus.corpus)
    for side in ("source", "target"):
        if getattr(data, side).sampling:
            raise UserError(
                f"data.{side}.sampling draws subwords anew each epoch, but these are ids for good: set it to 0"
            )
    data, folder = records.unspelt(data), Path(folder)
    for part in data.corpus.corpora if isinstance(data.corpus, config.Mixture) else (data.corpus,):
        if isinstance(part, config.Tfds):
            tfds.download(part)
    train = Streamed(data.corpus, progress)
    print_of_text = pairs.fingerprint(train.named("reading"))
    begun = {"version": records.VERSION, "data": print_of_text, "shard": shard, "made_with": config.to_json(data)}
    if (folder / records.MARK).is_file():
        page = records.read_page(folder)
        if page["data"] != print_of_text or not _same_ids(page["made_with"], begun["made_with"]):
            raise UserError(f"{folder} holds another corpus: give another --out, or delete it")
        return _summary(folder, new=False)
    vocabularies = _begin(folder, begun, train)
    shards = _write_shards(folder, train.named("writing"), vocabularies, workers, shard)
    _join(folder, shards)
    for split in ("dev", "test"):
        if sources.has(data.corpus, split):  # type: ignore[arg-type]
            _write_text(folder, split, sources.stream(data.corpus, split))  # type: ignore[arg-type]
    page = {
        **begun,
        "vocabulary": [vocabulary.fingerprint for vocabulary in vocabularies],
        "type": _id_type(vocabularies),
        "sizes": [int(size) for size in np.sum([each.sizes for each in shards], axis=0)],
        "shards": [[each.name, each.pairs] for each in shards],
    }
    _write(folder / records.MARK, json.dumps(page, indent=2) + "\n")
    (folder / BEGUN).unlink()
    return _summary(folder, new=True)


class Streamed:
    """The training examples of a corpus, read anew each time it is gone through."""

    def __init__(self, corpus: config.Corpus, progress: Progress, stage: str = "vocabulary"):
        self.corpus, self.progress, self.stage = corpus, progress, stage

    def named(self, stage: str) -> Streamed:
        return Streamed(self.corpus, self.progress, stage)

    def __iter__(self) -> Iterator[Example]:
        done = 0
        for done, example in enumerate(sources.stream(self.corpus, "train"), start=1):
            if done % CHUNK == 0:
                self.progress(self.stage, done)
            yield example
        if done == 0:
            raise UserError("the corpus has no train examples: correct data.corpus")
        self.progress(self.stage, done)


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """A line on the screen for each stage, with how much of it is done."""
    from rich import progress  # not for the workers

    columns = (progress.TextColumn("{task.description:10}"), progress.BarColumn(), progress.TaskProgressColumn(),
               progress.TextColumn("{task.completed:,} examples"), progress.TimeElapsedColumn())  # fmt: skip
    with progress.Progress(*columns, transient=not sys.stdout.isatty()) as shown:
        tasks: dict[str, progress.TaskID] = {}
        most = 0

        def tell(stage: str, done: int) -> None:
            nonlocal most
            if stage not in tasks:  # the first stage does not know how many there are
                tasks[stage] = shown.add_task(stage, total=most or None)
            most = max(most, done)
            shown.update(tasks[stage], completed=done, refresh=done == most)

        yield tell


def _same_ids(left: dict, right: dict) -> bool:
    """Whether two settings of `data` make the same folder: buckets and budgets are of no account."""
    return all(left[name] == right[name] for name in ("corpus", "source", "target", "shared"))


def _summary(folder: Path, new: bool) -> Summary:
    lengths = np.load(folder / "lengths.npy", mmap_mode="r")
    return Summary(folder, len(lengths), int(lengths.sum(dtype=np.int64)), new)


def _begin(folder: Path, begun: dict, train: Streamed) -> Vocabularies:
    """The vocabularies: those of an earlier start on the same text, or new ones in an empty folder."""
    if (folder / BEGUN).is_file():
        if _read_json(folder / BEGUN) == begun:
            return text.load(folder / "vocabulary", "source"), text.load(folder / "vocabulary", "target")
        shutil.rmtree(folder)
    if folder.exists() and (not folder.is_dir() or set(os.listdir(folder)) - {"vocabulary", f".{BEGUN}.partial"}):
        raise UserError(f"{folder} holds something that was not prepared: give another --out")
    tags = train.corpus.tags if isinstance(train.corpus, config.Mixture) else ()
    source, target = text.build_both(config.from_json(begun["made_with"]), train, tags)
    source.save(folder / "vocabulary", "source")
    target.save(folder / "vocabulary", "target")
    _write(folder / BEGUN, json.dumps(begun))
    return source, target


# --------------------------------------------------------------------------------------- shards


class Shard(NamedTuple):
    """One file of records, and beside it, until all are joined, the lengths and examples of its pairs: int32 [n, 3]."""

    path: Path
    sizes: tuple[int, ...]  # pairs of each corpus of a mixture

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def table(self) -> Path:
        return self.path.with_suffix(".npz")

    @property
    def pairs(self) -> int:
        return sum(self.sizes)


class Encoded(NamedTuple):
    """A chunk of examples as ids."""

    records: list[bytes]
    lengths: np.ndarray  # int32 [n, 2]
    counts: list[int]  # pairs of each example
    corpora: list[int]  # of each example


def _write_shards(folder: Path, train: Streamed, vocabularies: Vocabularies, workers: int, shard: int) -> list[Shard]:
    width = len(train.corpus.corpora) if isinstance(train.corpus, config.Mixture) else 1
    examples = iter(train)
    shards: list[Shard] = []
    with _Encoders(folder, vocabularies, workers) as encoders:
        for number in count():
            path = folder / f"train-{number:05}.array_record"
            whole = Shard(path, ()).table
            if whole.is_file():  # written last of the two, by an earlier start
                read = sum(1 for _ in islice(examples, shard))
                with np.load(whole) as table:
                    shards.append(Shard(path, tuple(table["sizes"].tolist())))
            else:
                chunks = _chunks(islice(examples, shard))
                read, made = _write_shard(path, encoders.map(chunks), number * shard, width)
                shards += [made] if made else []
            if read < shard:
                break
    return shards


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while chunk := list(islice(examples, CHUNK)):
        yield chunk


def _write_shard(path: Path, chunks: Iterator[Encoded], first: int, width: int) -> tuple[int, Shard | None]:
    """(examples, the shard): the records first, their table last, both whole or not at all."""
    from array_record.python.array_record_module import ArrayRecordWriter

    draft = path.with_suffix(".partial")
    writer, lengths, counts, corpora = None, [], [], []
    for chunk in chunks:
        # One record a group, for they are read one by one; ids hardly compress, and reading is twice as fast without.
        writer = writer or ArrayRecordWriter(str(draft), "group_size:1,uncompressed")
        for record in chunk.records:
            writer.write(record)
        lengths.append(chunk.lengths)
        counts += chunk.counts
        corpora += chunk.corpora
    if writer is None:
        return 0, None
    writer.close()
    os.replace(draft, path)
    example = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    sizes = np.bincount(np.repeat(corpora, counts), minlength=width)
    shard = Shard(path, tuple(sizes.tolist()))
    with open(draft, "wb") as file:
        np.savez(file, lengths=np.concatenate(lengths), example=example, sizes=sizes)
    os.replace(draft, shard.table)
    return len(counts), shard


def _join(folder: Path, shards: Sequence[Shard]) -> None:
    """One table of lengths and one of examples, mapped while they are filled."""
    total = sum(shard.pairs for shard in shards)
    for name, shape in (("lengths", (total, 2)), ("example", (total,))):
        draft = folder / f"{name}.partial"
        table: Any = np.lib.format.open_memmap(draft, mode="w+", dtype=np.int32, shape=shape)
        first = 0
        for shard in shards:
            with np.load(shard.table) as part:
                table[first : first + shard.pairs] = part[name]
            first += shard.pairs
        table.flush()
        del table
        os.replace(draft, folder / f"{name}.npy")
    for shard in shards:
        shard.table.unlink()


def _write_text(folder: Path, split: str, examples: Iterator[Example]) -> None:
    draft = folder / f"{split}.partial"
    with open(draft, "w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps([example.source, example.targets, example.corpus], ensure_ascii=False) + "\n")
    os.replace(draft, folder / f"{split}.jsonl")


def _write(path: Path, content: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(content, encoding="utf-8")
    os.replace(draft, path)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


# -------------------------------------------------------------------------------------- workers


def _id_type(vocabularies: Vocabularies) -> str:
    return "<u2" if max(vocabulary.size for vocabulary in vocabularies) <= 1 << 16 else "<i4"


def _encode(vocabularies: Vocabularies, chunk: Sequence[Example]) -> Encoded:
    source, target = vocabularies
    kind, made, lengths = _id_type(vocabularies), [], []
    for example in chunk:
        read = [*source.encode(example.source), EOS]
        for line in example.targets:
            written = [*target.encode(line), EOS]
            made.append(np.array(read + written, kind).tobytes())
            lengths.append((len(read), len(written)))
    counts = [len(example.targets) for example in chunk]
    return Encoded(made, np.array(lengths, np.int32).reshape(-1, 2), counts, [example.corpus for example in chunk])


class _Encoders:
    """Chunks of examples to ids, in their order: here, or in as many processes as asked for."""

    def __init__(self, folder: Path, vocabularies: Vocabularies, workers: int):
        self.vocabularies, self.workers = vocabularies, workers
        self.pool: ProcessPoolExecutor | None = None
        if workers > 1:
            # Spawned, not forked: a fork of a process that runs JAX's threads may hang.
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(workers, context, _start_worker, (folder / "vocabulary",))

    def __enter__(self) -> _Encoders:
        return self

    def __exit__(self, *_) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def map(self, chunks: Iterator[list[Example]]) -> Iterator[Encoded]:
        if self.pool is None:
            yield from (_encode(self.vocabularies, chunk) for chunk in chunks)
            return
        waiting: deque[Future] = deque()
        try:
            for chunk in chunks:
                waiting.append(self.pool.submit(_encode_here, chunk))
                if len(waiting) > 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a worker was killed, perhaps for lack of memory: run the same command again with fewer --workers; "
                "it goes on after the last whole shard"
            ) from None


_worker: dict[str, Any] = {}


def _start_worker(folder: Path) -> None:
    _worker["vocabularies"] = (text.load(folder, "source"), text.load(folder, "target"))
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:  # a pool does not notice that the one who fills it was killed
        wait([parent.sentinel])  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _encode_here(chunk: Sequence[Example]) -> Encoded:
    return _encode(_worker["vocabularies"], chunk)
