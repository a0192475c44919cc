"""The Transformer's own: its attention beside PyTorch's and Flax's; every kind of position, windows, the cache."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import zoo

from s2sjax import config, models
from s2sjax.core import search
from s2sjax.core.special_tokens import SOS
from s2sjax.errors import UserError
from s2sjax.models.families import transformer

WIDTH, HEADS, VOCABULARY = 8, 2, 9
SMALL = dict(width=WIDTH, heads=HEADS, feedforward=8, encoder_layers=1, decoder_layers=1, dropout=0.0)
BAR = 1e-5


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def build(**options):
    """A module and parameters with opinions, biases and relative positions included."""
    module = models.build(config.Transformer(**SMALL | options), VOCABULARY, VOCABULARY)
    ids = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), ids, ids)
    return module, jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.size, *leaf.shape) / 2), shapes)


def sentences(seed: int, rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, VOCABULARY, (rows, length)).astype(np.int32)


# -------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("window, causal", zoo.first(2, [(0, False), (2, True), (0, True), (2, False)]))
def test_self_attention_equals_pytorch_and_flax_with_its_weights(window, causal):
    """Theirs under the mask of the band; ours without."""
    torch = references.of_pytorch("self_attention")
    kernels, biases, x = torch["in_proj_weight"].T, torch["in_proj_bias"], torch["x"]  # [W, 3W]
    split = lambda array: np.split(array, [WIDTH], axis=-1)
    weights = {
        name: {"kernel": kernel, "bias": bias}
        for name, kernel, bias in zip(("query", "key_value"), split(kernels), split(biases))
    }
    weights["output"] = {"kernel": torch["out_proj.weight"].T, "bias": torch["out_proj.bias"]}
    module = transformer.Attention(config.Transformer(**SMALL, window=window), jnp.float32)
    run = jax.jit(partial(module.apply, method="self_attention"), static_argnums=3)
    length = x.shape[1]
    ours = run({"params": weights}, x, np.full(2, length), causal)
    np.testing.assert_allclose(ours, references.of_pytorch(f"self_attention-{window}-{causal}")["ys"], atol=BAR)

    distance = np.arange(length) - np.arange(length)[:, None]
    seen = (np.abs(distance) <= (window or length)) & ((distance <= 0) | (not causal))
    by_head = {
        name: {"kernel": kernel.reshape(WIDTH, HEADS, -1), "bias": bias.reshape(HEADS, -1)}
        for name, kernel, bias in zip(("query", "key", "value"), np.split(kernels, 3, 1), np.split(biases, 3))
    }
    output = weights["output"] | {"kernel": weights["output"]["kernel"].reshape(HEADS, -1, WIDTH)}
    flax = nn.MultiHeadDotProductAttention(HEADS)
    attended = jax.jit(partial(flax.apply, mask=seen[None, None]))({"params": by_head | {"out": output}}, x)
    np.testing.assert_allclose(ours, attended, atol=BAR)


# -------------------------------------------------------------------------------------- positions

POSITIONS = ["none", "rotary", "relative", "sinusoidal", "learned"]


@pytest.mark.parametrize("kind", zoo.first(2, POSITIONS))
def test_only_positions_tell_order(kind):
    """Without positions, a sentence turned round gives the same memory turned round."""
    module, params = build(positions=kind)
    encode = jax.jit(lambda source: module.apply(params, source, method="encode").states)
    source = sentences(1, 1, 5)
    difference = np.abs(encode(source[:, ::-1]) - encode(source)[:, ::-1]).max()
    assert difference < BAR if kind == "none" else difference > 0.05


COMBINATIONS = [
    dict(positions="rotary", window=1, tie="all"),
    dict(positions="relative", window=2, norm="pre"),
    dict(positions="relative", share_positions=False, window=2, norm="pre"),
    dict(positions="learned", join_positions="concat", window=1, tie="none"),
    dict(positions="relative", tie="all"),
    dict(positions="rotary", norm="pre", tie="none"),
    dict(positions="sinusoidal", join_positions="concat", norm="pre"),
    dict(positions="none", window=2),
]


@pytest.mark.parametrize("options", zoo.first(1, COMBINATIONS), ids=str)
def test_positions_windows_norms_and_ties_combine(options):
    """Step by step equals teacher forced, beyond the length of a rolling cache."""
    module, params = build(**options)
    source, target = sentences(2, 2, 5), sentences(3, 2, 7)

    @jax.jit
    def both(params):
        memory = module.apply(params, source, method="encode")
        state = module.apply(params, memory, target.shape[1], method="init_state")

        def step(state, token):
            state, logits, _ = module.apply(params, memory, state, token, method="step")
            return state, logits

        read = np.concatenate([np.full((2, 1), SOS), target[:, :-1]], axis=1)
        _, stepped = jax.lax.scan(step, state, read.T)
        return module.apply(params, source, target), stepped.swapaxes(0, 1), state

    forced, stepped, state = both(params)
    assert np.abs(forced).max() > 0.5
    np.testing.assert_allclose(stepped, forced, atol=BAR)
    window = options.get("window", 0)
    assert state.layers[0][0].shape[2] == (window + 1 if window else 7)


def test_a_stack_has_one_table_of_relative_positions_shared_by_its_blocks():
    _, params = build(positions="relative", encoder_layers=3)
    tables = [
        "/".join(key.key for key in path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params["params"])
        if leaf.shape == (32, HEADS)
    ]
    assert tables == ["decoder/positions/relative", "encoder/positions/relative"]


def test_blocks_with_equal_tables_of_relative_positions_are_blocks_that_share_one():
    layers = dict(positions="relative", encoder_layers=2, decoder_layers=2)
    (shared, params), (own, others) = build(**layers), build(**layers, share_positions=False)
    source, target = sentences(2, 2, 5), sentences(3, 2, 7)
    expected = shared.apply(params, source, target)
    for side in ("encoder", "decoder"):
        table = params["params"][side].pop("positions")["relative"]
        params["params"][side]["blocks"]["stack"]["attention"]["relative"] = jnp.stack([table] * 2)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, others)
    np.testing.assert_allclose(own.apply(params, source, target), expected, atol=BAR)
    relative = params["params"]["decoder"]["blocks"]["stack"]["attention"]["relative"]
    params["params"]["decoder"]["blocks"]["stack"]["attention"]["relative"] = relative.at[1].multiply(-1)
    assert np.abs(own.apply(params, source, target) - expected).max() > 100 * BAR


@pytest.mark.parametrize("kind", ["rotary", "relative"])
def test_only_distances_count(kind):
    """The same words at later positions, after words outside of the window, have the same memory."""
    module, params = build(positions=kind, window=1)
    encode = jax.jit(lambda source: module.apply(params, source, method="encode").states)
    words = sentences(4, 1, 8)
    moved = np.concatenate([words[:, 5:], words[:, :5]], axis=1)
    np.testing.assert_allclose(encode(words)[:, 1:4], encode(moved)[:, 4:7], atol=BAR)


def test_a_window_hides_what_is_beyond_it():
    """One layer of radius 2: position 4 sees 2 .. 6."""
    module, params = build(window=2)
    encode = jax.jit(lambda source: module.apply(params, source, method="encode").states[:, 4])
    source, changed = sentences(5, 1, 8), sentences(5, 1, 8)
    changed[0, [0, 1, 7]] = 4 + (changed[0, [0, 1, 7]] - 3) % 5
    np.testing.assert_allclose(encode(changed), encode(source), atol=BAR)
    changed[0, 6] = 4 + (changed[0, 6] - 3) % 5
    assert np.abs(encode(changed) - encode(source)).max() > 1e-3


def test_learned_positions_end_where_their_table_does():
    """An index beyond it would quietly be another position's: it is refused, by name, wherever it can come in."""
    module, params = build(positions="learned", max_length=4)
    short, long = sentences(6, 1, 4), sentences(6, 1, 5)
    assert (module.longest_source, module.longest_target) == (4, 4)
    assert build()[0].longest_target is None
    memory = jax.eval_shape(partial(module.apply, params, method="encode"), short)
    for too_long in (
        lambda: module.apply(params, long, method="encode"),
        lambda: jax.eval_shape(partial(module.apply, params), short, long),
        lambda: jax.eval_shape(lambda memory: module.apply(params, memory, 5, method="init_state"), memory),
    ):
        with pytest.raises(UserError, match=r"model\.max_length is 4: learned positions cannot address 5"):
            too_long()
    jax.eval_shape(lambda memory: module.apply(params, memory, 4, method="init_state"), memory)


@pytest.mark.parametrize(
    "options", zoo.first(1, [dict(positions="relative", window=2), dict(), dict(positions="rotary")])
)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_cache_that_stays_where_it_lies_finds_what_a_cache_that_moves_does(options, backend, monkeypatch):
    """The prefixes of a beam change places at every step. On an accelerator they read all rows of the cache and mask
    those of others, and four tokens are written between two looks at whether all is done."""
    module, params = build(**options)
    source = sentences(8, 3, 5)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def beam(moving: bool):
        apply = partial(module.apply, params)
        memory = apply(source, method="encode")
        step = partial(apply, memory, method="step") if moving else module.beams(params["params"], memory)
        limits = jnp.array([7, 6, 3])
        return search.beam_search(
            step, apply(memory, 7, method="init_state"), limits, 7, width=4, nbest=4, penalty="mean"
        )

    moved, stayed = jax.jit(beam, static_argnums=0)(True), jax.jit(beam, static_argnums=0)(False)
    np.testing.assert_array_equal(moved.tokens, stayed.tokens)
    np.testing.assert_allclose(moved.scores, stayed.scores, atol=BAR)
