"""Prepares a corpus with Apache Beam, on one machine or on many. The folder is that of prepare.py, byte for byte.

    prepare(experiment.data, "gs://bucket/de-en", ["--runner", "DataflowRunner", "--project", "mine"])

The training text is cut into ranges of lines, and each stage is a function of one of them:

    counting      the line ends in the blocks of a text file, so that a range is found without reading what precedes it
    reading       notes, examples that dev and test share with train, counts of characters or words
    sampling      the lines that subwords are learned from: those that data.text.sample keeps
    writing       the ids of a section

The main process merges the results in the order of the text, learns the subwords, and joins the sections. The
fingerprint is a hash of the whole text in its order: one worker computes it while the others read.

Text that cannot be cut, that of .gz files and of every corpus but text files, is first written to OUT.beam by the main
process.
"""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, compress, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.data import pairs, text
from s2sjax.data import prepare as local
from s2sjax.data.beam_runner import Beam
from s2sjax.data.corpora import readers, text_files, tfds
from s2sjax.data.corpora.text_files import BEGIN, Place
from s2sjax.data.data_notes import Notes, Overlaps
from s2sjax.data.examples import Example
from s2sjax.files import as_path, writing

BLOCK = 1 << 24
"""number of bytes of text whose line ends are counted together"""
BLOCKS = 64
"""number of blocks per task of a worker"""


class Part(NamedTuple):
    """The training text of one corpus: its text files, or one file of examples as JSON."""

    corpus: config.TextFiles | None
    files: tuple[str, ...]


class Job(NamedTuple):
    """What the workers know."""

    data: config.Data
    parts: tuple[Part, ...]
    folder: str
    """where dev and test are stored"""


class Lines(NamedTuple):
    """A range of lines of one corpus."""

    part: int
    places: tuple[Place, ...]
    size: int


class Read(NamedTuple):
    """What was read in a range of lines."""

    totals: tuple[int, int]  # sources, targets
    notes: Notes
    in_train: set[bytes]
    counts: list[Counter[str]]  # of each vocabulary


def prepare(
    data: config.Data, folder: str | Path, options: Sequence[str] = (), workers: int = 1,
    progress: local.Progress = lambda stage, done: None, section: int = local.SECTION,
) -> local.Summary:  # fmt: skip
    """Prepares the corpus of an experiment into `folder`. Does nothing if that folder is already complete.

    options: Beam's own. workers: the number of processes of the DirectRunner.
    """
    require(workers >= 1, f"--workers is {workers}: it must be at least 1")
    data, folder = local.checked(data), as_path(folder)
    beside = folder.absolute()
    with Beam(options, workers, beside.with_name(f"{beside.name}.beam")) as beam:
        job, ranges = _cut(beam, data, section)
        notes, overlaps = Notes(data.corpus), _overlaps(job)
        progress("reading", 0)
        first, others = partial(_fingerprint, job, ranges), [partial(_read, job, lines) for lines in ranges]
        found = beam.each("reading", [first, *others])
        fingerprint = next(found)
        totals: list[tuple[int, int]] = []
        counts: list[Counter[str]] = [Counter() for _ in _to_learn(data)]
        for each in found:
            totals.append(each.totals)
            notes.add(each.notes)
            overlaps.in_train.update(each.in_train)
            for count, more in zip(counts, each.counts):
                count.update(more)
        examples = sum(sources for sources, _ in totals)
        require(examples > 0, "the corpus has no train examples: check data.corpus")
        progress("reading", examples)
        journal = local.begin(data, folder, fingerprint, section)
        if journal is None:
            return local.summary(folder, new=False)
        progress("vocabulary", 0)
        vocabularies = local.make_vocabularies(journal, partial(_learn, beam, job, ranges, totals, counts))
        progress("vocabulary", examples)
        sections = _write(beam, job, journal, ranges, [sources for sources, _ in totals], section)
        progress("writing", examples)
        return local.finish(journal, data.corpus, vocabularies, sections, [*notes.lines(), *overlaps.lines()])


# ------------------------------------------------------------------------------- ranges of lines


def _cut(beam: Beam, data: config.Data, section: int) -> tuple[Job, list[Lines]]:
    """Cuts the training text into ranges of at most `section` lines, and stores dev and test for the workers."""
    held_out = {split: list(readers.stream(data.corpus, split)) for split in local.held_out(data.corpus)}
    (beam.folder / "held-out.pickle").write_bytes(pickle.dumps(held_out))
    found = [_part(beam, number, corpus) for number, corpus in enumerate(readers.parts(data.corpus))]
    ends = _line_ends(beam, found)
    ranges = []
    for number, part in enumerate(found):
        counts = [_count(path, ends[path]) for path in part.files]
        if len(counts) == 2:
            text_files.require_parallel(part.files, counts)
        for line in range(0, counts[0], section):
            places = tuple(_place(ends[path], line) for path in part.files)
            ranges.append(Lines(number, places, min(section, counts[0] - line)))
    # Workers may be unable to import the class of a corpus, and have no use for one that is not of text files.
    known = tuple(part.corpus or config.Synthetic() for part in found)
    corpus = config.replace(data.corpus, corpora=known) if isinstance(data.corpus, config.Mixture) else known[0]
    return Job(config.replace(data, corpus=corpus), tuple(found), str(beam.folder)), ranges


def _part(beam: Beam, number: int, corpus: config.Corpus) -> Part:
    if isinstance(corpus, config.TextFiles) and not any(path.endswith(".gz") for path in corpus.train):
        next(readers.train_lines(corpus, (BEGIN, BEGIN), 1), None)  # refuses files that are missing or empty
        return Part(corpus, tuple(map(os.path.expanduser, corpus.train)))
    if isinstance(corpus, config.Tfds):
        tfds.download(corpus)
    path = beam.folder / f"corpus-{number:05}.jsonl"
    with writing(path) as file:
        for example in readers.stream(corpus, "train"):
            file.write(f"{json.dumps(example)}\n".encode())
    return Part(None, (str(path),))


def _line_ends(beam: Beam, found: Iterable[Part]) -> dict[str, np.ndarray]:
    """The number of lines that end before each block of each file, and at last that of the whole file."""
    sizes = {path: as_path(path).stat().st_size for part in found for path in part.files}
    step = BLOCK * BLOCKS
    spans = [(path, first, min(first + step, size)) for path, size in sizes.items() for first in range(0, size, step)]
    tasks = [partial(_count_ends, *span, BLOCK) for span in spans]
    is_small = max(sizes.values()) <= BLOCK  # less work than to start the workers
    counted = (task() for task in tasks) if is_small else beam.each("counting", tasks)
    counts: dict[str, list[int]] = {path: [0] for path in sizes}
    for (path, *_), more in zip(spans, counted):
        counts[path] += more
    return {path: np.cumsum(each) for path, each in counts.items()}


def _count_ends(path: str, first: int, last: int, size: int) -> list[int]:
    """The number of line ends in each block of `size` bytes, from one byte to another."""
    with as_path(path).open("rb") as file:
        file.seek(first)
        return [file.read(min(size, last - byte)).count(b"\n") for byte in range(first, last, size)]


def _count(path: str, ends: np.ndarray) -> int:
    """The number of lines of a file, the last of which may have no end."""
    size = as_path(path).stat().st_size
    with as_path(path).open("rb") as file:
        file.seek(max(size - 1, 0))
        return int(ends[-1]) + (file.read(1) not in (b"", b"\n"))


def _place(ends: np.ndarray, line: int) -> Place:
    """The place of a line: the last block with the end of a line before it."""
    block = max(int(np.searchsorted(ends, line)) - 1, 0)
    return Place(line, block * BLOCK, int(ends[block]))


def _examples(job: Job, lines: Lines) -> Iterator[Example]:
    """Yields the training examples in a range of lines."""
    part = job.parts[lines.part]
    if part.corpus:
        found = readers.train_lines(part.corpus, lines.places, lines.size)
    else:
        stored = islice(text_files.lines(part.files[0], "data.corpus", lines.places[0]), lines.size)
        found = (Example(source, tuple(targets), corpus) for source, targets, corpus in map(json.loads, stored))
    corpus = job.data.corpus
    return readers.in_mixture(corpus, lines.part, found) if isinstance(corpus, config.Mixture) else found


# --------------------------------------------------------------------------------------- reading


def _overlaps(job: Job) -> Overlaps:
    return Overlaps(pickle.loads((as_path(job.folder) / "held-out.pickle").read_bytes()))


def _fingerprint(job: Job, ranges: Sequence[Lines]) -> str:
    return pairs.fingerprint(chain.from_iterable(_examples(job, lines) for lines in ranges))


def _read(job: Job, lines: Lines) -> Read:
    notes, overlaps = Notes(job.data.corpus), _overlaps(job)
    learned = _to_learn(job.data)
    counts: list[Counter[str]] = [Counter() for _ in learned]
    totals = [0, 0]
    examples = overlaps.watch(notes.watch(_examples(job, lines)))
    while chunk := list(islice(examples, local.CHUNK)):
        both = [list(_texts(chunk, side)) for side in range(2)]
        totals = [total + len(more) for total, more in zip(totals, both)]
        for count, (options, tags, sides) in zip(counts, learned):
            if options.unit in ("characters", "words"):
                count.update(text.count_pieces(options, chain.from_iterable(both[side] for side in sides), tags))
    return Read((totals[0], totals[1]), notes, overlaps.in_train, counts)


def _texts(examples: Iterable[Example], side: int) -> Iterator[str]:
    """The sources (side 0) or the targets (side 1) of examples."""
    return (line for example in examples for line in (example.targets if side else (example.source,)))


# ----------------------------------------------------------------------------------- vocabularies


def _to_learn(data: config.Data) -> list[tuple[config.Text, tuple[str, ...], tuple[int, ...]]]:
    """The settings, tags and sides of each vocabulary, as in `text.build_both`."""
    tags = data.corpus.tags if isinstance(data.corpus, config.Mixture) else ()
    return [(data.source, tags, (0, 1))] if data.shared else [(data.source, tags, (0,)), (data.target, (), (1,))]


def _learn(
    beam: Beam, job: Job, ranges: Sequence[Lines], totals: Sequence[tuple[int, int]], counts: Sequence[Counter[str]]
) -> local.Vocabularies:
    """Builds the vocabularies, from the counts or from a sample of the lines."""
    made: list[text.AnyVocabulary] = []
    for (options, tags, sides), count in zip(_to_learn(job.data), counts):
        if options.unit in ("characters", "words"):
            made.append(text.build_from_counts(options, count, tags))
        else:
            lines = _sampled(beam, job, ranges, totals, options.sample, sides) if options.unit == "subwords" else ()
            made.append(text.build(options, lines, tags))
    return made[0], made[-1]


def _sampled(
    beam: Beam, job: Job, ranges: Sequence[Lines], totals: Sequence[tuple[int, int]], size: int, sides: Sequence[int]
) -> list[str]:
    """The lines that `text.sample` keeps of all sources, of all targets, or of the ones and then the others."""
    ends = np.cumsum([0, *(each[side] for side in sides for each in totals)])
    places = text.sampled_places(int(ends[-1]), size)
    order = np.argsort(places)
    cuts = np.searchsorted(places[order], ends)
    tasks = [
        partial(_sample, job, lines, side, places[order[cuts[n] : cuts[n + 1]]] - ends[n])
        for n, (side, lines) in enumerate(product(sides, ranges))
    ]
    kept = [""] * len(places)
    for place, line in zip(order, chain.from_iterable(beam.each("sampling", tasks))):
        kept[place] = line
    return kept


def _sample(job: Job, lines: Lines, side: int, places: np.ndarray) -> list[str]:
    """The texts at some places in a range of lines, in ascending order."""
    is_kept = np.zeros(places[-1] + 1 if len(places) else 0, bool)
    is_kept[places] = True
    return list(compress(_texts(_examples(job, lines), side), is_kept))


# -------------------------------------------------------------------------------------- sections


def _write(
    beam: Beam, job: Job, journal: local.Journal, ranges: Sequence[Lines], counts: Sequence[int], size: int
) -> list[local.Section]:
    """Writes the sections, of `size` examples each, that an earlier run has not completed.

    counts: the number of examples in each range of lines.
    """
    ends = [0, *accumulate(counts)]
    numbers = range(-(-ends[-1] // size))
    journal.claim(*chain.from_iterable(map(local.section_files, numbers)))
    found = {number: local.read_section(journal.folder, number) for number in numbers}
    missing = [number for number, section in found.items() if section is None]
    tasks = []
    for number in missing:
        first, last = number * size, (number + 1) * size
        pieces = [
            (lines, max(first - start, 0), min(last, end) - start)
            for lines, start, end in zip(ranges, ends, ends[1:])
            if start < last and end > first
        ]
        tasks.append(partial(_write_section, job, str(journal.folder.absolute()), number, pieces, first))
    if tasks:
        found.update(zip(missing, beam.each("writing", tasks)))
    return [section for section in found.values() if section]


def _write_section(
    job: Job, folder: str, number: int, pieces: Sequence[tuple[Lines, int, int]], first: int
) -> local.Section:
    """Writes the section whose examples are those from one number to another in each range of lines."""
    examples = chain.from_iterable(islice(_examples(job, lines), start, end) for lines, start, end in pieces)
    vocabularies = text.load_both(as_path(folder) / "vocabulary")
    chunks = local.encoded(vocabularies, examples)
    return local.write_section(as_path(folder), number, chunks, first, len(job.parts))[1]
