"""The weights of self-attention that models return are those that they compute with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core.attention import position_encodings
from s2sjax.core.special_tokens import PAD, SOS
from s2sjax.models.families import transformer
from s2sjax.tasks.language_model import language_models
from s2sjax.tasks.language_model.settings import HybridLM, RecurrentLM, TransformerLM

SMALL = dict(width=8, heads=2, feedforward=16, encoder_layers=2, decoder_layers=2, dropout=0.0)
HEADS, VOCABULARY, BAR = 2, 9, 1e-5
SOURCE = np.array([[4, 5, 6, 7, 8, 2], [5, 5, 2, PAD, PAD, PAD]], np.int32)
TARGET = np.array([[6, 4, 8, 7, 2], [7, 2, PAD, PAD, PAD]], np.int32)


def random_params(init, *inputs):
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    draw = lambda leaf: jnp.asarray(np.random.default_rng(leaf.size).normal(size=leaf.shape) / 2, jnp.float32)
    return jax.tree.map(draw, shapes)


def softmax(scores, seen):
    exact = np.exp(scores - scores.max(-1, keepdims=True)) * seen
    return exact / np.maximum(exact.sum(-1, keepdims=True), 1e-30)


KINDS = [
    (dict(window=2, positions="rotary"), True),
    (dict(window=1, positions="relative", share_positions=False), False),
    (dict(), False),
    (dict(positions="rotary"), False),
    (dict(positions="relative", share_positions=False), True),
    (dict(window=2, head_width=3, biases=False), False),
]


@pytest.mark.parametrize("options, causal", zoo.first(3, KINDS), ids=str)
def test_the_weights_give_what_attention_gives(options, causal):
    """Also where the fused kernel computes blocks of a window, for padding, and for a row without real positions."""
    module = transformer.Attention(
        config.Transformer(**SMALL | options), jnp.float32, options.get("share_positions", True) is False
    )
    x, lengths = np.random.default_rng(1).normal(size=(3, 7, 8)).astype(np.float32), np.array([7, 4, 0])
    params = random_params(lambda key: module.init(key, x, lengths, causal, method="self_attention"))
    weights = np.asarray(module.apply(params, x, lengths, causal, method="self_weights"))
    values = np.asarray(module.apply(params, x, method="keys_values")[1])
    attended = np.einsum("bnts,bsnd->btnd", weights, values)
    by_weights = module.apply(params, attended, method="_joined")
    expected = module.apply(params, x, lengths, causal, method="self_attention")
    np.testing.assert_allclose(by_weights[:2], expected[:2], atol=BAR)
    assert not weights[2].any() and weights.shape == (3, HEADS, 7, 7)


def by_hand(block, x, seen):
    """Self-attention, residual and norm of a post-LN block, in numpy: x [T, W], seen [T, T] -> x, weights [N, T, T]."""
    dense = lambda name, x: x @ block["attention"][name]["kernel"] + block["attention"][name]["bias"]
    heads = lambda x: x.reshape(len(x), HEADS, -1).swapaxes(0, 1)
    queries, (keys, values) = heads(dense("query", x)), map(heads, np.split(dense("key_value", x), 2, axis=-1))
    weights = softmax(queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1]), seen)
    attended = (weights @ values).swapaxes(0, 1).reshape(x.shape)
    return norm(x + dense("output", attended), block["around_attention"]), weights


def norm(x, params):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return scaled * params["norm"]["scale"] + params["norm"]["bias"]


def feed(block, x):
    inner = np.maximum(x @ block["feedforward"]["inner"]["kernel"] + block["feedforward"]["inner"]["bias"], 0)
    return norm(x + inner @ block["feedforward"]["outer"]["kernel"] + block["feedforward"]["outer"]["bias"],
                block["around_feedforward"])  # fmt: skip


def layer_of(stack, layer):
    return jax.tree.map(lambda leaf: np.asarray(leaf[layer], np.float64), stack["blocks"]["stack"])


def test_the_weights_of_a_transformer_are_those_computed_by_hand():
    """All layers of the encoder, and the first one of the decoder, whose input is the target shifted right."""
    module = models.build(config.Transformer(**SMALL), VOCABULARY, VOCABULARY)
    params = random_params(module.init, SOURCE, TARGET)
    found = {side: module.apply(params, side, SOURCE, TARGET, method="self_attention_heads") for side in SIDES}
    assert module.self_attends == SIDES and [*found["encoder"]] == [*found["decoder"]] == [0, 1]
    place = np.asarray(position_encodings.sinusoidal(jnp.arange(6), 8))
    for row, length in enumerate((6, 3)):
        embedded = module.apply(params, SOURCE, method=lambda m, ids: m.frontend(ids))[0]
        x = np.asarray(embedded[row, :length]) + place[:length]
        for layer in range(2):
            block = layer_of(params["params"]["encoder"], layer)
            x, weights = by_hand(block, x, np.ones((length, length)))
            np.testing.assert_allclose(found["encoder"][layer][row, :, :length, :length], weights, atol=BAR)
            assert not found["encoder"][layer][row, :, :length, length:].any()
            x = feed(block, x)
    inputs = np.concatenate([np.full((2, 1), SOS), TARGET[:, :-1]], axis=1)
    x = np.asarray(module.apply(params, inputs, method=lambda m, ids: m.decoder.embedding(ids))) + place[:5]
    for row in range(2):
        _, weights = by_hand(layer_of(params["params"]["decoder"], 0), x[row], np.tri(5))
        np.testing.assert_allclose(found["decoder"][0][row], weights, atol=BAR)


SIDES = ("encoder", "decoder")
MIXED = config.Hybrid(**SMALL | dict(encoder_layers=3, decoder_layers=4), state_width=4, window=2,
                      mixers=("attention", "retention", "local_attention"))  # fmt: skip


def test_layers_of_a_hybrid_that_are_recurrences_have_no_weights():
    module = models.build(MIXED, VOCABULARY, VOCABULARY)
    params = random_params(module.init, SOURCE, TARGET)
    for side, layers in (("encoder", [0, 2]), ("decoder", [0, 2, 3])):
        found = module.apply(params, side, SOURCE, TARGET, method="self_attention_heads")
        assert [*found] == layers
        near = np.abs(np.subtract.outer(range(found[2].shape[2]), range(found[2].shape[2]))) <= 2
        assert not (np.asarray(found[2]) * ~near).any() and np.asarray(found[0])[0, :, 4, 0].all()
    recurrent = models.build(config.replace(MIXED, mixers=("retention",)), VOCABULARY, VOCABULARY)
    params = random_params(recurrent.init, SOURCE, TARGET)
    assert recurrent.apply(params, "decoder", SOURCE, TARGET, method="self_attention_heads") == {}


@pytest.mark.parametrize(
    "model", [config.RNNsearch(width=8), config.Pair(config.Transformer(**SMALL), config.Luong(width=8))]
)
def test_only_sides_with_self_attention_have_weights(model):
    module = models.build(model, VOCABULARY, VOCABULARY)
    params = random_params(module.init, SOURCE, TARGET)
    found = {side: module.apply(params, side, SOURCE, TARGET, method="self_attention_heads") for side in SIDES}
    assert found["decoder"] == {} and [*found["encoder"]] == ([] if isinstance(model, config.RNNsearch) else [0, 1])
    assert module.self_attends == (() if isinstance(model, config.RNNsearch) else ("encoder",))


LANGUAGE_MODELS = {
    "transformer": TransformerLM(width=8, heads=2, feedforward=16, layers=2, positions="learned"),
    "relative": TransformerLM(width=8, heads=2, feedforward=16, layers=2, positions="relative"),
    "local": HybridLM(width=8, heads=2, feedforward=16, layers=3, mixers=("rg_lru", "local_attention"), window=2),
    "recurrent": RecurrentLM(width=8, embedding_size=8, layers=1),
}


@pytest.mark.parametrize("name", zoo.first(3, LANGUAGE_MODELS))
def test_language_models_attend_to_what_they_have_read(name):
    """A weight is positive exactly where a change of the input changes the layer: within reach, and not later."""
    settings = LANGUAGE_MODELS[name]
    module = language_models.build(settings, VOCABULARY, 6, "float32", "none")
    inputs, carry = SOURCE[:1], language_models.start(settings, 1, jnp.float32)
    params = random_params(module.init, inputs, carry)
    found = module.apply(params, inputs, method="self_attention_heads")
    assert [*found] == {"transformer": [0, 1], "relative": [0, 1], "local": [1], "recurrent": []}[name]
    ago = np.subtract.outer(range(6), range(6))
    seen = (ago >= 0) & (ago <= (2 if name == "local" else 6))
    for weights in found.values():
        assert ((np.asarray(weights) > 0) == seen).all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=BAR)
