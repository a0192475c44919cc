"""Scheduled sampling: how p falls, and what the decoder reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax.core.losses import scheduled_sampling
from s2sjax.core.special_tokens import EOS, PAD, SOS


@pytest.mark.parametrize(
    "schedule, k, expected",
    [
        ("constant", 0.3, lambda i: 0.3),
        ("linear", 50.0, lambda i: 1 - i / 50),
        ("exponential", 0.99, lambda i: 0.99**i),
        ("inverse_sigmoid", 20.0, lambda i: 20 / (20 + np.exp(i / 20))),
    ],
)
def test_p_falls_as_the_paper_says_and_never_below_its_floor(schedule, k, expected):
    for step in (0, 1, 17, 40, 200, 10_000_000):
        with np.errstate(over="ignore"):
            exact = max(expected(step), 0.05)
        p = float(scheduled_sampling.truth_probability(schedule, k, 0.05, jnp.int32(step)))
        assert p == pytest.approx(exact, abs=1e-6)


def test_the_first_input_is_true_whatever_p():
    truth = scheduled_sampling.choose_truth(jax.random.key(0), jnp.float32(0), (3, 4))
    assert truth.tolist() == [[True, False, False, False]] * 3
    assert scheduled_sampling.choose_truth(jax.random.key(0), jnp.float32(1), (3, 4)).all()
    share = scheduled_sampling.choose_truth(jax.random.key(1), jnp.float32(0.25), (200, 101))[:, 1:].mean()
    assert share == pytest.approx(0.25, abs=0.01)


def test_its_own_output_is_no_padding_and_as_likely_as_the_model_says():
    logits = jnp.log(jnp.array([[0.3, 0.3, 0.1, 0.1, 0.2]]))
    assert scheduled_sampling.own_output(logits, None).tolist() == [4]
    drawn = np.asarray(scheduled_sampling.own_output(jnp.repeat(logits, 8000, 0), jax.random.key(0)))
    counts = np.bincount(drawn, minlength=5)
    assert counts[PAD] == counts[SOS] == 0
    zoo.check_shares(counts[2:], [0.25, 0.25, 0.5])


def test_the_second_pass_reads_what_the_first_one_wrote():
    """The worked example of the docstring: inputs <sos> a b, truth 1 1 0, the first pass writes a c d."""
    a, b, c, d = 4, 5, 6, 7
    logits = jax.nn.one_hot(jnp.array([[a, c, d]]), 8)
    truth = jnp.array([[True, True, False]])
    assert scheduled_sampling.mixed(jnp.array([[SOS, a, b]]), truth, logits, None).tolist() == [[SOS, a, c]]


@pytest.mark.parametrize("start, own", [(PAD, SOS), (SOS, EOS)])
def test_sos_is_written_where_another_token_starts_the_decoder(start, own):
    """Its logit is the highest but for that of <pad>, in both passes and step by step."""
    logits = jnp.array([[0.4, 0.3, 0.2, 0.1]])
    assert scheduled_sampling.own_output(logits, None, start).tolist() == [own]
    inputs, truth = jnp.array([[start, 3]]), jnp.array([[True, False]])
    twice = jnp.stack([logits, logits], axis=1)
    assert scheduled_sampling.mixed(inputs, truth, twice, None, start).tolist() == [[start, own]]

    step = lambda state, token, key: (state, logits + token[:, None])  # the logits tell which token was read
    found = scheduled_sampling.step_by_step(step, jnp.zeros(1), inputs, truth, jax.random.key(0), False, start)
    np.testing.assert_allclose(found[0], logits + np.array([[start], [own]]), rtol=1e-6)


def test_step_by_step_each_output_is_the_next_input():
    """A model that writes its input plus one, with the sum of what it read as state."""

    def step(state, token, key):
        return state + token, jax.nn.one_hot((token + 1) % 10, 10) + 0 * state[:, None]

    inputs = jnp.array([[SOS, 7, 7, 4], [SOS, 8, 8, 8]])
    truth = jnp.array([[True, False, False, True], [True, True, False, False]])
    logits = scheduled_sampling.step_by_step(step, jnp.zeros(2), inputs, truth, jax.random.key(0), drawn=False)
    # reads 1, 2, 3, 4 and 1, 8, 9, then 10 % 10 = 0 is <pad>, which is not written: the first of the others is <eos>
    assert np.argmax(logits, -1).tolist() == [[2, 3, 4, 5], [2, 9, 0, 3]]
    assert EOS == 2
