"""The recurrent models' own: what local windows let them see, and what coverage remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config, models
from s2sjax.core.special_tokens import SOS

VOCABULARY = 9
SMALL = dict(width=6, embedding_size=5, dropout=0.0)
SOURCE = np.array([[4, 5, 6, 7, 8, 4, 5, 2], [6, 5, 4, 2, 0, 0, 0, 0]], np.int32)
REAL = SOURCE != 0


def build(model: config.ModelConfig):
    module = models.build(model, VOCABULARY, VOCABULARY)
    ids = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), ids, ids)
    rng = np.random.default_rng(0)
    return module, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def written(module, params, tokens: np.ndarray):
    """States and attention [T, B, S] while `tokens` [B, T] are fed in, and their logits."""

    @jax.jit
    def run(params):
        memory = module.apply(params, SOURCE, method="encode")

        def step(state, token):
            state, logits, alpha = module.apply(params, memory, state, token, method="step")
            return state, (state, alpha, logits)

        return jax.lax.scan(step, module.apply(params, memory, tokens.shape[1], method="init_state"), tokens.T)[1]

    return jax.tree.map(np.asarray, run(params))


TOKENS = np.random.default_rng(1).integers(4, VOCABULARY, (2, 6)).astype(np.int32)


@pytest.mark.parametrize("window", ["monotonic", "predictive"])
def test_a_local_window_hides_the_rest(window):
    """At most 2D + 1 positions have weight, and for the monotonic window they lie round the place of the step."""
    module, params = build(config.Luong(**SMALL, layers=1, window=window, radius=1))
    states, alpha, _ = written(module, params, TOKENS)
    np.testing.assert_array_equal(states.position, np.repeat(np.arange(1, 7)[:, None], 2, axis=1))
    assert ((alpha > 0).sum(-1) <= 3).all()
    assert (alpha[:, ~REAL] == 0).all()
    if window == "monotonic":
        near = np.abs(np.arange(8) - np.arange(6)[:, None]) <= 1  # [T, S]
        np.testing.assert_array_equal(alpha > 0, near[:, None] & REAL)
        total = np.array([(near[t] & REAL[row]).any() for t in range(6) for row in range(2)])
        np.testing.assert_allclose(alpha.sum(-1).reshape(-1), total, atol=1e-6)  # the second has outrun its source
    else:
        assert ((alpha.sum(-1) > 0) & (alpha.sum(-1) < 1)).all()


def test_coverage_is_the_sum_of_all_attention_and_changes_the_next():
    """With a coverage weight of zero the model equals the one without coverage."""
    module, params = build(config.RNNsearch(**SMALL, coverage=True))
    states, alpha, logits = written(module, params, TOKENS)
    np.testing.assert_allclose(states.coverage, alpha.cumsum(0), atol=1e-6)

    blind = jax.tree_util.tree_map_with_path(lambda path, x: x * 0 if path[-1].key == "coverage" else x, params)
    _, without, plain_logits = written(module, blind, TOKENS)
    np.testing.assert_allclose(without[0], alpha[0], atol=1e-6)  # nothing is covered yet
    assert np.abs(without[1:] - alpha[1:]).max() > 0.05

    plain, _ = build(config.RNNsearch(**SMALL))
    attention = {k: v for k, v in blind["params"]["decoder"]["attention"].items() if k != "coverage"}
    decoder = blind["params"]["decoder"] | {"attention": attention}
    states, _, expected = written(plain, {"params": blind["params"] | {"decoder": decoder}}, TOKENS)
    assert states.coverage is None
    np.testing.assert_allclose(plain_logits, expected, atol=1e-5)
    assert np.abs(logits - expected).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("window, fed", [("monotonic", False), ("predictive", True)])
def test_windows_combine_with_input_feeding_or_without(window, fed):
    """The zoo has the other two. Step by step equals teacher forced, where the target outruns the source too."""
    module, params = build(config.Luong(**SMALL, layers=1, window=window, radius=1, input_feeding=fed, score="cosine"))
    read = np.concatenate([np.full((2, 1), SOS), TOKENS[:, :-1]], axis=1).astype(np.int32)
    _, _, stepped = written(module, params, read)
    forced = jax.jit(module.apply)(params, SOURCE, TOKENS)
    np.testing.assert_allclose(stepped.swapaxes(0, 1), forced, atol=1e-5)
