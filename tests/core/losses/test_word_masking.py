"""Hidden words: how many, which, what is read in their place, and that padding changes nothing."""

from functools import partial

import jax
import numpy as np
import pytest

from s2sjax.core.losses.word_masking import mask_words, most

CLS, MASK, FIRST, SIZE = 4, 5, 6, 1000
WORDS = np.arange(100, 140)
IDS = np.array([CLS, *WORDS[:25], 2, *WORDS[25:], 2, 0, 0, 0])
DRAWS = 600


@pytest.fixture(scope="module")
def drawn():
    draw = partial(mask_words, rate=0.15, mask=MASK, first=FIRST, size=SIZE)
    return jax.device_get(jax.jit(jax.vmap(draw, (0, None)))(jax.random.split(jax.random.key(0), DRAWS), IDS))


def test_masked_words_are_15_percent_and_80_10_10(drawn):
    assert (drawn.counts.sum(1) == 6).all()  # of 40 words
    read = np.take_along_axis(drawn.ids, drawn.positions, 1)[drawn.counts]
    word = IDS[drawn.positions][drawn.counts]
    kinds = {"mask": read == MASK, "kept": read == word, "random": (read != MASK) & (read != word)}
    shares = {name: kind.mean() for name, kind in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "kept": 0.1, "random": 0.1}, abs=0.025)  # four standard deviations
    random = read[kinds["random"]]
    assert random.min() >= FIRST and random.max() < SIZE and len(np.unique(random)) > 200


def test_special_tokens_are_never_masked_and_other_words_are_not_changed(drawn):
    assert (IDS[drawn.positions][drawn.counts] >= FIRST).all()
    chosen = np.zeros((DRAWS, len(IDS)), bool)
    for row, (positions, counts) in enumerate(zip(drawn.positions, drawn.counts)):
        assert len({*positions.tolist()}) == len(positions) == most(len(IDS), 0.15)
        chosen[row, positions[counts]] = True
    assert (drawn.ids == IDS)[~chosen].all()
    often = chosen.mean(0)[IDS >= FIRST]
    assert often.min() > 0.09 and often.max() < 0.21  # each word is chosen about as often as any other


def test_padding_changes_no_mask(drawn):
    draw = partial(mask_words, rate=0.15, mask=MASK, first=FIRST, size=SIZE)
    longer = jax.jit(draw)(jax.random.split(jax.random.key(0), DRAWS)[7], np.pad(IDS, (0, 21)))
    np.testing.assert_array_equal(longer.ids[: len(IDS)], drawn.ids[7])
    np.testing.assert_array_equal(longer.positions[:6], drawn.positions[7, :6])
    assert longer.counts.sum() == 6 and not np.asarray(longer.ids[len(IDS) :]).any()


def test_a_row_without_words_has_nothing_to_guess_and_one_word_is_guessed():
    draw = partial(mask_words, jax.random.key(1), rate=0.15, mask=MASK, first=FIRST, size=SIZE)
    none = draw(np.array([CLS, 2, 2, 0]))
    assert not none.counts.any() and np.array_equal(none.ids, [CLS, 2, 2, 0])
    one = draw(np.array([CLS, 2, 9, 2]))
    assert one.counts.sum() == 1 and one.positions[0] == 2
