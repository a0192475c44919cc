"""Word vectors made of characters: the equation, and that the padding of the table changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config, layers, models
from s2sjax.core.nn import character_cnn
from s2sjax.core.special_tokens import EOS
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError
from s2sjax.models.frontends import SpelledEmbedding
from s2sjax.tasks import Translation

WORDS = Vocabulary("words", ["ab", "a", "babab"])
OPTIONS = config.Spelling(on=True, width=3, kernels=(1, 3), filters=2)


def test_the_table_spells_each_word_between_its_ends():
    table = WORDS.spelling(20)
    assert table.tolist() == [
        [1, 3, 2, 0, 0, 0, 0], [1, 4, 2, 0, 0, 0, 0], [1, 5, 2, 0, 0, 0, 0], [1, 6, 2, 0, 0, 0, 0],
        [1, 7, 8, 2, 0, 0, 0], [1, 7, 2, 0, 0, 0, 0], [1, 8, 7, 8, 7, 8, 2],
    ]  # fmt: skip
    assert WORDS.spelling(2)[6].tolist() == [1, 8, 7, 2]
    tagged = Vocabulary("words", ["a"], tags=["<a>", "<b>"]).spelling(20)
    assert tagged[4:].tolist() == [[1, 7, 2], [1, 8, 2], [1, 9, 2]]  # a tag is one character, that of no text


def test_the_largest_value_over_time_is_the_loop_of_the_paper():
    rng = np.random.default_rng(0)
    characters, kernel, bias = rng.normal(size=(5, 3)), rng.normal(size=(4, 3, 2)), rng.normal(size=2)
    length = 3
    windows = np.concatenate([characters[:length], np.zeros((3, 3))])
    expected = np.max([np.tanh(bias + np.einsum("ma,maf->f", windows[t : t + 4], kernel)) for t in range(length)], 0)
    found = character_cnn.max_over_time(*map(jnp.asarray, (kernel, bias, characters)), jnp.arange(5) < length)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_highway_carries_where_its_gate_is_shut_and_transforms_where_it_is_open():
    y = jnp.array([1.0, -1.0])
    np.testing.assert_allclose(character_cnn.highway(5 * y, jnp.full(2, -50.0), y), y)
    np.testing.assert_allclose(character_cnn.highway(5 * y, jnp.full(2, 50.0), y), [5, 0])


def test_a_words_vector_does_not_depend_on_the_words_beside_it():
    """A wider table, for a longer word, leaves all vectors as they are; equal spellings have equal vectors."""
    table = WORDS.spelling(20)
    wider = np.concatenate([np.pad(table, ((0, 0), (0, 4))), np.pad(table[4:5], ((0, 0), (0, 4)))])
    narrow, wide = (SpelledEmbedding(layers.Spelling(t, OPTIONS), 4) for t in (table, wider))
    params = jax.jit(narrow.init)(jax.random.key(0), jnp.arange(7))
    vectors = jax.jit(narrow.apply)(params, jnp.arange(7))
    assert vectors.shape == (7, 4) and len(np.unique(np.asarray(vectors).round(5), axis=0)) == 7
    others = jax.jit(wide.apply)(params, jnp.arange(8))
    np.testing.assert_allclose(others[:7], vectors, atol=1e-6)
    np.testing.assert_allclose(others[7], vectors[4], atol=1e-6)


@pytest.mark.parametrize("side", ["source", "target"])
def test_it_stands_in_for_a_table_of_words_on_either_side(side):
    """No weight is a word's own there."""
    spelt = layers.Spelling(WORDS.spelling(20), OPTIONS)
    model = config.Luong(width=4, embedding_size=4, layers=1, cell="rnn", score="dot")
    module = models.build(model, WORDS.size, WORDS.size, **{f"{side}_spelling": spelt})
    ids = jnp.array([[6, 4, EOS]])
    shapes = jax.eval_shape(module.init, jax.random.key(0), ids, ids)["params"]
    assert (
        "table" not in shapes[f"{side}_embedding"] and shapes[f"{side}_embedding"]["characters"]["table"].shape[0] == 9
    )
    assert jax.eval_shape(module.apply, {"params": shapes}, ids, ids).shape == (1, 3, WORDS.size)


def test_kims_small_network_has_the_weights_of_the_paper():
    """15-wide characters, kernels 1 to 6 with 25 m features, one highway of 525."""
    o = config.Spelling(on=True)
    network = SpelledEmbedding(layers.Spelling(WORDS.spelling(20), o), 300)
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.arange(3))["params"]
    weights = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}
    assert sum(weights[f"kernels_{i}"] for i in range(6)) == sum(m * 15 * 25 * m + 25 * m for m in range(1, 7))
    assert weights["transforms_0"] == weights["gates_0"] == 525 * 525 + 525


def test_what_cannot_be_spelt_is_refused():
    with pytest.raises(UserError, match="but unit is characters: set unit to words"):
        config.Text(spelling=OPTIONS)
    spelt = config.Text("words", spelling=OPTIONS)
    with pytest.raises(UserError, match=r"model\.tie 'output' .* data\.target\.spelling\.on replaces that table"):
        Translation("x", data=config.Data(target=spelt), model=config.Transformer())
    Translation("x", data=config.Data(source=spelt), model=config.Transformer())
