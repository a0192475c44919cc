"""Numbers that are traced: one program for all values, and answers where Python asks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.nn.dropout import keep_mask
from s2sjax.core.traced_numbers import Disagree, Number


def traced(function, *values, members: int = 1):
    """Traces function(number) with a weak scalar; returns what `function` returned while it was traced."""
    found = []
    weak = jax.ShapeDtypeStruct((), jnp.float32 if isinstance(values[0], float) else jnp.int32, weak_type=True)
    jax.eval_shape(lambda value: found.append(function(Number(value, values))), weak)
    return found[0]


def test_arithmetic_with_python_numbers_keeps_the_values():
    half = traced(lambda rate: 1 / (1 - rate), 0.5, 0.75)
    assert isinstance(half, Number) and half.values == (2.0, 4.0)
    steps = traced(lambda steps: max(round(steps * 0.25), 1), 8, 16)
    assert steps.values == (2, 4) and steps.dtype == jnp.int32
    assert math.isnan(traced(lambda rate: 1 / rate, 0.0).values[0])


def test_arithmetic_with_arrays_takes_their_dtype():
    kinds = traced(lambda rate: [(jnp.ones(2, kind) * rate).dtype for kind in (jnp.bfloat16, jnp.float32)], 0.5)
    assert kinds == [jnp.bfloat16, jnp.float32]
    assert traced(lambda rate: (rate * jnp.ones(2, jnp.bfloat16) + jnp.sqrt(rate)).dtype, 0.5) == jnp.bfloat16


def test_questions_are_answered_where_all_members_agree():
    assert traced(lambda rate: rate > 0, 0.1, 0.3) is True
    assert traced(lambda rate: (rate == 0, bool(rate), rate == "none"), 0.0) == (True, False, False)
    assert traced(float, 0.5, 0.5) == 0.5 and traced(lambda n: list(range(n)), 3) == [0, 1, 2]
    assert f"{traced(lambda rate: rate, 0.1, 0.3)}" == "0.1 or 0.3"


@pytest.mark.parametrize(
    "ask, answers", [(lambda rate: rate > 0, (False, True)), (float, (0.0, 0.3)), (bool, (False, True))]
)
def test_questions_with_different_answers_tell_them(ask, answers):
    with pytest.raises(Disagree) as raised:
        traced(ask, 0.0, 0.3)
    assert raised.value.answers == answers


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_a_mask_is_the_same_for_a_python_number_a_traced_one_and_a_member(rate):
    keys = jax.random.split(jax.random.key(3), 4)
    plain = jax.jit(lambda key: keep_mask(key, (5, 70), rate))(keys[2])
    with_number = lambda key, value: keep_mask(key, (5, 70), Number(value, (rate,) * 4))
    np.testing.assert_array_equal(plain, jax.jit(with_number)(keys[2], rate))
    together = jax.jit(jax.vmap(with_number))(keys, np.full(4, rate, np.float32))
    np.testing.assert_array_equal(plain, together[2])
