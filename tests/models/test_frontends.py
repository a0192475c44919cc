"""Front ends: ids or frames become vectors and a mask, and every encoder reads them."""

import re

import jax
import numpy as np
import zoo

from s2sjax import layers, models
from s2sjax.models.frame_encoder import FrameEncoder
from s2sjax.models.frontends import Frames, Tokens
from s2sjax.training.checkpoints.fingerprints import named_leaves

FRAMES = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
LENGTHS = np.array([4, 2])
ENCODERS = sorted({type(model): name for name, model in reversed(zoo.MODELS.items()) if "pair" not in name}.values())


def test_tokens_are_embedded_and_padding_is_masked():
    frontend = Tokens(layers.Embedding(7, 5))
    ids = np.array([[4, 5, 2, 0]])
    (xs, mask), params = frontend.init_with_output(jax.random.key(0), ids)
    np.testing.assert_array_equal(xs, params["params"]["embedding"]["table"][ids])
    np.testing.assert_array_equal(mask, [[True, True, True, False]])
    assert frontend.width == 5


def test_frames_are_projected_and_padding_becomes_zeros():
    frontend = Frames(3, 5)
    (xs, mask), params = frontend.init_with_output(jax.random.key(0), FRAMES, LENGTHS)
    dense = params["params"]["project"]
    expected = FRAMES @ dense["kernel"] + dense["bias"][None, None]
    np.testing.assert_allclose(xs[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(xs[1, :2], expected[1, :2], atol=1e-6)
    assert np.all(np.asarray(xs[1, 2:]) == 0)
    np.testing.assert_array_equal(mask, [[True] * 4, [True, True, False, False]])
    assert frontend.width == 5


def test_frames_of_width_0_pass_unchanged_and_have_no_parameters():
    frontend = Frames(3)
    (xs, _), params = frontend.init_with_output(jax.random.key(0), FRAMES, LENGTHS)
    np.testing.assert_array_equal(xs[0], FRAMES[0])
    assert not jax.tree.leaves(params)
    assert frontend.width == 3


@zoo.each(ENCODERS, quick=("luong",), rare=set(ENCODERS) - set(zoo.KINDS))
def test_every_encoder_reads_frames(name):
    """The memory of a row does not depend on what lies beyond its length."""
    c = zoo.without_dropout(zoo.MODELS[name])
    encoder = FrameEncoder(c, features=3)
    memory, params = encoder.init_with_output(jax.random.key(0), FRAMES, LENGTHS)
    assert memory.states.shape == (2, 4, c.encoder_spec.states)
    short = encoder.apply(params, FRAMES[1:, :2], LENGTHS[1:])
    np.testing.assert_allclose(memory.states[1, :2], short.states[0], atol=1e-5)
    for pattern, _ in models.encoder_rules(c):
        assert any(re.search(pattern, path) for path, _ in named_leaves(params["params"]))
