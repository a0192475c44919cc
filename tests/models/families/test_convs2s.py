"""ConvS2S: the paper's equations written out, what its scaling keeps, who sees whom, and how many weights it has."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, layers, models
from s2sjax.core.special_tokens import SOS
from s2sjax.errors import UserError
from s2sjax.models.families import convs2s

NAME = "convs2s-uneven"  # widths change, kernels are odd and even, weights are plain
CONFIG = zoo.MODELS[NAME]
SOURCE, TARGET = np.array([[4, 5, 6, 4, 2]]), np.array([[5, 4, 4, 6, 5, 4, 2]])


def params_of(module, *args):
    """Random parameters, larger than the module's own, so that all terms of an equation can be told apart."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), shapes)


# ------------------------------------------------------------------------- the equations, by hand


def affine(weights, x):
    return x @ weights["kernel"] + weights["bias"]


def block(weights, xs, before, attend=None):
    """One block on a sentence [T, D], position by position; `attend` changes v_t."""
    kernel, bias = weights["convolution"]["kernel"], weights["convolution"]["bias"]
    ys = []
    for t in range(len(xs)):
        seen = [(j, t - before + j) for j in range(len(kernel)) if 0 <= t - before + j < len(xs)]
        a, b = np.split(bias + sum(xs[at] @ kernel[j] for j, at in seen), 2)
        v = a / (1 + np.exp(-b))
        v = v if attend is None else attend(t, v)
        skip = affine(weights["widen"], xs[t]) if "widen" in weights else xs[t]
        ys.append((v + skip) * 0.5**0.5)
    return np.stack(ys)


def by_hand(params, source, target):
    """Logits [T, V] of one sentence without padding, as section 3 of the paper writes them."""
    params = jax.tree.map(np.float64, params)
    encoder, decoder = params["encoder"], params["decoder"]
    half = 0.5**0.5

    def embed(side, positions, ids):
        table = params[f"{side}_embedding"]["table"]
        return 0.1 * table.shape[1] ** 0.5 * table[ids] + positions["table"][: len(ids)]

    e = embed("source", encoder["positions"], source)
    x = affine(encoder["enter"], e)
    for layer, (_, kernel) in enumerate(CONFIG.encoder_layers):
        x = block(encoder[f"blocks_{layer}"], x, (kernel - 1) // 2)
    z = affine(encoder["leave"], x)

    g = embed("target", decoder["positions"], np.array([SOS, *target[:-1]]))
    x = affine(decoder["enter"], g)
    for layer, (_, kernel) in enumerate(CONFIG.decoder_layers):

        def attend(t, v, weights=decoder[f"attentions_{layer}"]):
            scores = z @ ((affine(weights["ask"], v) + g[t]) * half)
            alpha = np.exp(scores) / np.exp(scores).sum()
            m = len(z)
            context = m * (1 / m) ** 0.5 * (alpha @ ((z + e) * half))
            return (affine(weights["answer"], context) + v) * half

        x = block(decoder[f"blocks_{layer}"], x, kernel - 1, attend)
    return affine(decoder["output"], affine(decoder["leave"], x))


def test_the_model_is_the_papers_equations():
    module = models.build(CONFIG, zoo.VOCABULARY, zoo.VOCABULARY)
    params = params_of(module, SOURCE, TARGET)
    logits = jax.jit(module.apply)(params, SOURCE, TARGET)[0]
    np.testing.assert_allclose(logits, by_hand(params["params"], SOURCE[0], TARGET[0]), atol=1e-5)


# ------------------------------------------------------------------------------------- scaling


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_eight_blocks_keep_the_variance_of_the_embeddings(dropout):
    """While training. Words and positions of deviation 0.1 have variance 0.02, and there a gate is about half open."""
    c = config.ConvS2S(dropout=dropout, encoder_layers=((64, 3),) * 8)
    stack = convs2s.blocks(c, c.encoder_layers, causal=False, dtype=jnp.float32)
    x = 0.02**0.5 * jax.random.normal(jax.random.key(0), (8, 32, 64))
    mask, before = jnp.ones(x.shape[:2], bool), x.var()
    # All of them have one shape, so that one program draws and runs each.
    one = jax.jit(lambda key, x: stack[0].init_with_output({"params": key, "dropout": key}, x, mask, True)[0])
    for number in range(len(stack)):
        x = one(jax.random.key(number + 1), x)
    assert 0.8 < x.var() / before < 1.25


@pytest.mark.slow
def test_weights_are_drawn_by_their_inputs_and_by_what_follows():
    """N(0, 4 (1 - p) / (k D)) before a gate, N(0, (1 - p) / D) after dropout, N(0, 1 / D) elsewhere."""
    shapes = dict(embedding_size=64, encoder_layers=((96, 3), (64, 5)), decoder_layers=((72, 1),), max_length=99)
    module = models.build(config.ConvS2S(**shapes, dropout=0.2, weight_norm=False), 40, 50)
    params = jax.jit(module.init)(jax.random.key(0), SOURCE, TARGET)["params"]
    deviation = lambda *path: float(np.std(path_of(params, *path)))
    near = partial(pytest.approx, rel=0.05)
    assert deviation("encoder", "blocks_0", "convolution", "kernel") == near((4 * 0.8 / (3 * 96)) ** 0.5)
    assert deviation("encoder", "blocks_1", "convolution", "kernel") == near((4 * 0.8 / (5 * 96)) ** 0.5)
    assert deviation("encoder", "blocks_1", "widen", "kernel") == near((1 / 96) ** 0.5)
    assert deviation("encoder", "enter", "kernel") == near((0.8 / 64) ** 0.5)
    assert deviation("decoder", "attentions_0", "ask", "kernel") == near((1 / 72) ** 0.5)
    assert deviation("decoder", "output", "kernel") == near((0.8 / 64) ** 0.5)
    assert deviation("decoder", "positions", "table") == near(0.1)


def path_of(tree, *names):
    for name in names:
        tree = tree[name]
    return tree


@pytest.mark.parametrize(
    "layer", [layers.Dense(6, 4, gain=1.0, weight_norm=True), layers.Convolution(6, 4, 3, weight_norm=True)]
)
def test_weight_norm_begins_with_the_weights_as_they_were_drawn(layer):
    """And then a longer direction changes nothing, a greater length all."""
    args = (
        np.ones((1, 5, 6), np.float32),
        *((np.ones((1, 5), bool),) if isinstance(layer, layers.Convolution) else ()),
    )
    params = layer.init(jax.random.key(0), *args)["params"]
    plain = {"kernel": params["direction"], "bias": params["bias"]}
    unnormed = layer.clone(weight_norm=False).apply({"params": plain}, *args)
    output = lambda **change: layer.apply({"params": {**params, **change}}, *args)
    np.testing.assert_allclose(output(), unnormed, rtol=1e-5)
    np.testing.assert_allclose(output(direction=3 * params["direction"]), unnormed, rtol=1e-5)
    np.testing.assert_allclose(output(length=3 * params["length"]), 3 * unnormed, rtol=1e-5)


@pytest.mark.slow
def test_the_encoders_gradient_is_divided_by_twice_the_number_of_attentions():
    """Only the gradient of the encoder blocks is scaled, not those of the embeddings and the decoder."""

    def gradient(scale: bool):
        module = models.build(config.replace(CONFIG, scale_gradient=scale), zoo.VOCABULARY, zoo.VOCABULARY)
        params = params_of(module, SOURCE, TARGET)
        return jax.jit(jax.grad(lambda params: jnp.sum(module.apply(params, SOURCE, TARGET) ** 2)))(params)["params"]

    true, scaled = gradient(False), gradient(True)
    attentions = len(CONFIG.decoder_layers)
    close = lambda left, right: jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), left, right)
    for part in ("blocks_0", "blocks_1", "blocks_2", "enter", "leave"):
        close(jax.tree.map(lambda g: 2 * attentions * g, scaled["encoder"][part]), true["encoder"][part])
    close(scaled["decoder"], true["decoder"])
    words = "source_embedding"
    assert np.linalg.norm(scaled[words]["table"]) > np.linalg.norm(true[words]["table"]) / (2 * attentions)


# ----------------------------------------------------------------------------- who sees whom, sizes


def test_a_token_depends_on_no_later_one_and_no_further_back_than_its_kernels_reach():
    """Row j of the decoder's positions enters at position j alone, so its gradient tells what a logit has seen."""
    module = models.build(CONFIG, zoo.VOCABULARY, zoo.VOCABULARY)
    params = params_of(module, SOURCE, TARGET)
    length, reach = TARGET.shape[1], 1 + sum(kernel - 1 for _, kernel in CONFIG.decoder_layers)
    mixture = np.random.default_rng(1).normal(size=zoo.VOCABULARY)

    def logits(table):
        decoder = {**params["params"]["decoder"], "positions": {"table": table}}
        return module.apply({"params": {**params["params"], "decoder": decoder}}, SOURCE, TARGET)[0] @ mixture

    slopes = jax.jit(jax.jacrev(logits))(params["params"]["decoder"]["positions"]["table"])
    seen = np.abs(slopes).sum(-1)[:, :length] > 0  # [T of the logit, T of the input]
    back = np.arange(length)[:, None] - np.arange(length)
    assert reach < length
    np.testing.assert_array_equal(seen, (back >= 0) & (back < reach))


def count(model: config.ModelConfig, source: int, target: int) -> int:
    module = models.build(model, source, target)
    shapes = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), int))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_the_weights_of_the_papers_english_german_model():
    c = models.NAMED["convs2s"].config
    assert [sum(shape == each for each in c.encoder_layers) for shape in ((512, 3), (768, 3), (2048, 1))] == [10, 3, 2]
    dense = lambda inputs, outputs: (inputs + 2) * outputs  # a bias and a length for each output
    words, E = 40_000, 512

    def side(attention: bool) -> int:
        shapes = [(512, 512, 3)] * 10 + [(512, 768, 3)] + [(768, 768, 3)] * 2 + [(768, 2048, 1), (2048, 2048, 1)]
        convolutions = sum(dense(k * i, 2 * o) + (dense(i, o) if i != o else 0) for i, o, k in shapes)
        looks = sum(dense(o, E) + dense(E, o) for _, o, _ in shapes) if attention else 0
        return words * E + c.max_length * E + dense(E, 512) + convolutions + looks + dense(2048, E)

    assert count(c, words, words) == side(False) + side(True) + dense(E, words)


def test_positions_beyond_the_table_are_refused_and_never_clamped():
    module = models.build(zoo.CONVS2S, 7, 7)  # sixteen positions
    ids = lambda length: jnp.ones((2, length), jnp.int32)
    params = jax.eval_shape(module.init, jax.random.key(0), ids(16), ids(16))

    def start(params, steps):
        return module.apply(params, module.apply(params, ids(16), method="encode"), steps, method="init_state")

    jax.eval_shape(lambda params: start(params, 16), params)
    for beyond in (
        lambda params: module.apply(params, ids(17), ids(3)),
        lambda params: module.apply(params, ids(3), ids(17)),
        lambda params: start(params, 17),
    ):
        with pytest.raises(UserError, match=r"model\.max_length is 16: learned positions cannot address 17"):
            jax.eval_shape(beyond, params)
