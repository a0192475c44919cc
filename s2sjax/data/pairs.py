"""Text pairs as columns, from raw text that is encoded in memory, or from a prepared folder.

    train = read(data)                            examples or records
    vocabularies(data, train)                     built, or loaded from the folder
    pairs = make_columns(data, train, source, target, seed)
    plan = make_plan(data, pairs, seed, multiple)

Both give the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.data import data_notes, text
from s2sjax.data.assets import sha256
from s2sjax.data.batching import batch_plan, mixtures, packing, target_subsets
from s2sjax.data.batching.columns import AnyColumns, Buckets, Columns, Drawn, Ragged, first_bucket
from s2sjax.data.corpora import prepared_corpus, readers
from s2sjax.data.examples import Example
from s2sjax.data.text.subword_sampling import Draw

Training = Sequence[Example] | prepared_corpus.Records


def read(data: config.Data) -> Training:
    if not isinstance(data.corpus, config.Prepared):
        return readers.load(data.corpus, "train")
    found = prepared_corpus.Records(data.corpus.folder)
    found.check(data)
    return found


def fingerprint(train: Iterable[Example] | prepared_corpus.Records) -> str:
    """The SHA-256 of the examples' text."""
    if isinstance(train, prepared_corpus.Records):
        return train.fingerprint
    return sha256("\t".join([example.source, *example.targets, "\n"]).encode() for example in train)


def remarks_on(data: config.Data, train: Training) -> list[str]:
    """Notes on the training text (data_notes.py). A prepared folder stores those on its corpus."""
    return train.remarks if isinstance(train, prepared_corpus.Records) else data_notes.notes(data.corpus, train)


def vocabularies(data: config.Data, train: Training) -> tuple[text.AnyVocabulary, text.AnyVocabulary]:
    if isinstance(train, prepared_corpus.Records):
        return train.vocabularies()
    return text.build_both(data, train)


def check_vocabularies(
    data: config.Data, train: Training, source: text.AnyVocabulary, target: text.AnyVocabulary
) -> None:
    """Raises a UserError if vocabularies of another run do not fit the settings or the data."""
    if isinstance(train, prepared_corpus.Records):
        same = [one.fingerprint for one in train.vocabularies()] == [source.fingerprint, target.fingerprint]
        require(same, f"{train.folder} was prepared with other vocabularies: use the raw corpus, or prepare it again")
    for side, vocabulary in (("source", source), ("target", target)):
        # A pretrained tokenizer normalizes text itself: the setting has no effect.
        for name in ("unit",) if vocabulary.unit == "pretrained" else ("unit", "normalize"):
            wanted, there = getattr(getattr(data, side), name), getattr(vocabulary, name)
            require(
                there == wanted,
                f"the {side} vocabulary of --init-assets has {name} {there}, but data.{side}.{name} is {wanted}: "
                "make them equal",
            )
    # The sides of a pretrained model may split text differently and share the ids, and so the embeddings.
    require(
        not data.shared or source.all_pieces == target.all_pieces,
        "data.shared is set, but the vocabularies of --init-assets differ: unset it",
    )
    for tag in data.corpus.tags if isinstance(data.corpus, config.Mixture) else ():
        require(tag in source.tags, f"the source vocabulary of --init-assets has no tag {tag}: leave out --init-assets")


# ------------------------------------------------------------------------------------- columns


def make_columns(
    data: config.Data, train: Training, source: text.AnyVocabulary, target: text.AnyVocabulary, seed: int
) -> AnyColumns:
    """The training pairs as columns, packed if data.packing is set; `seed` is the seed of subword sampling."""
    pairs: AnyColumns
    if isinstance(train, prepared_corpus.Records):
        pairs = train
    else:
        draws = _sampler(data.source, source), _sampler(data.target, target)
        pairs = with_sampled_subwords(encode(train, source, target), train, *draws, seed=seed, buckets=data.buckets)
    return packing.Packed(pairs, data.buckets[-1]) if data.packing else pairs


def _sampler(options: config.Text, vocabulary: text.AnyVocabulary) -> Draw | None:
    if options.sampling and isinstance(vocabulary, text.Subwords):
        return vocabulary.sampler(options.algorithm, options.sampling)
    return None


def encode(
    examples: Sequence[Example], source_vocabulary: text.AnyVocabulary, target_vocabulary: text.AnyVocabulary
) -> Columns:
    """Encodes every (source, target) pair, each side with <eos>; an example has one row per target."""
    encoded = [source_vocabulary.encode(example.source) for example in examples]
    counts = [len(example.targets) for example in examples]
    index = np.repeat(np.arange(len(examples), dtype=np.int32), counts)
    source = Ragged.of_ids([encoded[n] for n in index])
    target = Ragged.of_ids([target_vocabulary.encode(line) for example in examples for line in example.targets])
    sizes = np.bincount([example.corpus for example in examples], counts).astype(int)
    return Columns({"source": source, "target": target}, {}, index, tuple(sizes.tolist()))


def with_sampled_subwords(
    pairs: Columns, examples: Sequence[Example], source: Draw | None, target: Draw | None, *,
    seed: int, buckets: Buckets,
) -> Columns:  # fmt: skip
    """Replaces each side that has a `Draw` by a column with new subwords in every epoch."""
    if source is None and target is None:
        return pairs
    texts = (
        [examples[index].source for index in pairs.example],
        [line for example in examples for line in example.targets],
    )
    sides = {
        name: Drawn(plain, lines, draw, f"{seed}/{name}", plain.lengths)
        if draw and isinstance(plain, Ragged)
        else plain
        for (name, plain), draw, lines in zip(pairs.ragged.items(), (source, target), texts)
    }
    first = [side.first_lengths() if isinstance(side, Drawn) else side.lengths for side in sides.values()]
    fits = first_bucket(np.stack(first, axis=1), buckets) >= 0
    planned = {
        name: side._replace(lengths=np.where(fits, now, side.lengths)) if isinstance(side, Drawn) else side
        for (name, side), now in zip(sides.items(), first)
    }
    return pairs._replace(ragged=planned)


def target_column(pairs: AnyColumns) -> Ragged | Drawn:
    """The targets of pairs in memory, packed or not. Settings checks exclude a prepared folder here."""
    plain = pairs.pairs if isinstance(pairs, packing.Packed) else pairs
    assert isinstance(plain, Columns)
    return plain.ragged["target"]


def target_counts(pairs: AnyColumns, size: int) -> np.ndarray:
    """The frequency of each of `size` target ids, including <eos>: int64 [V]."""
    targets = target_column(pairs)
    return np.bincount((targets.plain if isinstance(targets, Drawn) else targets).flat, minlength=size)


def make_parts(data: config.Data, pairs: AnyColumns, size: int) -> target_subsets.Parts | None:
    """Splits the pairs into parts of `size` target words; None if `size` is 0."""
    if not size:
        return None
    targets = target_column(pairs)
    assert isinstance(targets, Ragged), "settings checks exclude subword sampling here"
    return target_subsets.split(targets, first_bucket(pairs.lengths, data.buckets) >= 0, size)


def make_plan(
    data: config.Data, pairs: AnyColumns, seed: int, multiple: int, part: np.ndarray | None = None
) -> batch_plan.Plan:
    """The plan of the batches. `part` [N] is the part of each pair if the pairs are split into parts."""
    corpus = data.corpus
    if isinstance(corpus, config.Prepared):
        corpus = prepared_corpus.corpus_of(corpus.folder)
    buckets = data.buckets[-1:] if data.packing else data.buckets
    settings = (pairs.lengths, buckets, data.batch_tokens, seed, multiple)
    if not isinstance(corpus, config.Mixture):
        return batch_plan.Plan(*settings, part=part)
    return mixtures.MixturePlan(*settings, sizes=pairs.sizes, weights=corpus.weights, temperature=corpus.temperature)
