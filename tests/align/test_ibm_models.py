"""Expectation maximization equals the enumeration of all alignments of tiny texts."""

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from s2sjax import align
from s2sjax.align import bitext, ibm_models
from s2sjax.errors import UserError

TEXT = [
    ("a b c", "x y"),
    ("b a b", "y x z"),
    ("c", "z z x"),
    ("a b", "x"),
    ("b c", "y w"),
    ("a c b", "w y x"),
    ("", "x y"),
    ("a a", ""),
    ("b", "y"),
]


def random_table(d: bitext.Direction, seed: int = 0) -> ibm_models.Table:
    rng = np.random.default_rng(seed)
    return ibm_models.normalize(ibm_models.Table(rng.random(len(d.generators)), rng.random(d.types)), d)


def random_positions(name: str, d: bitext.Direction, seed: int = 1) -> ibm_models.Positions:
    rng = np.random.default_rng(seed)
    if name == "ibm1":
        return ibm_models.Uniform()
    if name == "ibm2":
        tables = ibm_models.Absolute.uniform(d.groups).tables
        drawn = {n: rng.random(each.table.shape) for n, each in tables.items()}
        return ibm_models.Absolute(
            {n: each._replace(table=drawn[n] / drawn[n].sum(1, keepdims=True)) for n, each in tables.items()}
        )
    jumps = ibm_models.Jumps.uniform(d.groups, p0=0.3)
    return ibm_models.Jumps(rng.random(len(jumps.weights)), p0=0.3)


def position_probability(positions: ibm_models.Positions, group: bitext.Group, length: int, choice: tuple) -> float:
    """p(a | I, J), from its definition."""
    size = group.I
    if isinstance(positions, ibm_models.Uniform):
        return (1 / (size + 1)) ** length
    if isinstance(positions, ibm_models.Absolute):
        rows, table = positions.tables[size]
        sentence = list(group.lengths).index(length)  # any sentence of this length
        places = [rows[block.start + sentence] for block in group.blocks()[:length]]
        return float(np.prod([table[row, 1 + i] for row, i in zip(places, choice)]))
    p, before, middle = 1.0, -1, len(positions.weights) // 2
    for i in choice:
        if i < 0:
            p *= positions.p0
            continue
        total = sum(positions.weights[middle + k - before] for k in range(size))
        p *= (1 - positions.p0) * positions.weights[middle + i - before] / total
        before = i
    return p


class Enumerated(NamedTuple):
    log_likelihood: float
    counts: Counter  # of word pairs
    nulls: Counter  # of words that the null word generates
    best: list  # alignment of each sentence; None if a side is empty
    jumps: dict[int, np.ndarray]  # of the HMM, by I: from the last word that was not null to the next


def enumerate_alignments(text, d: bitext.Direction, table: ibm_models.Table, positions, reverse: bool) -> Enumerated:
    numbered = bitext.build(text)
    t = {}
    for p, pair in enumerate(zip(*numbered.pairs)):
        t[pair[::-1] if reverse else pair] = table.pair[p]
    counts, nulls, total, best = Counter(), Counter(), 0.0, []
    jumps = {group.I: np.zeros((1 + group.I, group.I)) for group in d.groups}
    sides = (numbered.targets, numbered.sources) if reverse else (numbered.sources, numbered.targets)
    for number in range(numbered.size):
        e, f = (side.ids[side.starts[number] :][: side.lengths[number]].tolist() for side in sides)
        if not e or not f:
            best.append(None)
            continue
        group = next(group for group in d.groups if len(e) == group.I)
        found = {}
        for choice in itertools.product(range(-1, len(e)), repeat=len(f)):
            words = [table.null[word] if i < 0 else t[e[i], word] for i, word in zip(choice, f)]
            found[choice] = position_probability(positions, group, len(f), choice) * float(np.prod(words))
        likelihood = sum(found.values())
        total += np.log(likelihood)
        best.append(max(found, key=found.__getitem__))
        for choice, p in found.items():
            for before, after in itertools.pairwise([-1, *(i for i in choice if i >= 0)]):
                jumps[len(e)][1 + before, after] += p / likelihood
            for i, word in zip(choice, f):
                (nulls if i < 0 else counts)[word if i < 0 else (e[i], word)] += p / likelihood
    return Enumerated(total, counts, nulls, best, jumps)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["ibm1", "ibm2", "hmm"])
def test_classical_translation_word_alignment_equals_enumeration(name, reverse):
    """Likelihood, expected counts of word pairs and null words, and the best alignment."""
    text = bitext.build(TEXT)
    d = bitext.direction(text, reverse)
    table, positions = random_table(d), random_positions(name, d)
    step = ibm_models.expect(d, table, positions)
    expected_counts = ibm_models.count(d, step)
    total, counts, nulls, best, _ = enumerate_alignments(TEXT, d, table, positions, reverse)
    np.testing.assert_allclose(step.log_likelihood, total, rtol=1e-12)
    pairs = zip(*(text.pairs[::-1] if reverse else text.pairs))
    np.testing.assert_allclose(expected_counts.pair, [counts[pair] for pair in pairs], atol=1e-12)
    np.testing.assert_allclose(expected_counts.null, [nulls[word] for word in range(d.types)], atol=1e-12)
    choice = ibm_models.viterbi(d, table, positions)
    generated = text.sources if reverse else text.targets
    for number, expected in enumerate(best):
        found = choice[generated.starts[number] :][: generated.lengths[number]]
        assert expected is None or tuple(found) == expected


def test_the_jumps_of_the_hmm_are_those_of_enumeration_and_their_update_makes_them_more_likely():
    d = bitext.direction(bitext.build(TEXT))
    table, positions = random_table(d), random_positions("hmm", d)
    step = ibm_models.expect(d, table, positions)
    expected = enumerate_alignments(TEXT, d, table, positions, False).jumps
    for group, jumps in zip(d.groups, step.statistics):
        np.testing.assert_allclose(jumps, expected[group.I], atol=1e-12)

    def value(jumps: ibm_models.Jumps) -> float:
        return sum(float((n * np.log(jumps.transitions(g.I))).sum()) for g, n in zip(d.groups, step.statistics))

    updated = [ibm_models.Jumps(positions.weights, 0.3, n).update(d.groups, step.statistics) for n in (1, 2, 5, 200)]
    values = [value(jumps) for jumps in (positions, *updated)]
    assert (np.diff(values) > 0).all()
    longer = ibm_models.Jumps(positions.weights, 0.3, 400).update(d.groups, step.statistics)
    assert value(longer) - values[-1] < 1e-6  # it has converged


@pytest.mark.parametrize("name", ["ibm1", "ibm2", "hmm"])
def test_the_likelihood_never_decreases(name):
    d = bitext.direction(bitext.build(TEXT))
    table, positions = random_table(d), random_positions(name, d)
    found = []
    for _ in range(30):
        step = ibm_models.expect(d, table, positions)
        table, positions = ibm_models.maximize(d, step, positions)
        found.append(step.log_likelihood)
    assert (np.diff(found) >= -1e-9).all() and found[-1] > found[0] + 1


def test_model_1_learns_the_house_and_the_book():
    """The example of Koehn 2010: das = the, Haus = house, Buch = book, ein = a."""
    pairs = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]
    aligned = align.fit(pairs, "ibm1", iterations=200)
    for source, target in (("das", "the"), ("Haus", "house"), ("Buch", "book"), ("ein", "a")):
        assert aligned.forward.probability(source, target) > 0.98
    assert aligned.forward.probability("Haus", "book") == 0
    assert aligned.links("intersection") == [{(0, 0), (1, 1)}] * 3


def test_the_hmm_follows_the_order_of_words():
    """Model 1 links both X with the first x; the HMM links each with the one beside its neighbours."""
    text = [("a X b X c", "A x B x C"), ("a b", "A B"), ("b c", "B C"), ("c a", "C A"), ("X", "x"), ("X c", "x C")]
    assert (1, 3) in align.fit(text, "ibm1").forward.links(0)
    assert align.fit(text, "hmm").links("forward")[0] == {(n, n) for n in range(5)}


def test_what_is_too_long_for_the_hmm_is_aligned_by_model_1(monkeypatch):
    """A step takes at most LONGEST^2 operations; the HMM aligns all other pairs."""
    monkeypatch.setattr(ibm_models, "LONGEST", 4)
    sizes = []
    transitions = ibm_models.Jumps.transitions
    monkeypatch.setattr(
        ibm_models.Jumps, "transitions", lambda self, size: sizes.append(size) or transitions(self, size)
    )
    short, long = [("a b c", "x y z"), ("b a", "y x"), ("a b", "x y")], ("a b c a b", "z y x y x")
    said: list[str] = []
    found = align.fit([*short, long], report=said.append)
    assert max(sizes) == 3 and said[1].startswith("1 pair has more than 4 words on a side")
    d = bitext.direction(found.forward.text)
    group = d.groups[-1]
    emit, null = found.forward.table.pair[d.cells], found.forward.table.null[d.words]
    by_words = ibm_models.Uniform().best(group, emit[group.cells].reshape(-1, 5), null[group.words])
    assert group.I == 5 and found.forward.links(3) == {(i, j) for j, i in enumerate(by_words) if i >= 0}
    assert found.links("intersection")[0] == {(0, 0), (1, 1), (2, 2)}
    only = align.fit([long])
    assert np.isfinite(only.forward.perplexities).all() and only.links("forward")[0]


def test_viterbi_does_not_depend_on_what_is_compared_at_once(monkeypatch):
    rng = np.random.default_rng(3)
    words = lambda: " ".join(rng.choice(list("abcd"), size=rng.integers(1, 6)))
    pairs = [(words(), words().upper()) for _ in range(30)]
    expected = align.fit(pairs).links("forward")
    monkeypatch.setattr(ibm_models, "AT_ONCE", 1)
    assert align.fit(pairs).links("forward") == expected


def test_directions_that_agree_count_the_product_of_their_posteriors():
    text = bitext.build(TEXT)
    directions = [bitext.direction(text), bitext.direction(text, True)]
    found = [ibm_models.expect(d, random_table(d), random_positions("hmm", d)) for d in directions]
    both = ibm_models.agree(*directions, *found)

    def by_cell(d: bitext.Direction, posteriors: ibm_models.Posteriors) -> np.ndarray:
        cells = np.zeros(len(text.cells))
        cells[d.places] = posteriors.cells
        return cells

    product = by_cell(directions[0], found[0]) * by_cell(directions[1], found[1])
    for d, each in zip(directions, both):
        assert (text.cells[d.places] == d.cells).all()
        np.testing.assert_allclose(by_cell(d, each), product, atol=1e-15)
    links = align.fit(TEXT).links("intersection")
    assert len(links) == len(TEXT) and any(links)


def test_a_pair_with_an_empty_side_has_no_links_and_changes_no_other():
    text = [pair for pair in TEXT if all(pair)]
    for name in ("ibm1", "ibm2", "hmm"):
        alone, among = (align.fit(each, name, 3).links("union") for each in (text, TEXT))
        assert [links for pair, links in zip(TEXT, among) if all(pair)] == alone
        assert among[6] == among[7] == set()


def test_words_can_be_given_as_lists_and_what_cannot_be_aligned_is_refused():
    listed = [(source.split(), target.split()) for source, target in TEXT]
    assert align.fit(listed).links() == align.fit(TEXT).links()
    with pytest.raises(UserError, match="no sentence pair has words on both sides"):
        align.fit([("", "a"), ("b", "")])
    with pytest.raises(UserError, match="sentence pair 2 has 4,000 and 4,000 words: split it into sentences"):
        align.fit([("a", "b"), ("a " * 4000, "b " * 4000)])
    with pytest.raises(UserError, match="pair 1 is 'a b': give"):
        align.fit(["a b"])
    with pytest.raises(UserError, match="there is no model 'ibm3': choose one of ibm1, ibm2, hmm"):
        align.fit(TEXT, "ibm3")
    with pytest.raises(UserError, match="iterations is 0: it must be at least 1"):
        align.fit(TEXT, iterations=0)
    with pytest.raises(UserError, match="there is no method 'grow': choose one of forward, reverse, intersection"):
        align.fit(TEXT).links("grow")
