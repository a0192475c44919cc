"""Exercises: what a cell prints for an answer."""

import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import exercises


@pytest.mark.parametrize(
    "answer, expected",
    [
        (..., "not answered yet: replace ... by your answer and run this cell again"),
        (4, "right: two and two are four"),
        (np.float32(4), "right: two and two are four"),
        (jnp.array(4), "right: two and two are four"),
        (5, "wrong: 2 + 2 is not 5"),
        (None, "wrong: 2 + 2 is not None"),
        (np.array([4, 5]), "wrong: the answer cannot be tested: ValueError: The truth value of an array"),
    ],
)
def test_an_answer_is_right_or_wrong_or_not_given(answer, expected, capsys):
    exercises.check(answer, lambda x: bool(x == 4) or f"2 + 2 is not {x}", "two and two are four")
    assert capsys.readouterr().out.startswith(expected)


@pytest.mark.parametrize("found", [False, np.False_, "", None])
def test_a_test_without_a_sentence_says_only_that_it_is_wrong(found, capsys):
    exercises.check(5, lambda x: found, "four")
    assert capsys.readouterr().out == "wrong: this is not the answer\n"


def test_a_test_may_return_a_boolean_of_numpy(capsys):
    exercises.check(4, lambda x: np.all(np.asarray(x) == 4), "four")
    assert capsys.readouterr().out == "right: four\n"
