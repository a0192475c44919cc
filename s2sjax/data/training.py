"""What a run learns from: raw text, made into pairs in memory, or a prepared folder, which is only read.

    train = read(data)                            examples or records
    vocabularies(data, train)                     built, or those of the folder
    pairs = make_pairs(data, train, source, target)
    plan = make_plan(data, pairs, seed, multiple)

Batch by batch both are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from s2sjax import config
from s2sjax.data import Example, batches, mixtures, packing, records, sources, text

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
    data: config.Data, train: Training, source: text.AnyVocabulary, target: text.AnyVocabulary
) -> batches.AnyPairs:
    pairs: batches.AnyPairs
    pairs = train if isinstance(train, records.Records) else batches.encode(train, source, target, data.buckets)
    return packing.Packed(pairs, data.buckets[-1]) if data.packing else pairs


def make_plan(data: config.Data, pairs: batches.AnyPairs, seed: int, multiple: int) -> batches.Plan:
    corpus = data.corpus
    if isinstance(corpus, config.Prepared):
        corpus = records.corpus_of(corpus.folder)
    buckets = data.buckets[-1:] if data.packing else data.buckets
    settings = (pairs.lengths, buckets, data.tokens, seed, multiple)
    if not isinstance(corpus, config.Mixture):
        return batches.Plan(*settings)
    return mixtures.MixturePlan(*settings, sizes=pairs.sizes, weights=corpus.weights, temperature=corpus.temperature)
