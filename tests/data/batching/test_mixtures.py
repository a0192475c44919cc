"""Mixtures: shares of the corpora, no pair twice before all once, and tags that no vocabulary splits."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax import config
from s2sjax.config import Data, Mixture, Synthetic, Text, TextFiles
from s2sjax.core.special_tokens import EOS, SPECIALS, UNK
from s2sjax.data import pairs as textpairs
from s2sjax.data import text
from s2sjax.data.batching import batch_plan
from s2sjax.data.batching.mixtures import MixturePlan, shares
from s2sjax.data.corpora import readers
from s2sjax.data.examples import Example
from s2sjax.errors import UserError

BUCKETS = ((4, 6), (8, 8))
TAGS = ("<2de>", "<2fr>")
LINES = ["ein haus", "zwei hunde und kein mond", "drei katzen gehen heim", "ein hund bellt leise im wald"] * 5
UNITS = [Text("characters"), Text("words"), Text("subwords", size=26), Text("subwords", size=40, algorithm="bpe")]
lengths_of = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30)


@st.composite
def mixtures(draw):
    parts = [[(1, 1), *draw(lengths_of)] for _ in range(draw(st.integers(1, 3)))]
    weights = draw(st.just(()) | st.tuples(*(st.floats(0.1, 9) for _ in parts)))
    temperature = 1.0 if weights else draw(st.sampled_from([1.0, 2.0, 5.0, 100.0]))
    plan = MixturePlan(
        np.concatenate(parts), BUCKETS, draw(st.integers(1, 60)), draw(st.integers(-3, 2**40)),
        draw(st.sampled_from([1, 2])), sizes=[len(part) for part in parts], weights=weights, temperature=temperature,
    )  # fmt: skip
    return plan, np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def epochs_of(plan, count):
    """The pairs of each of the first epochs, without padding."""
    plan._find(10_000)  # computes the first steps of the epochs
    for number in range(count):
        steps = range(plan._begins[number], plan._begins[number + 1])
        rows = [plan.at(step)[1] for step in steps]
        yield [int(row) for batch in rows for row in batch if row >= 0]


# ---------------------------------------------------------------------------------- how often


def test_shares_by_weight_and_by_temperature():
    assert shares([900, 100]) == [900, 100]
    assert shares([900, 100], temperature=2.0) == [750, 250]
    assert shares([900, 100], weights=[1, 1]) == [500, 500]
    assert shares([900, 100], weights=[2, 6]) == [250, 750]
    assert shares([8, 8, 0], weights=[1, 3, 5]) == [4, 12, 0]  # an empty corpus provides nothing
    assert shares([5, 1], weights=[1e9, 1]) == [6, 1]  # never fewer than one
    assert shares([3, 3, 4], weights=[1, 1, 1]) == [4, 3, 3]  # the remainder goes to the first


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=6), st.floats(1.0, 10))
def test_shares_add_up_to_the_corpora(sizes, temperature):
    found = shares(sizes, temperature=temperature)
    assert sum(sizes) <= sum(found) <= sum(sizes) + len(sizes)
    assert shares(sizes) == sizes
    order = np.argsort(sizes, kind="stable")
    assert all(found[a] <= found[b] + 1 for a, b in pairwise(order))


@settings(deadline=None, max_examples=40)
@given(mixtures())
def test_after_any_epoch_no_two_pairs_of_a_corpus_differ_by_more_than_one(mixture):
    plan, corpus = mixture
    seen = Counter()
    for number, rows in enumerate(epochs_of(plan, 5), start=1):
        seen.update(rows)
        for i, (size, share) in enumerate(zip(plan.sizes, plan.shares)):
            fits = np.flatnonzero((corpus == i) & (plan._bucket >= 0))
            least = number * share // size
            assert {seen[int(row)] for row in fits} <= {least, least + 1}
        assert not any(plan._bucket[row] < 0 for row in seen)


@settings(deadline=None, max_examples=40)
@given(mixtures())
def test_a_batch_of_a_mixture_is_never_empty_and_keeps_its_bucket(mixture):
    plan, _ = mixture
    for step in range(20):
        bucket, rows = plan.at(step)
        assert np.any(rows >= 0) and np.all(plan._bucket[rows[rows >= 0]] == bucket)
        assert len(rows) == plan.rows[bucket] and bucket in plan.used_buckets


@settings(deadline=None, max_examples=20)
@given(mixtures(), st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_at_is_pure_in_whatever_order_it_is_asked(mixture, steps):
    plan, _ = mixture
    first = [plan.at(step) for step in steps]
    again = [plan.at(step) for step in reversed(steps)][::-1]
    assert all(b == c and np.array_equal(rows, others) for (b, rows), (c, others) in zip(first, again))


def test_at_temperature_one_an_epoch_is_all_corpora_once():
    lengths = np.ones((30, 2), int)
    plan = MixturePlan(lengths, ((1, 1),), 8, seed=0, sizes=[20, 10])
    assert all(sorted(rows) == list(range(30)) for rows in epochs_of(plan, 3))


def test_the_order_of_a_mixture_is_written_in_stone():
    """A change here changes the order of the data in every recorded experiment."""
    steps = {}
    for former in (True, False):
        plan = MixturePlan(np.ones((6, 2), int), ((1, 1),), 6, seed=0, sizes=[4, 2], weights=[1, 1])
        plan.order_by_seed = former
        steps[former] = [plan.at(step)[1].tolist() for step in range(4)]
    assert steps[True] == [[3, 1, 4], [0, 5, 5], [0, 5, 2], [4, 4, 3]]  # two epochs of 3 pairs of 0 1 2 3 and 3 of 4 5
    assert steps[False] == [[0, 5, 5], [3, 1, 4], [4, 4, 3], [0, 5, 2]]


# ---------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.unit}-{unit.algorithm}")
def test_a_tag_is_one_id_before_the_text_and_nowhere_else(tmp_path, unit):
    plain, tagged = text.build(unit, LINES), text.build(unit, [f"<2de> {line}" for line in LINES], TAGS)
    assert tagged.tags == TAGS and plain.tags == ()
    assert tagged.pieces([4, 5]) == list(TAGS)
    for line in ("ein hund", "", " ein  hund", "unbekannt"):
        for number, tag in enumerate(TAGS):
            ids = tagged.encode(f"{tag} {line}")
            assert ids == [4 + number, *tagged.encode(line)]
            assert tagged.decode([*ids, EOS]) == tagged.decode(tagged.encode(line))
    for line in ("ein <2de> hund", "<2de>ein", "hund <2fr>", "<2es> ein"):
        assert not {4, 5} & set(tagged.encode(line))
    assert not {4, 5} & set(tagged.encode("ein haus"))
    assert tagged.encode("<2de>") == [4]
    if unit.unit != "subwords":  # the same pieces, two places later
        shift = [index if index < len(SPECIALS) else index + 2 for index in plain.encode("ein hund")]
        assert tagged.encode("ein hund") == shift and UNK not in shift
    tagged.save(tmp_path, "source")
    loaded = text.load(tmp_path, "source")
    assert loaded.tags == TAGS and loaded.fingerprint == tagged.fingerprint != plain.fingerprint
    assert loaded.encode("<2fr> ein haus") == tagged.encode("<2fr> ein haus")


def test_lines_for_a_tagged_model():
    tagged, plain = (text.build(Text("words"), LINES, tags) for tags in (TAGS, ()))
    assert text.with_tag(tagged, "<2fr> ein", None, "line 1") == "<2fr> ein"
    assert text.with_tag(tagged, "ein", "<2de>", "line 1") == "<2de> ein"
    assert text.with_tag(tagged, "<2fr> ein", "<2de>", "line 1") == "<2fr> ein"  # its own tag has priority
    assert text.with_tag(tagged, " ", None, "line 1") == " "
    assert text.with_tag(plain, "ein", None, "line 1") == "ein"
    for vocabulary, line, tag, words in (
        (
            tagged,
            "ein",
            None,
            "line 3 does not begin with a tag: begin it with one of <2de>, <2fr> and a space, or set --tag",
        ),
        (tagged, "ein", "<2es>", "unknown tag '<2es>': choose from <2de>, <2fr>"),
        (plain, "ein", "<2es>", "unknown tag '<2es>': this model has no tags"),
    ):
        with pytest.raises(UserError) as caught:
            text.with_tag(vocabulary, line, tag, "line 3")
        assert str(caught.value) == words


def test_the_examples_of_a_mixture_carry_their_tags_and_their_corpus():
    copy, sort = (Synthetic(task, train=3, dev=2 if task == "sort" else 0, test=0) for task in ("copy", "sort"))
    mixed = Mixture((copy, sort), tags=TAGS)
    plain = [readers.load(corpus, "train") for corpus in (copy, sort)]
    assert readers.load(mixed, "train") == [
        Example(f"{TAGS[i]} {example.source}", example.targets, i) for i in range(2) for example in plain[i]
    ]
    assert {example.corpus for example in readers.load(mixed, "dev")} == {1}  # the first has no dev examples
    assert readers.has(mixed, "dev") and not readers.has(mixed, "test")
    assert readers.labels(mixed) == ["corpus 1 <2de>", "corpus 2 <2fr>"]
    assert readers.labels(Mixture((copy,))) == ["corpus 1"] and readers.labels(copy) == []


def test_a_mixture_trains_by_the_plan_of_its_shares():
    copy, sort = (Synthetic(task, train=size, length=5, alphabet=3) for task, size in (("copy", 40), ("sort", 8)))
    data = Data(Mixture((copy, sort), weights=(1, 1), tags=TAGS), buckets=((8, 8),), batch_tokens=64)
    train = textpairs.read(data)
    source, target = textpairs.vocabularies(data, train)
    pairs = textpairs.make_columns(data, train, source, target, seed=0)
    plan = textpairs.make_plan(data, pairs, seed=0, multiple=1)
    assert pairs.sizes == (40, 8) and plan.shares == [24, 24] and target.tags == ()
    tags = Counter()
    for step in range(2 * plan.steps_per_epoch):
        tags.update(batch_plan.make_batch(pairs, plan, step)["source"][:, 0].tolist())
    assert tags[4] == tags[5] == 48


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Mixture(), "data.corpus.corpora is empty"),
        (
            lambda: Mixture((Synthetic(),), weights=(1, 2)),
            "data.corpus.weights has 2 entries for 1 corpora: give one for each",
        ),
        (lambda: Mixture((Synthetic(),), tags=TAGS), "data.corpus.tags has 2 entries for 1 corpora"),
        (lambda: Mixture((Synthetic(),), weights=(0,)), "data.corpus.weights is (0,): all weights must be above 0"),
        (lambda: Mixture((Synthetic(),), temperature=0.0), "data.corpus.temperature is 0.0: it must be above 0"),
        (
            lambda: Mixture((Synthetic(),), weights=(1,), temperature=2.0),
            "data.corpus has both weights and a temperature",
        ),
        (lambda: Mixture((Synthetic(),), tags=("to de",)), "data.corpus.tags: 'to de' is not a valid tag"),
        (lambda: Mixture((Synthetic(),), tags=("<eos>",)), "data.corpus.tags: '<eos>' is not a valid tag"),
        (
            lambda: Mixture((Mixture((Synthetic(),)),)),
            "data.corpus.corpora contains a Mixture: a mixture accepts only",
        ),
        (lambda: config.Prepared(), "data.corpus.folder is empty"),
        (lambda: config.Tfds(name=""), "data.corpus.name is empty: set it"),
        (lambda: Text(sample=0), "sample of a vocabulary is 0: it must be at least 1 line"),
    ],
)
def test_what_cannot_be_mixed_is_refused(build, message):
    with pytest.raises(UserError) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_a_sample_is_all_or_an_even_draw():
    lines = [str(n) for n in range(2000)]
    assert text.sample(lines, 2000) == lines and text.sample(iter(lines), 3000) == lines
    some = text.sample(iter(lines), 200)
    assert some == text.sample(lines, 200) and len(set(some)) == 200
    assert 850 < np.mean([int(line) for line in some]) < 1150


def test_mixtures_survive_json():
    mixed = Mixture((Synthetic(), TextFiles(train=("a",)), config.Tfds()), temperature=5.0, tags=("<a>", "<b>", "<c>"))
    for corpus in (mixed, config.Prepared("x", mixed), config.Prepared("x")):
        assert config.from_json(config.to_json(corpus)) == corpus
