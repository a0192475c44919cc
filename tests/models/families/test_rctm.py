"""The recurrent continuous translation model: what a sentence's vector is, and a decoder that sees nothing else."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import zoo

from s2sjax import config, models
from s2sjax.core.special_tokens import SOS
from s2sjax.models.families import rctm

STATES = np.array([[[1.0, -4], [3, -2], [9, 9]], [[9, 9], [9, 9], [9, 9]]], np.float32)
MASK = np.array([[True, True, False], [False, False, False]])


@pytest.mark.parametrize("pool, vector", [("mean", [2, -3]), ("max", [3, -2])])
def test_a_sentence_is_pooled_over_its_real_positions(pool, vector):
    """A padded position is not seen; an empty sentence is zeros, and no gradient comes out of either."""
    pooled, pull = jax.vjp(lambda states: rctm.POOLS[pool](states, MASK), STATES)
    np.testing.assert_array_equal(pooled, [vector, [0, 0]])
    (slope,) = pull(jnp.ones_like(pooled))
    assert np.isfinite(slope).all()
    assert np.all(np.asarray(slope)[~MASK] == 0)


def test_the_gradient_of_the_largest_goes_to_the_first_of_equals():
    """The maximum selects one position: the gradient is not divided between equal ones."""
    states = np.array([[[1.0, 5], [3, 5], [3, 2], [9, 9]], [[0, 0]] * 4])
    mask = np.array([[True, True, True, False], [False] * 4])
    slope = jax.grad(lambda states: jnp.sum(rctm.masked_max(states, mask) * np.array([[2.0, 7]])))(states)
    np.testing.assert_array_equal(slope, [[[0, 7], [2, 0], [0, 0], [0, 0]], [[0, 0]] * 4])


def model(c: config.RCTM):
    """A module and random parameters, biases too."""
    module = models.build(c, zoo.VOCABULARY, zoo.VOCABULARY)
    shapes = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), int))
    rng = np.random.default_rng(0)
    return module, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2, shapes)


def test_the_decoder_equals_pytorchs_cell_that_is_fed_the_sentence_with_every_word():
    """h_t = tanh(W [y_{t-1}; c] + U h_{t-1} + b), logits W_o h_t, h_0 = 0."""
    torch = references.of_pytorch("rnn_fed_a_sentence")
    module, params = model(zoo.MODELS["cnn-rnn"])
    ids, words = [SOS, 6, 4, 5], torch["words"][0]
    decoder, table = params["params"]["decoder"], params["params"]["target_embedding"]["table"]
    table[ids] = words / words.shape[1] ** 0.5
    decoder["cell"]["input"], decoder["cell"]["context"] = np.split(torch["weight_ih_l0"].T, [words.shape[1]])
    decoder["cell"]["state"], decoder["cell"]["bias"] = torch["weight_hh_l0"].T, torch["bias_ih_l0"]

    step = jax.jit(partial(module.apply, method="step"))
    state = module.apply(params, torch["sentence"], len(ids), method="init_state")
    for token, theirs in zip(ids, torch["states"][0]):
        state, logits, _ = step(params, torch["sentence"], state, np.array([token]))
        expected = theirs @ decoder["output"]["kernel"] + decoder["output"]["bias"]
        np.testing.assert_allclose(logits[0], expected, atol=1e-5)


def test_the_decoder_asks_for_one_vector_and_tells_no_attention():
    module = models.build(config.RCTM(width=4, embedding_size=3), 7, 7)
    memory = jax.eval_shape(
        lambda: module.init_with_output(jax.random.key(0), np.ones((2, 5), int), method="encode")[0]
    )
    assert memory.shape == (2, 4)
    assert not module.attends


def test_residual_and_gated_convolutions_by_hand():
    """x + a sigmoid(b): the first layer changes the width, so only the second one adds."""
    module, params = model(config.RCTM(width=4, embedding_size=3, kernels=(1, 1), activation="gated", residual=True))
    read = lambda module, source: module.encoder(*module.frontend(source), False)
    states, _, ((sentence,),), _ = module.apply(params, np.array([[5]]), method=read)
    weights, (x,) = params["params"]["encoder"]["stack"], params["params"]["source_embedding"]["table"][5:6] * 3**0.5
    for layer in range(2):
        a, b = np.split(x @ weights[f"convolution_{layer}"]["kernel"][0] + weights[f"convolution_{layer}"]["bias"], 2)
        y = a / (1 + np.exp(-b))
        x = x + y if layer > 0 else y
    np.testing.assert_allclose(states[0, 0], x, atol=1e-6)
    np.testing.assert_allclose(sentence[0], x, atol=1e-6)


def test_its_weights():
    """The named model has kernels 2, 3, 4 and a plain cell that reads a word, the sentence and its state."""
    c = models.NAMED["rctm"].config
    D, words = c.width, 1000
    module = models.build(c, words, words)
    shapes = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), int))
    convolutions = sum((kernel * D + 1) * D for kernel in (2, 3, 4))
    cell = (3 * D + 1) * D
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 2 * words * D + convolutions + cell + (D + 1) * words
