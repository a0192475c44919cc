"""Encoder-decoders whose source is not text: pictures and frames, with the decoder of every family."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core import losses, search
from s2sjax.core.special_tokens import PAD
from s2sjax.errors import UserError
from s2sjax.models import objectives
from s2sjax.models.encoder_decoder import shift_right
from s2sjax.models.families.identity import Identity
from s2sjax.tasks.captioning.picture_grid import Grid, PictureGrid
from s2sjax.tasks.transcription.listener import Listener

GRID = Grid(channels=(4, 8), groups=2)
DECODERS = ["cho", "sutskever-reversed", "rnnsearch", "luong", "gnmt", "transformer-post", "convs2s", "cnn-rnn"]
CASES = [f"{source} {name}" for source in ("pictures", "frames") for name in DECODERS]
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
FRAMES = RNG.normal(size=(3, 6, 5)).astype(np.float32), np.array([6, 3, 1], np.int32)
TARGET = np.array([[4, 5, 6, 2], [6, 2, PAD, PAD], [5, 4, 2, PAD]], np.int32)


def build(decoder: str, source: str = "pictures", **options):
    model = zoo.without_dropout(zoo.MODELS[decoder])
    if source == "pictures":
        frontend, model = PictureGrid(GRID, 8, 6), config.Pair(Identity(6), model)
    else:
        frontend = Listener(5, config.encoder_and_decoder(model)[0].embedding_size, **options or {"stack": 2})
    return models.build(model, 0, zoo.VOCABULARY, source_frontend=frontend)


def random_parameters(module, source):
    """Sharper than initial ones, which are nearly indifferent between words."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), source, TARGET))["params"]
    rng = np.random.default_rng(1)
    draw = lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32)
    return jax.tree.map(draw, shapes)


@zoo.each(CASES, quick=("pictures luong",), rare=set(CASES) - {"pictures rnnsearch", "pictures transformer-post"})
def test_every_decoder_writes_about_pictures_and_frames(name):
    """Step by step equals teacher forced, and the score of beam search is that of teacher forcing."""
    kind, decoder = name.split()
    source = (PICTURES,) if kind == "pictures" else FRAMES
    module = build(decoder, kind)
    params = random_parameters(module, source)

    @jax.jit
    def both(params):
        apply = partial(module.apply, {"params": params})
        memory = apply(source, method="encode")
        state, stepped = apply(memory, 4, method="init_state"), []
        for token in shift_right(jnp.array(TARGET)).T:
            state, logits, attention = apply(memory, state, token, method="step")
            stepped.append(logits)
        found = search.beam_search(
            module.beams(params, memory), apply(memory, 4, method="init_state"), jnp.full(3, 4), 4, width=2, nbest=1
        )
        best = found.tokens[:, 0]
        scores = losses.log_likelihood(apply(source, best), best, best != PAD)
        return apply(source, TARGET), jnp.stack(stepped, 1), attention, found.log_probs[:, 0], scores

    forced, stepped, attention, log_probs, scores = both(params)
    real = (TARGET != PAD)[..., None]
    np.testing.assert_allclose(np.where(real, forced, 0), np.where(real, stepped, 0), atol=1e-5)
    np.testing.assert_allclose(log_probs, scores, atol=1e-5)
    mask = module.source_mask(source)
    assert mask.shape == ((3, 4) if kind == "pictures" else (3, 3))
    if attention is not None:
        assert attention.shape == mask.shape and np.all(np.asarray(attention)[~np.asarray(mask)] == 0)


@zoo.each(["rnnsearch", "luong", "luong-unfed-bidirectional"], "decoder", quick=("rnnsearch",))
def test_the_attention_of_training_is_that_of_each_step(decoder):
    module = build(decoder)
    params = random_parameters(module, (PICTURES,))

    @jax.jit
    def both(params):
        apply = partial(module.apply, {"params": params})
        memory = apply((PICTURES,), method="encode")
        inputs = shift_right(jnp.array(TARGET))
        hidden, alpha = apply(memory, inputs, TARGET != PAD, method="hidden_and_attention")
        forced = search.forced_attention(module.beams(params, memory), apply(memory, 4, method="init_state"), TARGET)
        same = apply(memory, inputs, TARGET != PAD, method="hidden")
        sums = objectives.doubly_stochastic_loss(
            module, 0.0, 0.5, params, {"source": (PICTURES,), "target": TARGET}, jax.random.key(0)
        )
        plain = objectives.loss(module, 0.0, params, {"source": (PICTURES,), "target": TARGET}, jax.random.key(0))
        return alpha, forced, hidden, same, sums, plain

    alpha, forced, hidden, same, sums, plain = both(params)
    np.testing.assert_allclose(alpha, forced, atol=1e-5)
    np.testing.assert_array_equal(hidden, same)
    penalty = losses.doubly_stochastic(alpha, TARGET != PAD, np.ones((3, 4), bool)).sum()
    np.testing.assert_allclose(sums["penalty"], (penalty, 3), rtol=1e-5)
    np.testing.assert_allclose(sums["loss"], (plain["loss"][0] + 0.5 * penalty, plain["loss"][1]), rtol=1e-5)


@pytest.mark.parametrize(
    "options", zoo.first(1, [{"stack": 2}, {"channels": 2, "normalize": True}, {"stack": 2, "normalize": True}])
)
def test_padding_of_frames_is_invisible(options):
    module = build("rnnsearch", "frames", **options)
    params = random_parameters(module, FRAMES)
    frames, lengths = FRAMES
    longer = np.pad(frames, ((0, 0), (0, 3), (0, 0)), constant_values=9.0)
    apply = jax.jit(module.apply)
    np.testing.assert_allclose(
        apply({"params": params}, FRAMES, TARGET), apply({"params": params}, (longer, lengths), TARGET), atol=1e-5
    )


@pytest.mark.slow
def test_the_grid_has_one_vector_a_place_by_rows():
    """A change in the bottom right corner changes the last position most."""
    frontend = PictureGrid(GRID, 8, 6)
    params = frontend.init(jax.random.key(0), PICTURES[:1])
    changed = PICTURES[:1].copy()
    changed[:, 6:, 6:] = 255 - changed[:, 6:, 6:]
    (before, mask), (after, _) = (frontend.apply(params, each) for each in (PICTURES[:1], changed))
    assert before.shape == (1, 4, 6) and mask.all() and GRID.side(8) == 2 and GRID.side(9) == 3
    assert np.argmax(np.abs(np.asarray(before - after)).sum(-1)[0]) == 3


def test_bad_networks_are_refused():
    with pytest.raises(UserError, match="requires a source of words"):
        models.build(zoo.MODELS["transformer-shared"], 0, 7, source_frontend=PictureGrid(GRID, 8, 8))
    with pytest.raises(UserError, match=r"must be a multiple of model.grid.groups, 8"):
        Grid(channels=(30,))
