"""Lines as pairs of texts: cuts, second texts, and lines with masked words."""

import numpy as np
import pytest

from s2sjax import config
from s2sjax.core.special_tokens import CLS, EOS, MASK, SPECIALS
from s2sjax.data import text
from s2sjax.tasks.pretraining import paragraphs

KINDS = [
    "It{} is fast. It{} is small. It{} is good!",
    "a{} small fast{} one",
    "No{}. 5 is alive{}? Yes, it{} is.",
    "words{} that are many and{} one sentence only",
]
LINES = [KINDS[n % 4].format(*3 * [n // 4]) for n in range(32)]
PARTS = [paragraphs.split(line) for line in LINES]


def vocabulary(unit="words", lines=LINES, **options):
    return text.build(config.Text(unit, **options), lines, (CLS, MASK))


def test_a_paragraph_is_cut_between_sentences_and_a_sentence_in_its_middle():
    assert PARTS[:4] == [
        ("It0 is fast.", "It0 is small.", "It0 is good!"),
        ("a0 small", "fast0 one"),
        ("No0.", "5 is alive0?", "Yes, it0 is."),
        ("words0 that are many", "and0 one sentence only"),
    ]
    assert paragraphs.split("e.g. one of them") == ("e.g. one", "of them")
    assert paragraphs.split("one") == paragraphs.split("") == ()


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_next_sentence_labels_are_right(unit):
    """Brute force: the second text of a row is the rest of its line, or of another one from one of its cuts on; half
    of them each, and equally long."""
    known = vocabulary(unit)
    lines = paragraphs.Lines.of(known, PARTS, seed=3)
    whole = [known.encode(line) for line in LINES]
    places = np.split(lines.cuts.flat, lines.cuts.offsets[1:-1])
    rests = [[ids[cut:] for cut in some] for ids, some in zip(whole, places)]
    cls, width, labels, cuts, sizes = text.mark(known, CLS), int(lines.lengths.max()), [], set(), {0: [], 1: []}
    for epoch in range(24):
        batch = lines.batch(np.arange(len(LINES)), (width,), epoch)
        for n, (row, first, follows) in enumerate(zip(batch["source"].tolist(), batch["first"], batch["follows"])):
            end = len(row) - row[::-1].index(EOS)
            one, two = row[1 : first - 1], row[first : end - 1]
            assert row[0] == cls and row[first - 1] == EOS == row[end - 1] and not any(row[end:])
            assert one == whole[n][: len(one)] and whole[n][len(one) :] in rests[n] and end <= len(whole[n]) + 3
            found = {m for m, some in enumerate(rests) for rest in some if two and two == rest[: len(two)]}
            assert n in found and two == whole[n][len(one) :][: len(two)] if follows else found - {n}
            cuts.add((n % 4, len(one)))
            sizes[int(follows)].append(len(two))
        labels += batch["follows"].tolist()
    assert 0.4 < np.mean(labels) < 0.6
    assert len(cuts) == 2 + 1 + 2 + 1  # every place of each of the four kinds
    spread = np.std(sizes[0] + sizes[1]) / len(sizes[0]) ** 0.5
    assert abs(np.mean(sizes[0]) - np.mean(sizes[1])) < 4 * spread


def test_the_random_text_is_of_another_line():
    rows = np.arange(5)
    found = np.stack([paragraphs._others(3, epoch, rows, 5) for epoch in range(50)])
    assert (found != rows).all() and {*found.ravel().tolist()} == {*range(5)}


def test_a_row_depends_on_seed_epoch_and_its_number_alone():
    lines = paragraphs.Lines.of(vocabulary(), PARTS, seed=3)
    every = lines.batch(np.arange(len(LINES)), (12,), 5)
    some = lines.batch(np.array([7, -1, 2]), (16,), 5)
    np.testing.assert_array_equal(some["source"][[0, 2], :12], every["source"][[7, 2]])
    assert some["example"].tolist() == [7, -1, 2] and not some["source"][1].any() and some["first"][1] == 0
    assert some["follows"][[0, 2]].tolist() == every["follows"][[7, 2]].tolist()
    for other in (lines.batch(np.arange(len(LINES)), (12,), 6), lines._replace(seed=4).batch(np.arange(32), (12,), 5)):
        assert (other["source"] != every["source"]).any(1).mean() > 0.5


def test_pairs_to_evaluate_are_whole_texts_and_encoded_as_in_training():
    pairs = paragraphs.pairs(PARTS)
    assert pairs == paragraphs.pairs(PARTS) and 8 < sum(pair.follows for pair in pairs) < 24
    for number, (first, second, follows, row) in enumerate(pairs):
        assert row == number and LINES[row].startswith(first)
        assert (
            f"{first} {second}" == LINES[row]
            if follows
            else all(
                line.endswith(second) == (line != LINES[row])
                for line in LINES
                if line.endswith(second) or line == LINES[row]
            )
        )
    known = vocabulary()
    columns = paragraphs.pair_columns(known, pairs, 99)
    row = columns.batch(np.array([0]), (16,))
    one, two = known.encode(pairs[0].first), known.encode(pairs[0].second)
    wanted = [text.mark(known, CLS), *one, EOS, *two, EOS]
    assert row["source"][0, : len(wanted)].tolist() == wanted and row["first"][0] == len(one) + 2
    short = paragraphs.pair_columns(known, pairs, 5)
    ids, offsets = short.ragged["source"]
    assert short.lengths.max() == 5 and (ids[offsets[1:] - 1] == EOS).all()


@pytest.mark.parametrize("unit, options", [("words", {}), ("characters", {}), ("subwords", {"size": 45})])
def test_a_mask_is_one_token_and_the_others_are_those_of_the_line(unit, options):
    known = vocabulary(unit, **options)
    mask = text.mark(known, MASK)
    ids = paragraphs.masked_ids(known, f"{MASK} is small {MASK} ☃ \ue000it")
    assert ids.count(mask) == 2 and ids[0] == mask
    assert known.encode("small")[-1] in ids and min(ids) >= len(SPECIALS) - 1  # <unk> for the snowman
    if unit == "subwords":
        assert known.pieces(paragraphs.masked_ids(known, f"It {MASK}."))[-2:] == [MASK, "."]


def test_the_pieces_take_the_place_of_the_masks():
    assert paragraphs.filled(f"{MASK} is {MASK}.", ["▁It", "▁good"]) == "It is good."
