"""Random segmentation: without randomness that of SentencePiece, with it any segmentation of the same text."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import zoo

from s2sjax.config import Text
from s2sjax.data.batching.batch_plan import Plan, make_batch, stream
from s2sjax.data.batching.columns import Drawn
from s2sjax.data.examples import Example
from s2sjax.data.pairs import encode, with_sampled_subwords
from s2sjax.data.text import subword_sampling
from s2sjax.data.text.vocabulary import Subwords
from s2sjax.errors import UserError

WORDS = [
    "low",
    "lower",
    "lowest",
    "newer",
    "newest",
    "wider",
    "widest",
    "show",
    "shower",
    "showers",
    "slow",
    "slower",
    "new",
    "wide",
]
BUCKETS = ((10, 10), (20, 20), (40, 40))


def lines(count, seed=0, words=WORDS):
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(count)]


@pytest.fixture(scope="module")
def vocabularies():
    return {kind: Subwords.train(lines(400), 32, kind) for kind in ("bpe", "unigram")}


def odd_texts(seed=1):
    """Random letters, unseen words, runs of blanks, blanks at the ends, and unknown characters."""
    rng = random.Random(seed)
    return ["", " ", "  low", "low  ", "日本 low日", *(
        "".join(rng.choices("lowerstnid  é", k=rng.randint(1, 30))) for _ in range(300)
    )]  # fmt: skip


@pytest.mark.parametrize("kind, certain", [("bpe", 0.0), ("unigram", 100.0)])
def test_without_randomness_it_is_what_sentencepiece_does(vocabularies, kind, certain):
    """alpha 100 leaves the second-best segmentation a probability of e^-100 times their difference."""
    vocabulary = vocabularies[kind]
    draw = vocabulary.sampler(kind, certain)
    for text in lines(100, seed=2) + odd_texts():
        assert draw(text, random.Random(0)) == vocabulary.encode(text), text


@pytest.mark.parametrize("kind, strength", [("bpe", 0.3), ("unigram", 0.2)])
def test_a_draw_reads_back_as_its_text_and_depends_on_its_generator_alone(vocabularies, kind, strength):
    vocabulary = vocabularies[kind]
    draw = vocabulary.sampler(kind, strength)
    found = Counter()
    for number, text in enumerate(lines(60, seed=3)):
        ids = draw(text, random.Random(number))
        assert ids == draw(text, random.Random(number)) and vocabulary.decode(ids) == text
        found[len(ids) > len(vocabulary.encode(text))] += 1
    assert found[True] > 10


def test_dropout_of_every_merge_leaves_characters(vocabularies):
    vocabulary = vocabularies["bpe"]
    ids = vocabulary.sampler("bpe", 1.0)("low new", random.Random(0))
    assert vocabulary.pieces(ids) == list("▁low▁new")


@pytest.mark.parametrize("dropout", [0.3, 0.7])
def test_a_word_is_merged_as_bpe_dropout_is_defined(dropout):
    """Every outcome of "abab", counted; its probability sums over all subsets of merges that may be dropped."""
    ranks = {"ab": 0, "ba": 1, "aba": 2, "bab": 3, "abab": 4}
    pieces = {"a": (4, -9.0), "b": (5, -9.0)} | {piece: (6 + rank, -float(rank)) for piece, rank in ranks.items()}

    def outcomes(symbols: tuple[str, ...]) -> Counter:
        joined = [(symbols[n] + symbols[n + 1], n) for n in range(len(symbols) - 1)]
        merges = sorted((ranks[piece], n) for piece, n in joined if piece in ranks)
        shares: Counter = Counter()
        for kept in itertools.product((False, True), repeat=len(merges)):
            probability = math.prod(1 - dropout if keep else dropout for keep in kept)
            left = [n for (_, n), keep in zip(merges, kept) if keep]
            if not left:
                shares[symbols] += probability
                continue
            n = left[0]
            following = outcomes((*symbols[:n], symbols[n] + symbols[n + 1], *symbols[n + 2 :]))
            shares.update({end: probability * share for end, share in following.items()})
        return shares

    expected = outcomes(tuple("abab"))
    assert sum(expected.values()) == pytest.approx(1)
    segment, rng = subword_sampling.bpe_dropout(pieces, dropout), random.Random(0)
    found = Counter(tuple(segment("abab", rng)) for _ in range(8000))
    assert set(found) <= set(expected)
    zoo.check_shares([found[way] for way in expected], np.array(list(expected.values())))


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_a_segmentation_is_drawn_by_its_probability(alpha):
    """All three of "aba" over a, b, ab, ba, counted."""
    scores = {"a": -1.0, "b": -2.0, "ab": -1.5, "ba": -2.5}
    segment = subword_sampling.unigram_sampling({piece: (4, score) for piece, score in scores.items()}, alpha)
    ways = [("a", "b", "a"), ("ab", "a"), ("a", "ba")]
    weights = np.array([math.exp(alpha * sum(scores[piece] for piece in way)) for way in ways])
    rng = random.Random(1)
    found = Counter(tuple(segment("aba", rng)) for _ in range(6000))
    assert set(found) == set(ways)
    zoo.check_shares([found[way] for way in ways], weights / weights.sum())


# -------------------------------------------------------------------------- as batches of training


def drawn_pairs(vocabulary, kind, strength, seed=5, count=80):
    examples = [Example(text, (text,)) for text in lines(count, seed=4)]
    plain = encode(examples, vocabulary, vocabulary)
    return plain, with_sampled_subwords(
        plain, examples, vocabulary.sampler(kind, strength), None, seed=seed, buckets=BUCKETS
    )


@pytest.mark.parametrize("kind, strength", [("bpe", 1.0), ("unigram", 0.001)])
def test_a_tag_is_never_cut_and_never_drawn_inside_of_a_text(kind, strength):
    vocabulary = Subwords.train(lines(400), 32, kind, tags=["<2de>"])
    draw = vocabulary.sampler(kind, strength)
    for seed in range(20):
        ids = draw("<2de> slow <2de> low", random.Random(seed))
        assert ids[0] == 4 and 4 not in ids[1:]
        assert vocabulary.decode(ids).startswith("slow ")


@pytest.mark.parametrize("kind, strength", [("bpe", 0.2), ("unigram", 0.3)])
def test_the_batch_of_a_step_is_drawn_by_seed_epoch_and_pair_alone(vocabularies, kind, strength):
    plain, pairs = drawn_pairs(vocabularies[kind], kind, strength)
    assert isinstance(pairs.ragged["source"], Drawn) and pairs.ragged["target"] is plain.ragged["target"]
    plan = Plan(pairs.lengths, BUCKETS, 200, seed=5)
    last = 2 * plan.steps_per_epoch
    whole = dict(stream(pairs, plan, 0, last))
    again = dict(stream(drawn_pairs(vocabularies[kind], kind, strength)[1], plan, last - 3, last, prefetch=0))
    for step, batch in again.items():
        assert np.array_equal(batch["source"], whole[step]["source"])
    other = make_batch(drawn_pairs(vocabularies[kind], kind, strength, seed=6)[1], plan, 0)
    assert not np.array_equal(other["source"], whole[0]["source"])

    by_epoch = [{}, {}]
    for step, batch in whole.items():
        for example, source in zip(batch["example"].tolist(), batch["source"], strict=True):
            if example >= 0:
                by_epoch[plan.epoch(step)][example] = source.tolist()
                assert vocabularies[kind].decode(source) == lines(80, seed=4)[example]
    assert len(by_epoch[0]) == len(by_epoch[1]) == 80
    differ = sum(by_epoch[0][n][: len(s)] != s[: len(by_epoch[0][n])] for n, s in by_epoch[1].items())
    assert differ > 10


def test_a_draw_that_fits_no_bucket_comes_plain(vocabularies):
    """A text has far more characters than subwords, but no row is truncated or dropped."""
    vocabulary = vocabularies["bpe"]
    examples = [Example("shower newest", ("low",)), Example("low", ("low",))]
    plain = encode(examples, vocabulary, vocabulary)
    assert plain.lengths.max() <= 8
    pairs = with_sampled_subwords(plain, examples, vocabulary.sampler("bpe", 1.0), None, seed=0, buckets=((8, 8),))
    assert pairs.lengths.tolist() == [[plain.lengths[0, 0], plain.lengths[0, 1]], [5, plain.lengths[1, 1]]]
    batch = make_batch(pairs, Plan(pairs.lengths, ((8, 8),), 32, seed=0), 0)
    rows = {example: source for example, source in zip(batch["example"].tolist(), batch["source"].tolist())}
    assert rows[0] == plain.ragged["source"].padded(np.array([0]), 8)[0].tolist()
    assert vocabulary.pieces(rows[1][:4]) == list("▁low")


def test_sampling_is_refused_where_there_is_nothing_to_sample():
    with pytest.raises(UserError, match=r"sampling of a text in words is .*: only subwords can be sampled"):
        Text("words", sampling=0.1)
    with pytest.raises(UserError, match="for bpe it must be from 0 to 1"):
        Text("subwords", algorithm="bpe", sampling=1.5)
