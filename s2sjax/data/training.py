"""What a run learns from: raw text, made into pairs in memory, or a prepared folder, which is only read.

    train = read(data)                            examples or records
    vocabularies(data, train)                     built, or those of the folder
    pairs = make_pairs(data, train, source, target, seed)
    plan = make_plan(data, pairs, seed, multiple)

Batch by batch both are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from s2sjax import config
from s2sjax.data import Example, batches, mixtures, packing, parts, records, sources, text

Training = Sequence[Example] | records.Records


def read(data: config.Data) -> Training:
    if not isinstance(data.corpus, config.Prepared):
        return sources.load(data.corpus, "train")
    found = records.Records(data.corpus.folder, data.buckets)
    found.check(data)
    return found


def fingerprint(train: Iterable[Example] | records.Records) -> str:
    """SHA-256 of the examples' text."""
    if isinstance(train, records.Records):
        return train.fingerprint
    digest = hashlib.sha256()
    for example in train:
        digest.update("\t".join([example.source, *example.targets, "\n"]).encode())
    return digest.hexdigest()


def vocabularies(data: config.Data, train: Training) -> tuple[text.AnyVocabulary, text.AnyVocabulary]:
    if isinstance(train, records.Records):
        return train.vocabularies()
    return text.build_both(data, train, data.corpus.tags if isinstance(data.corpus, config.Mixture) else ())


def make_pairs(
    data: config.Data, train: Training, source: text.AnyVocabulary, target: text.AnyVocabulary, seed: int
) -> batches.AnyPairs:
    """`seed` is of the subwords that are drawn anew each epoch."""
    pairs: batches.AnyPairs
    pairs = train if isinstance(train, records.Records) else _encode(data, train, source, target, seed)
    return packing.Packed(pairs, data.buckets[-1]) if data.packing else pairs


def _encode(
    data: config.Data, examples: Sequence[Example], source: text.AnyVocabulary, target: text.AnyVocabulary, seed: int
) -> batches.Pairs:
    pairs = batches.encode(examples, source, target, data.buckets)
    of_source, of_target = (
        vocabulary.drawing(options.algorithm, options.sampling)
        if options.sampling and isinstance(vocabulary, text.Subwords)
        else None
        for options, vocabulary in ((data.source, source), (data.target, target))
    )
    if of_source or of_target:
        return batches.redrawn(pairs, examples, of_source, of_target, seed, data.buckets)
    return pairs


def target_side(pairs: batches.AnyPairs) -> batches.Ragged | batches.Drawn:
    """Every target of pairs in memory, packed or not; the configuration refuses what needs those of a folder."""
    plain = pairs.pairs if isinstance(pairs, packing.Packed) else pairs
    assert isinstance(plain, batches.Pairs)
    return plain.target


def make_parts(data: config.Data, pairs: batches.AnyPairs, size: int) -> parts.Parts | None:
    """The pairs in parts of `size` target words; of 0, none."""
    if not size:
        return None
    targets = target_side(pairs)
    assert isinstance(targets, batches.Ragged), "the configuration refuses what is drawn"
    return parts.split(targets, batches.first_bucket(pairs.lengths, data.buckets) >= 0, size)


def make_plan(
    data: config.Data, pairs: batches.AnyPairs, seed: int, multiple: int, part: np.ndarray | None = None
) -> batches.Plan:
    """`part` [N]: of each pair, where they are in parts."""
    corpus = data.corpus
    if isinstance(corpus, config.Prepared):
        corpus = records.corpus_of(corpus.folder)
    buckets = data.buckets[-1:] if data.packing else data.buckets
    settings = (pairs.lengths, buckets, data.tokens, seed, multiple)
    if not isinstance(corpus, config.Mixture):
        return batches.Plan(*settings, part)
    return mixtures.MixturePlan(*settings, sizes=pairs.sizes, weights=corpus.weights, temperature=corpus.temperature)
